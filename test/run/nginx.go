package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

var nginx = &program{
	name: "nginx", what: "static files, proxy_pass, two workers, reload under load; curl and wrk",
	packages: []string{"nginx-light", "curl", "wrk", "openssl"},
	needs:    []string{"nginx", "curl", "wrk", "openssl"},
	run: func(l *lab) {
		// Started by root, the workers have another user, and connections of their own are not
		// moved; then with workers of root.
		l.nginxAs("www-data", false)
		if os.Geteuid() == 0 {
			l.nginxAs("root", true)
		}
	},
}

// An nginxServer is one that serves files and stands before another server.
type nginxServer struct {
	*server
	port, proxy, tls int
}

var nginxFiles = map[string]int{"1k": 1000, "100k": 100_000, "10m": 10_000_000, "empty": 0}

func (l *lab) nginx(user string) *nginxServer {
	n := &nginxServer{port: l.port(), proxy: l.port(), tls: l.port()}
	root := filepath.Join(l.dir, "www-"+user)
	for name, size := range nginxFiles {
		l.random("www-"+user+"/"+name, size)
	}
	key, cert := filepath.Join(l.dir, "key.pem"), filepath.Join(l.dir, "cert.pem")
	l.helper("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
		"-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
	who := ""
	if os.Geteuid() == 0 {
		who = "user " + user + ";"
	}
	conf := l.file("nginx-"+user+".conf", fmt.Sprintf(`%s
daemon off;
pid %s/nginx-%s.pid;
error_log stderr warn;
worker_processes 2;
events { worker_connections 1024; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  client_body_temp_path %[2]s/t1; proxy_temp_path %[2]s/t2; fastcgi_temp_path %[2]s/t3; uwsgi_temp_path %[2]s/t4; scgi_temp_path %[2]s/t5;
  upstream behind { server 127.0.0.1:%[4]d; keepalive 16; }
  server {
    listen 127.0.0.1:%[4]d; listen [::1]:%[4]d;
    root %[5]s;
  }
  server {
    listen 127.0.0.1:%[6]d;
    location / { proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection ""; }
    location /fresh/ { proxy_pass http://127.0.0.1:%[4]d/; }
  }
  server {
    listen 127.0.0.1:%[7]d ssl http2;
    ssl_certificate %[8]s; ssl_certificate_key %[9]s;
    root %[5]s;
  }
}
`, who, l.dir, user, n.port, root, n.proxy, n.tls, cert, key))
	n.server = l.serve(n.port, "nginx", "-c", conf, "-p", l.dir, "-e", "stderr")
	n.signal = syscall.SIGQUIT
	return n
}

func (l *lab) nginxAs(user string, proxyMoves bool) {
	n := l.nginx(user)
	url := func(port int, path string) string { return fmt.Sprintf("http://127.0.0.1:%d/%s", port, path) }
	out := filepath.Join(l.dir, "out")
	for name := range nginxFiles {
		for _, u := range []string{url(n.port, name), url(n.proxy, name), url(n.proxy, "fresh/"+name), fmt.Sprintf("http://[::1]:%d/%s", n.port, name)} {
			os.Remove(out)
			l.client("curl", "-sS", "--fail", "-g", "-o", out, u)
			l.result("the same as the file: "+regexp.MustCompile(`:\d+/`).ReplaceAllString(u, "/")+" "+user, l.sum(out) == l.sum(filepath.Join(l.dir, "www-"+user, name)))
		}
	}
	l.result("not found "+user, l.finish(l.command("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", url(n.port, "nothing"))))
	l.result("a range "+user, sumOf(l.client("curl", "-sS", "-r", "1000-250000", url(n.port, "10m"))))

	wrk := func(u string) {
		text := l.client("wrk", "-t2", "-c64", "-d2s", "--timeout", "10s", u)
		l.result("wrk: no errors "+user, !strings.Contains(text, "Socket errors") && !strings.Contains(text, "Non-2xx"))
		if strings.Contains(text, "Socket errors") || strings.Contains(text, "Non-2xx") {
			l.note("wrk %s: %s", u, text)
		}
	}
	wrk(url(n.port, "1k"))
	wrk(url(n.port, "100k"))
	wrk(url(n.proxy, "1k"))
	l.shown(n.proxy)
	l.shown(n.port)
	if proxyMoves {
		l.counted(64 + 200) // wrk's, and nginx's own
	} else {
		l.counted(64 + 128)
	}

	// New connections come while workers go: none may fail.
	script := l.file("reload.sh", `n=0
while [ $n -lt 200 ]; do
  curl -sS --fail -o /dev/null "$1" || exit 1
  n=$((n + 1))
  [ $((n % 40)) = 0 ] && kill -HUP "$2"
done
echo $n
`)
	l.result("reloaded under load "+user, l.client("sh", script, url(n.port, "100k"), strconv.Itoa(n.cmd.Process.Pid)))
}

var curl = &program{
	name: "curl", what: "HTTPS, HTTP/2, a large upload, many at a time, of nginx",
	packages: []string{"curl", "nginx-light", "openssl"},
	needs:    []string{"curl", "nginx", "openssl"},
	run: func(l *lab) {
		n := l.nginx("www-data")
		ca := filepath.Join(l.dir, "cert.pem")
		out := filepath.Join(l.dir, "out")
		for name := range nginxFiles {
			for _, version := range []string{"--http1.1", "--http2"} {
				os.Remove(out)
				text := l.client("curl", "-sS", "--fail", version, "--cacert", ca, "-w", "%{http_version} %{ssl_verify_result}", "-o", out, fmt.Sprintf("https://127.0.0.1:%d/%s", n.tls, name))
				l.result(version+" "+name, text+fmt.Sprint(l.sum(out) == l.sum(filepath.Join(l.dir, "www-www-data", name))))
			}
		}
		l.client("curl", "-sS", "--fail", "--cacert", ca, "--parallel", "--parallel-max", "30", "-o", filepath.Join(l.dir, "part-#1"), fmt.Sprintf("https://localhost:%d/100k?[1-100]", n.tls), "--http1.1", "--resolve", fmt.Sprintf("localhost:%d:127.0.0.1", n.tls))
		same := 0
		for i := range 100 {
			if l.sum(filepath.Join(l.dir, fmt.Sprint("part-", i+1))) == l.sum(filepath.Join(l.dir, "www-www-data", "100k")) {
				same++
			}
		}
		l.result("of 100 at a time are the same", same)
		l.client("curl", "-sS", "--fail", "--limit-rate", "8M", "--cacert", ca, "-o", out, fmt.Sprintf("https://127.0.0.1:%d/10m", n.tls))
		l.result("slowly", l.sum(out))
		text := l.finish(l.command("curl", "-sS", "-o", "/dev/null", "-w", "%{remote_ip} %{local_ip} %{num_connects}", fmt.Sprintf("http://localhost:%d/1k", n.port)))
		l.result("addresses", text)
		cmd := l.command("curl", "-sS", "-o", "/dev/null", "--connect-timeout", "5", fmt.Sprintf("http://127.0.0.1:%d/", l.port()))
		l.result("a port on which nobody listens", isExit(cmd.Run(), 7))
		l.shown(n.tls)
	},
}
