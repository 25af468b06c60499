package main

import (
	"fmt"
	"os"
	"path/filepath"
)

var socat = &program{
	name: "socat", what: "an echo server that forks, a half close, a chain of two, IPv6, TLS, a program behind a socket",
	packages: []string{"socat", "openssl"},
	needs:    []string{"socat", "openssl"},
	run: func(l *lab) {
		in := l.random("in", 20_000_000)
		out := filepath.Join(l.dir, "out")
		// through sends a file there and back. Before the end, where the client shuts its half
		// down, ss is looked at.
		through := func(what, address string, ports ...int) {
			f, err := os.Create(out)
			l.must(err)
			defer f.Close()
			cmd := l.command("socat", "-t", "30", "-", address)
			cmd.Stdout = f
			to, err := cmd.StdinPipe()
			l.must(err)
			s := l.start(cmd)
			b, err := os.ReadFile(in)
			l.must(err)
			_, err = to.Write(b)
			l.must(err)
			for _, port := range ports {
				l.moved(port, 1)
			}
			to.Close()
			l.must(s.wait(l))
			l.result(what, l.sum(out) == l.sum(in))
		}
		port, second, six, secure, late := l.port(), l.port(), l.port(), l.port(), l.port()
		l.serve(port, "socat", "-t", "30", fmt.Sprintf("TCP4-LISTEN:%d,fork,reuseaddr,bind=127.0.0.1", port), "EXEC:cat")
		through("echo", fmt.Sprintf("TCP4:127.0.0.1:%d", port), port)
		l.serve(second, "socat", "-t", "30", fmt.Sprintf("TCP4-LISTEN:%d,fork,reuseaddr", second), fmt.Sprintf("TCP4:127.0.0.1:%d", port))
		through("a chain", fmt.Sprintf("TCP4:127.0.0.1:%d", second), second, port)
		l.serve(six, "socat", "-t", "30", fmt.Sprintf("TCP6-LISTEN:%d,fork,reuseaddr", six), "SYSTEM:cat")
		through("IPv6", fmt.Sprintf("TCP6:[::1]:%d", six), six)
		through("IPv4 to a listener of IPv6", fmt.Sprintf("TCP4:127.0.0.1:%d", six), six)
		key := filepath.Join(l.dir, "both.pem")
		l.helper("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", filepath.Join(l.dir, "cert.pem"), "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
		l.serve(secure, "socat", "-t", "30", fmt.Sprintf("OPENSSL-LISTEN:%d,fork,reuseaddr,verify=0,cert=%s,key=%s", secure, filepath.Join(l.dir, "cert.pem"), key), "EXEC:cat")
		through("TLS", fmt.Sprintf("OPENSSL:localhost:%d,pf=ip4,cafile=%s", secure, filepath.Join(l.dir, "cert.pem")), secure)
		// The addresses that the program behind it sees.
		l.serve(late, "socat", fmt.Sprintf("TCP4-LISTEN:%d,fork,reuseaddr,bind=127.0.0.1,nodelay,keepalive", late), "SYSTEM:echo $SOCAT_SOCKADDR $SOCAT_PEERADDR")
		l.result("addresses", l.client("socat", "-u", fmt.Sprintf("TCP4:127.0.0.1:%d,rcvbuf=100000,linger=1,readbytes=1000000", late), "-"))
	},
}
