package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// dropIns are the files of docs/run.md, "As a service": by the name of the unit.
//
//go:embed units/*.conf
var dropIns embed.FS

// A serviceUnit is a unit of Debian's with the drop-in that docs/run.md has for it.
type serviceUnit struct {
	name    string // without .service
	program string // that its main process is
	user    string // of the program's supervisor, and of clients
	port    int
	reload  bool // it can
	// ask has a client do its work; run runs a program as gosmc.
	ask func(run func(args ...string) string) string
}

const unitFileSize = 3_000_000

var serviceUnits = []serviceUnit{
	{"redis-server", "redis-server", "redis", 6379, false, func(run func(...string) string) string {
		return run("redis-cli", "set", "greeting", "hello") + run("redis-cli", "get", "greeting") +
			sumOf(run("redis-cli", "eval", "return string.rep('0123456789', 300000)", "0"))
	}},
	{"nginx", "nginx", "root", 80, true, func(run func(...string) string) string {
		return run("sh", "-c", "curl -sS --fail http://127.0.0.1/big | sha256sum")
	}},
	{"postgresql@15-main", "postgres", "postgres", 5432, true, func(run func(...string) string) string {
		const sql = "select inet_client_addr(), count(*), md5(string_agg(n::text, ',')) from generate_series(1, 200000) n"
		return run("psql", "host=127.0.0.1 user=postgres password=test dbname=postgres", "-qAtXc", sql)
	}},
}

var units = &program{
	name: "units", what: "Debian's units of redis, nginx and postgres in a systemd, with the drop-ins of docs/run.md, and with something missing",
	packages: []string{"systemd", "redis-server", "redis-tools", "nginx-light", "postgresql", "curl"},
	needs:    []string{systemdPath, "nsenter", "runuser", "redis-server", "redis-cli", "nginx", "curl", "/usr/lib/postgresql/15/bin/postgres", "/etc/postgresql/15/main/postgresql.conf"},
	root:     true,
	timeout:  6 * time.Minute,
	run: func(l *lab) {
		files := map[string]string{"/var/www/html/big": l.text(unitFileSize)}
		if l.way != bare {
			for _, u := range serviceUnits {
				text, err := dropIns.ReadFile("units/" + u.name + ".conf")
				l.must(err)
				files[u.file("gosmc")] = string(text) + l.unitEnvironment()
			}
		}
		v := l.boot(machineRoot{Files: files})
		defer v.end()
		if l.way != bare { // as 'make install' does
			v.run("gosmc", "run-library", "/usr/local/lib/gosmc")
		}
		for _, u := range serviceUnits {
			v.start(u)
			if u.program == "postgres" {
				v.as("postgres", "psql", "-qc", "alter user postgres password 'test'", "postgres")
			}
			l.result(u.name, u.ask(v.client(u)))
			v.expect(u, l.way.moves())
			if u.reload {
				v.run("systemctl", "reload", u.name)
				l.result(u.name+", reloaded", u.ask(v.client(u)))
			}
			v.run("systemctl", "restart", u.name)
			l.result(u.name+", started again", u.ask(v.client(u)))
			v.expect(u, l.way.moves())
			v.run("systemctl", "stop", u.name)
			l.result(u.name+" has stopped", v.state(u))
			if out, err := v.command("pgrep", "-f", "run-supervise").Output(); err == nil {
				l.failf("%s has stopped, and supervisors run: %s", u.name, out)
			}
		}
		for _, u := range serviceUnits {
			for _, m := range missing {
				if l.way == moved { // which the others do not change
					v.without(u, m)
				}
			}
		}
	},
}

// text is the output of random, as a text.
func (l *lab) text(size int) string {
	path := l.random("big", size)
	b, err := os.ReadFile(path)
	l.must(err)
	return string(b)
}

// file is where a drop-in of a unit is.
func (u *serviceUnit) file(name string) string {
	return filepath.Join(unitsDir, u.name+".service.d", name+".conf")
}

// dir is the run directory that the drop-in names.
func (u *serviceUnit) dir() string {
	return map[string]string{"redis-server": "/run/gosmc-redis", "nginx": "/run/gosmc-nginx", "postgres": "/run/gosmc-postgres"}[u.program]
}

// unitEnvironment is the line that this way adds to a drop-in.
func (l *lab) unitEnvironment() string {
	switch l.way {
	case disabled:
		return "Environment=GOSMC_DISABLED=1\n"
	case shaken:
		return "Environment=GOSMC_RUN_SHAKE=" + strconv.FormatUint(uint64(l.seed), 10) + "\n"
	}
	return ""
}

// start starts a unit and waits until it answers.
func (v *machine) start(u serviceUnit) {
	if out, err := v.command("systemctl", "start", u.name).CombinedOutput(); err != nil {
		v.l.failf("%s does not start: %v, %s\n%s", u.name, err, out, v.log(u))
	}
	for deadline := time.Now().Add(listenTime); !listening(u.port); time.Sleep(pollTime) {
		if time.Now().After(deadline) {
			v.l.failf("%s does not listen:\n%s", u.name, v.log(u))
		}
	}
	if main := v.mainProgram(u); main != u.program {
		v.l.failf("the main process of %s is %q", u.name, main)
	}
}

func (v *machine) mainPID(u serviceUnit) string {
	return v.run("systemctl", "show", "--value", "-p", "MainPID", u.name)
}

