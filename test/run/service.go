package main

import (
	"encoding/json"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/child"
	"golang.org/x/sys/unix"
)

const redisUnit = "/lib/systemd/system/redis-server.service"

var service = &program{
	name: "service", what: "redis-server with the restrictions of Debian's unit and the drop-in of docs/run.md, and with a part of that missing",
	packages: []string{"redis-server", "redis-tools"},
	needs:    []string{"redis-server", "redis-cli", redisUnit},
	root:     true,
	run: func(l *lab) {
		u, err := user.Lookup("redis")
		l.must(err)
		uid, err := strconv.Atoi(u.Uid)
		l.must(err)
		gid, err := strconv.Atoi(u.Gid)
		l.must(err)
		prefix := filepath.Join(l.dir, "prefix")
		gosmc := filepath.Join(prefix, "bin/gosmc")
		l.must(os.MkdirAll(filepath.Dir(gosmc), 0o755))
		b, err := os.ReadFile(l.gosmc)
		l.must(err)
		l.must(child.WriteProgram(gosmc, b))
		data := filepath.Join(l.dir, "data")
		l.must(os.Mkdir(data, 0o755))

		// The case tries the restrictions that the installed unit names.
		noExec, err := unitOf(redisUnit, "NoExecPaths")
		l.must(err)
		paths, err := unitOf(redisUnit, "ExecPaths")
		l.must(err)
		families, err := unitOf(redisUnit, "RestrictAddressFamilies")
		l.must(err)
		if !slices.Equal(noExec, []string{"/"}) || len(paths) == 0 || slices.Contains(families, "AF_NETLINK") || len(families) != 3 {
			l.note("the unit of redis-server has other restrictions: NoExecPaths %v, ExecPaths %v, RestrictAddressFamilies %v", noExec, paths, families)
		}
		for _, installed := range []bool{true, false} {
			what := "installed"
			if !installed {
				what = "without a library"
				l.must(os.RemoveAll(filepath.Join(prefix, "lib/gosmc")))
			} else {
				l.finish(l.plain(gosmc, "run-library", filepath.Join(prefix, "lib/gosmc")))
			}
			port := l.port()
			dir := "/run/gosmc-redis"
			c := confinement{
				UID: uid, GID: gid, Exec: append(slices.Clone(paths), prefix, found("redis-cli")), Writable: []string{data}, Runtime: []string{"/run/redis", dir},
				Families: []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_UNIX}, Forbidden: forbidden(),
			}
			conf := l.file("redis.conf", "daemonize yes\nport "+strconv.Itoa(port)+"\nbind 127.0.0.1\nsave \"\"\ndir "+data+"\n")
			c.Args = []string{found("redis-server"), conf, "--daemonize", "no"}
			for _, v := range l.environ() {
				if !strings.HasPrefix(v, "GOSMC_DIR=") && !strings.HasPrefix(v, "HOME=") && !strings.HasPrefix(v, "XDG_") {
					c.Env = append(c.Env, v)
				}
			}
			c.Env = append(c.Env, "GOSMC_DIR="+dir, "HOME=/var/lib/redis")
			if l.way != bare {
				c.Args = append([]string{gosmc, "run", "--"}, c.Args...)
			}
			text, err := json.Marshal(c)
			l.must(err)
			self, err := os.Executable()
			l.must(err)
			server := l.serveCommand(port, l.plain(self, "-confine", string(text)))
			// Clients are of the same user, in the mount namespace of the service, where its run
			// directory is.
			client := func(args ...string) string {
				words := append([]string{found("redis-cli"), "-p", strconv.Itoa(port)}, args...)
				if l.way != bare {
					words = append([]string{gosmc, "run", "--"}, words...)
				}
				cmd := l.plain("nsenter", append([]string{"--target", strconv.Itoa(server.cmd.Process.Pid), "--mount", "--setuid", u.Uid, "--setgid", u.Gid, "--"},
					words...)...)
				cmd.Dir, cmd.Env = "/", c.Env
				if installed || l.way == bare {
					return strings.TrimSpace(l.finish(cmd))
				}
				var out strings.Builder
				cmd.Stdout = &out // and gosmc's messages are ignored
				l.finish(cmd)
				return strings.TrimSpace(out.String())
			}
			l.result(what+": a value", client("set", "greeting", "hello")+client("get", "greeting"))
			big := strings.Repeat("0123456789abcdef", 1<<15)
			l.result(what+": a large value", client("set", "big", big[:100000])+strconv.FormatBool(sumOf(client("get", "big")) == sumOf(big[:100000])))
			has, moved := l.hasLibrary(server), l.movedIn(server, u)
			if l.way.moves() && (has != installed || (moved >= 4) != installed) || !l.way.moves() && moved > 0 {
				l.failf("%s: the server has the library: %t; %d connections were moved", what, has, moved)
			}
			l.must(server.stop())
			said := server.output.String()
			if lines := strings.Count(said, "stays with TCP"); l.way.moves() && !installed && lines != 1 {
				l.failf("%d lines say why it stays with TCP, want one:\n%s", lines, lastOf(said, 1500))
			}
			if strings.Contains(said, "ERROR: ld.so") {
				l.failf("the loader complains:\n%s", lastOf(said, 1500))
			}
		}
	},
}

// movedIn is how many connections were moved, as the supervisor of a service tells those in its
// mount namespace.
func (l *lab) movedIn(s *server, u *user.User) int {
	if l.way == bare {
		return 0
	}
	cmd := l.plain("nsenter", "--target", strconv.Itoa(s.cmd.Process.Pid), "--mount", "--setuid", u.Uid, "--setgid", u.Gid, "--",
		filepath.Join(l.dir, "prefix/bin/gosmc"), "stats", "--json", "--dir", "/run/gosmc-redis")
	cmd.Dir = "/"
	var answer struct {
		Hosts []struct {
			Counters struct{ Connections map[string]int }
		}
	}
	var out strings.Builder
	cmd.Stdout = &out
	if cmd.Run() != nil {
		return 0 // there is no supervisor
	}
	l.must(json.Unmarshal([]byte(out.String()), &answer))
	all := 0
	for _, h := range answer.Hosts {
		all += h.Counters.Connections["Unix"]
	}
	return all
}

// hasLibrary reports whether our library is in a server.
func (l *lab) hasLibrary(s *server) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "maps"))
	l.must(err)
	return strings.Contains(string(text), "/libgosmc-")
}
