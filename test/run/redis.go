package main

import (
	"fmt"
	"strconv"
	"strings"
)

var redis = &program{
	name: "redis", what: "redis-server with a replica, redis-cli, redis-benchmark with and without a pipeline",
	packages: []string{"redis-server", "redis-tools"},
	needs:    []string{"redis-server", "redis-cli", "redis-benchmark"},
	run: func(l *lab) {
		port, replica := l.port(), l.port()
		start := func(port int, more ...string) {
			args := []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no", "--enable-debug-command", "local",
				"--dir", l.dir, "--repl-diskless-sync-delay", "0", "--dbfilename", fmt.Sprint(port, ".rdb")}
			l.serve(port, "redis-server", append(args, more...)...)
		}
		start(port)
		l.shown(port)
		cli := func(port int, args ...string) string {
			return strings.TrimSpace(l.client("redis-cli", append([]string{"-p", strconv.Itoa(port)}, args...)...))
		}
		l.result("a value", cli(port, "set", "greeting", "hello")+cli(port, "get", "greeting"))

		var load strings.Builder
		for i := range 20000 {
			fmt.Fprintf(&load, "SET key:%d %s\r\n", i, strings.Repeat(strconv.Itoa(i), 1+i%40))
		}
		cmd := l.command("redis-cli", "-p", strconv.Itoa(port), "--pipe")
		cmd.Stdin = strings.NewReader(load.String())
		l.result("loaded", lastLine(l.finish(cmd)))
		big := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
		cmd = l.command("redis-cli", "-p", strconv.Itoa(port), "-x", "set", "big")
		cmd.Stdin = strings.NewReader(big)
		l.finish(cmd)
		l.result("a large value", sumOf(cli(port, "get", "big")) == sumOf(big))
		digest := cli(port, "debug", "digest")
		l.result("digest", digest)

		start(replica, "--replicaof", "127.0.0.1 "+strconv.Itoa(port))
		l.result("replicas", cli(port, "wait", "1", "0")) // until it has everything
		l.result("digest of the replica", cli(replica, "debug", "digest") == digest)

		benchmark := func(args ...string) {
			args = append([]string{"-p", strconv.Itoa(port), "-c", "50", "-q", "--csv", "-n"}, args...)
			out := l.client("redis-benchmark", args...)
			l.result("benchmark "+strings.Join(args[6:], " "), strings.Count(out, "\n")) // a header, and a line for each test
		}
		benchmark("50000", "-t", "set,get")
		benchmark("200000", "-t", "set,get", "-P", "16")
		benchmark("20000", "-t", "set,get", "-d", "10000", "--threads", "2")
		benchmark("5000", "-t", "lrange_300")
		l.counted(300)
		l.result("clients left", cli(port, "client", "list", "type", "normal") != "" && strings.Count(cli(port, "client", "list", "type", "normal"), "\n") == 0)
	},
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return strings.TrimSpace(s[strings.LastIndex(s, "\n")+1:])
}
