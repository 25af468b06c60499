package main

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed cluster.js
var clusterJS string

var node = &program{
	name: "node", what: "an HTTP server with two workers of cluster, which get connections as descriptors; a client of Node",
	packages: []string{"nodejs"},
	needs:    []string{"node"},
	run: func(l *lab) {
		script := l.file("cluster.js", clusterJS)
		port := l.port()
		l.serve(port, "node", script, "server", strconv.Itoa(port))
		l.result("answers", strings.TrimSpace(l.client("node", script, "client", strconv.Itoa(port))))
		l.shown(port)
		l.counted(10)
	},
}

//go:embed Talk.java
var talkJava string

var java = &program{
	name: "java", what: "servers with threads and with a selector, clients with sockets and channels, a timeout",
	packages: []string{"default-jdk-headless"},
	needs:    []string{"java", "javac"},
	run: func(l *lab) {
		l.helper("javac", "-d", l.dir, l.file("Talk.java", talkJava))
		plain, nio := l.port(), l.port()
		args := func(what string) []string {
			return []string{"-Xmx512m", "-cp", filepath.Clean(l.dir), "Talk", what, strconv.Itoa(plain), strconv.Itoa(nio)}
		}
		s := l.serve(plain, "java", args("server")...)
		l.awaitListener(nio, s)
		for i := range 2 {
			l.result(fmt.Sprint("answers ", i), l.client("java", args("client")...))
		}
		l.shown(plain)
		l.shown(nio)
		l.counted(2 * (20 + 20 + 2))
	},
}
