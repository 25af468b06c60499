package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var postgres = &program{
	name: "postgres", what: "psql with large copies, pgbench with and without -C, prepared, eight at a time",
	packages: []string{"postgresql"},
	needs:    []string{"/usr/lib/postgresql/*/bin/initdb", "/usr/lib/postgresql/*/bin/postgres", "/usr/lib/postgresql/*/bin/psql", "/usr/lib/postgresql/*/bin/pgbench"},
	run: func(l *lab) {
		bin := filepath.Dir(found("/usr/lib/postgresql/*/bin/postgres"))
		data := filepath.Join(l.dir, "data")
		l.must(os.Mkdir(data, 0o700))
		if os.Geteuid() == 0 {
			l.must(os.Chown(data, nobody, nobody))
		}
		l.finish(l.asNobody(l.plain(bin+"/initdb", "-D", data, "-A", "trust", "-U", "test", "--no-sync", "--locale=C", "-E", "UTF8")))
		port := l.port()
		p := strconv.Itoa(port)
		s := l.serveCommand(port, l.asNobody(l.command(bin+"/postgres", "-D", data, "-p", p, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off")))
		s.signal = syscall.SIGINT // do not wait for clients
		to := []string{"-h", "127.0.0.1", "-p", p, "-U", "test"}
		ready := func() bool {
			return l.asNobody(l.plain(bin+"/psql", append(to, "-c", "select 1", "postgres")...)).Run() == nil
		}
		for !ready() { // it listens before it is ready
			if l.ctx.Err() != nil {
				l.failf("postgres does not answer")
			}
			time.Sleep(pollTime)
		}
		psql := func(stdin, sql string) string {
			cmd := l.asNobody(l.command(bin+"/psql", append(to, "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", sql, "postgres")...))
			cmd.Stdin = strings.NewReader(stdin)
			return strings.TrimSpace(l.finish(cmd))
		}
		psql("", "create table t (n int, s text)")
		var rows strings.Builder
		for i := range 100_000 {
			rows.WriteString(strconv.Itoa(i) + "\t" + strings.Repeat(strconv.Itoa(i), 1+i%30) + "\n")
		}
		psql(rows.String(), "copy t from stdin")
		l.result("rows", psql("", "select count(*), sum(n), md5(string_agg(s, ',' order by n)) from t"))
		l.result("copied out", sumOf(psql("", "copy (select * from t order by n) to stdout")) == sumOf(strings.TrimSpace(rows.String())))
		l.result("an error", l.asNobody(l.command(bin+"/psql", append(to, "-qX", "-c", "select no_such_thing", "postgres")...)).Run() != nil)
		l.result("addresses", psql("", "select inet_server_addr(), inet_client_addr()"))

		bench := func(args ...string) string {
			out := l.finish(l.asNobody(l.command(bin+"/pgbench", append(append(to, args...), "postgres")...)))
			for line := range strings.Lines(out) {
				if strings.Contains(line, "failed") {
					return strings.TrimSpace(line)
				}
			}
			return "no line about failures"
		}
		bench("-i", "-q", "-s", "2")
		l.result("pgbench -S", bench("-n", "-S", "-c", "8", "-j", "2", "-T", "2"))
		l.shown(port, l.asNobody)
		l.counted(8)
		l.result("pgbench -M prepared", bench("-n", "-c", "8", "-j", "2", "-t", "100", "-M", "prepared"))
		l.result("pgbench -C", bench("-n", "-C", "-c", "4", "-t", "30"))
		l.result("the books", psql("", "select sum(abalance) = (select sum(delta) from pgbench_history) and (select count(*) from pgbench_history) = 920 from pgbench_accounts"))
	},
}
