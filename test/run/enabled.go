package main

import (
	"encoding/json"
	"strings"
	"time"
)

// enabledUnits are those of units, and others that need nothing but another command line.
func enabledUnits() (list []serviceUnit) {
	for _, u := range append(serviceUnits[:len(serviceUnits):len(serviceUnits)],
		serviceUnit{"haproxy", "haproxy", "root", "", 8081, true, func(run func(...string) string) string {
			return run("curl", "-sS", "--fail", "http://127.0.0.1:8081/")
		}},
		serviceUnit{"memcached", "memcached", "memcache", "", 11211, false, func(run func(...string) string) string {
			return run("sh", "-c", `printf 'set k 0 0 5\r\nhello\r\nget k\r\nquit\r\n' | socat -t 5 - TCP:127.0.0.1:11211`)
		}},
		serviceUnit{"apache2", "", "root", "", 80, true, func(run func(...string) string) string {
			return run("sh", "-c", "curl -sS --fail http://127.0.0.1/big | sha256sum")
		}},
	) {
		u.rundir = "/run/gosmc"
		list = append(list, u)
	}
	return list
}

const haproxyConfig = `global
	chroot /var/lib/haproxy
	user haproxy
	group haproxy
defaults
	mode http
	timeout connect 5s
	timeout client 50s
	timeout server 50s
frontend hello
	bind 127.0.0.1:8081
	http-request return status 200 content-type text/plain string hello
`

var enabled = &program{
	name: "enabled", what: "Debian's units of redis, nginx, postgres, haproxy, memcached and apache2 in a systemd, put under gosmc run by 'gosmc service enable', and taken from it",
	packages: []string{"systemd", "redis-server", "redis-tools", "nginx-light", "postgresql", "haproxy", "memcached", "apache2", "curl", "socat"},
	needs: []string{systemdPath, "nsenter", "runuser", "redis-server", "redis-cli", "nginx", "haproxy", "memcached", "apache2", "curl", "socat", "/usr/lib/postgresql/15/bin/postgres",
		"/etc/postgresql/15/main/postgresql.conf"},
	root:    true,
	timeout: 6 * time.Minute,
	run: func(l *lab) {
		files := map[string]string{
			"/var/www/html/big": l.text(unitFileSize), "/etc/haproxy/haproxy.cfg": haproxyConfig,
			"/usr/lib/tmpfiles.d/gosmc.conf": "d /run/gosmc 1777 root root -\n", // as packages have it
		}
		units := enabledUnits()
		if text := l.unitEnvironment(); text != "" {
			for _, u := range units {
				files[u.file("environment")] = "[Service]\n" + text
			}
		}
		v := l.boot(machineRoot{Files: files})
		defer v.end()
		if l.way != bare {
			v.run("gosmc", "run-library", "/usr/local/lib/gosmc")
		}
		for _, u := range units {
			if l.way != bare {
				v.run("gosmc", "service", "enable", "--yes", u.name)
				v.listed(u, "ok stopped")
			}
			v.start(u)
			if u.program == "postgres" {
				v.as("postgres", "psql", "-qc", "alter user postgres password 'test'", "postgres")
			}
			l.result(u.name, u.ask(v.client(u)))
			v.expect(u, l.way.moves())
			if l.way != bare {
				v.listed(u, map[bool]string{true: "ok yes", false: "ok restart"}[l.way.moves()])
				v.run("gosmc", "service", "disable", "--now", u.name)
				v.listed(u, "")
			}
			if u.program == "postgres" && l.way != bare { // now by pg_ctlcluster again
				v.run("systemctl", "is-active", u.name)
			}
			v.start(u)
			l.result(u.name+", without", u.ask(v.client(u)))
			if maps, _ := v.command("sh", "-c", "cat /proc/[0-9]*/maps").Output(); strings.Contains(string(maps), "/libgosmc-") {
				l.failf("%s was taken from gosmc run, and a process has the library", u.name)
			}
			v.run("systemctl", "stop", u.name)
			l.result(u.name+" has stopped", v.state(u))
			if out, err := v.command("pgrep", "-f", "run-supervise").Output(); err == nil {
				l.failf("%s has stopped, and supervisors run: %s", u.name, out)
			}
			if out, _ := v.command("find", unitsDir, "-path", "*"+u.name+".service.d/*gosmc*").Output(); len(out) > 0 {
				l.failf("left behind: %s", out)
			}
		}
	},
}

// listed has 'gosmc service list' say a state of a unit, and whether what runs has the library; "": nothing.
func (v *machine) listed(u serviceUnit, want string) {
	var r struct {
		Services []struct{ Unit, State, Why, Running string }
	}
	v.l.must(json.Unmarshal([]byte(v.run("gosmc", "service", "list", "--json")), &r))
	got := ""
	for _, s := range r.Services {
		if s.Unit == u.name+".service" {
			got = s.State + " " + s.Running
		}
	}
	if got != want {
		v.l.failf("gosmc service list says %q of %s, want %q", got, u.name, want)
	}
}
