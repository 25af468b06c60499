package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

var haproxy = &program{
	name: "haproxy", what: "between curl and nginx: as HTTP and as TCP, with splice, health checks, a backend that is not there",
	packages: []string{"haproxy", "nginx-light", "curl", "wrk", "openssl"},
	needs:    []string{"haproxy", "nginx", "curl", "wrk", "openssl"},
	run: func(l *lab) {
		n := l.nginx("www-data")
		http, tcp := l.port(), l.port()
		conf := l.file("haproxy.cfg", fmt.Sprintf(`global
  maxconn 1000
defaults
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  option splice-auto
  retries 3
  option redispatch
listen http
  mode http
  bind 127.0.0.1:%d
  balance roundrobin
  server here 127.0.0.1:%d check inter 200ms
  server gone 127.0.0.1:%d
listen tcp
  mode tcp
  bind 127.0.0.1:%d
  server here 127.0.0.1:%[2]d
`, http, n.port, l.port(), tcp))
		s := l.serve(http, "haproxy", "-db", "-f", conf)
		s.signal = syscall.SIGUSR1 // end softly
		out := filepath.Join(l.dir, "out")
		for name := range nginxFiles {
			for what, port := range map[string]int{"http": http, "tcp": tcp} {
				for i := range 3 {
					os.Remove(out)
					l.client("curl", "-sS", "--fail", "-o", out, fmt.Sprintf("http://127.0.0.1:%d/%s", port, name))
					l.result(fmt.Sprint(what, " ", name, " ", i), l.sum(out) == l.sum(filepath.Join(l.dir, "www-www-data", name)))
				}
			}
		}
		for what, port := range map[string]int{"http": http, "tcp": tcp} {
			text := l.client("wrk", "-t2", "-c32", "-d1s", "--timeout", "10s", fmt.Sprintf("http://127.0.0.1:%d/1k", port))
			l.result("wrk over "+what+": no errors", !strings.Contains(text, "Socket errors") && !strings.Contains(text, "Non-2xx"))
			l.shown(port)
		}
		l.shown(n.port)
		l.counted(3 * 32) // wrk's, and those to nginx of the second
	},
}
