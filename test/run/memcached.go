package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

var memcached = &program{
	name: "memcached", what: "four threads; memccp and memccat, memcslap, and memcapable's tests of both protocols",
	packages: []string{"memcached", "libmemcached-tools"},
	needs:    []string{"memcached", "memccp", "memccat", "memcslap", "memccapable"},
	run: func(l *lab) {
		port := l.port()
		p := strconv.Itoa(port)
		l.serve(port, "memcached", "-u", "root", "-l", "127.0.0.1", "-p", p, "-U", "0", "-t", "4", "-m", "256", "-I", "16m")
		servers := "--servers=127.0.0.1:" + p
		for name, size := range map[string]int{"small": 100, "middle": 60_000, "large": 900_000} {
			path := l.random(name, size)
			l.client("memccp", servers, path)
			out := filepath.Join(l.dir, name+".out")
			l.client("memccat", servers, "--file="+out, name)
			l.result(name, l.sum(out) == l.sum(path))
		}
		for _, flag := range []string{"-a", "-b"} {
			text := l.client("memccapable", "-h", "127.0.0.1", "-p", p, flag)
			l.result("memcapable "+flag, fmt.Sprint(strings.Count(text, "[pass]"), " passed, ", strings.Count(text, "[FAIL]"), " failed"))
		}
		l.client("memcslap", servers, "--concurrency=30", "--execute-number=3000", "--test=get")
		l.client("memcslap", servers, "--concurrency=30", "--execute-number=3000", "--test=set", "--non-blocking")
		l.shown(port)
		l.counted(2 * 30)
	},
}