func (v *machine) mainProgram(u serviceUnit) string {
	return v.run("cat", "/proc/"+v.mainPID(u)+"/comm")
}

func (v *machine) state(u serviceUnit) string {
	out, _ := v.command("systemctl", "is-active", u.name).Output()
	return strings.TrimSpace(string(out))
}

// log is the end of a unit's log.
func (v *machine) log(u serviceUnit) string {
	out, _ := v.command("journalctl", "--no-pager", "--output=cat", "-u", u.name, "-n", "30").CombinedOutput()
	return lastOf(string(out), 3000)
}

// client runs programs as clients of a unit, in this way.
func (v *machine) client(u serviceUnit) func(args ...string) string {
	return func(args ...string) string {
		if v.l.way == bare {
			return v.as(u.user, args...)
		}
		words := []string{"GOSMC_DIR=" + u.dir()}
		if text := strings.TrimSpace(strings.TrimPrefix(v.l.unitEnvironment(), "Environment=")); text != "" {
			words = append(words, text)
		}
		return v.as(u.user, append(append(words, "gosmc", "run", "--"), args...)...)
	}
}

// expect has connections to a unit be moved, or not.
func (v *machine) expect(u serviceUnit, want bool) {
	if v.l.way == bare {
		return
	}
	var answer struct {
		Hosts []struct {
			Counters struct{ Connections map[string]int }
		}
	}
	out, err := v.command("runuser", "-u", u.user, "--", "gosmc", "stats", "--json", "--dir", u.dir()).Output()
	moved := 0
	if err == nil {
		v.l.must(json.Unmarshal(out, &answer))
		for _, h := range answer.Hosts {
			moved += h.Counters.Connections["Unix"]
		}
	}
	maps := v.run("cat", "/proc/"+v.mainPID(u)+"/maps")
	if library := strings.Contains(maps, "/libgosmc-"); moved > 0 != want || want && !library {
		v.l.failf("%s: %d connections were moved; it has the library: %t\n%s", u.name, moved, library, v.log(u))
	}
}

// A lack is something that a unit takes from a service.
type lack struct {
	name  string
	text  string // of another drop-in, with %s for the run directory
	want  string // part of the output of --explain; "": connections are moved all the same
	noted bool   // gosmc info says it, too
	only  string // the program that it is for; "": all
}

const nothingExecuted = "NoExecPaths=/usr/local/lib /var %s\n"

var missing = []lack{
	{"nothing of ours may be executed", "NoExecPaths=/\nExecPaths=\nExecPaths=/usr/bin/redis-server /usr/local/bin/gosmc /usr/lib /lib\nNoExecPaths=/var/lib/redis %s\n", "nothing can be executed", true, "redis-server"},
	{"nothing of ours may be executed", nothingExecuted, "nothing can be executed", true, "nginx"},
	{"nothing of ours may be executed", nothingExecuted, "nothing can be executed", true, "postgres"},
	{"the run directory is read-only", "ReadOnlyPaths=%s\n", "%s is read-only for it", false, ""},
	{"no Unix sockets", "RestrictAddressFamilies=~AF_UNIX\n", "address family not supported", true, "nginx"}, // the others need some themselves
	{"no netlink", "RestrictAddressFamilies=\nRestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\n", "", false, ""},
	{"the file system is read-only", "ProtectSystem=strict\nReadWritePaths=/var/lib /var/log /run\n", "", false, ""},
}

// without starts a unit that lacks something: it starts and answers, stays with TCP, its loader
// says nothing, and gosmc says why.
func (v *machine) without(u serviceUnit, m lack) {
	if m.only != "" && m.only != u.program {
		return
	}
	v.dropIn(u, m)
	defer v.dropIn(u, lack{})
	v.start(u)
	u.ask(v.client(u))
	v.expect(u, m.want == "")
	if log := v.log(u); strings.Contains(log, "ERROR: ld.so") {
		v.l.failf("%s, %s: the loader complains:\n%s", u.name, m.name, log)
	}
	if m.want == "" {
		return
	}
	m.want = strings.ReplaceAll(m.want, "%s", u.dir())
	if why := v.explain(u); !strings.Contains(why, m.want) {
		v.l.failf("%s, %s: --explain says %q, want %q in it\n%s", u.name, m.name, why, m.want, v.log(u))
	}
	if info := v.as(u.user, "GOSMC_DIR="+u.dir(), "gosmc", "info"); m.noted && !strings.Contains(info, m.want) {
		v.l.failf("%s, %s: info says nothing of %q:\n%s", u.name, m.name, m.want, info)
	}
}

func (v *machine) dropIn(u serviceUnit, m lack) {
	path := u.file("lacks")
	if m.text == "" {
		v.run("systemctl", "stop", u.name)
		v.run("rm", "-f", path)
	} else {
		text := "[Service]\n" + strings.ReplaceAll(m.text, "%s", u.dir())
		v.run("sh", "-c", fmt.Sprintf("printf %%s \"$0\" > %s", path), text)
	}
	v.run("systemctl", "daemon-reload")
}

// explain is the last line of the explanation that root gets of a connection to a unit, by a
// program of its clients' user.
func (v *machine) explain(u serviceUnit) string {
	out, _ := v.command("env", "GOSMC_DIR="+u.dir(), "gosmc", "run", "--explain", "127.0.0.1:"+strconv.Itoa(u.port), "--user", u.user).CombinedOutput()
	return lastLine(string(out))
}
