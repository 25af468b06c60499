package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Servers that have the kernel accept only clients that have sent something: TCP_DEFER_ACCEPT. A
// client of a moved connection sends nothing over TCP.

// fetches has curl get files of a server, one connection for each, and sends it something. Each
// answer has a bound: one that was never accepted waits for ever.
func (l *lab) fetches(name string, port int, files map[string]string) {
	out := filepath.Join(l.dir, "out")
	for file, path := range files {
		for i := range 5 {
			os.Remove(out)
			l.client("curl", "-sS", "--fail", "--max-time", "20", "-o", out, fmt.Sprintf("http://127.0.0.1:%d/%s", port, file))
			l.result(fmt.Sprint(name, " ", file, " ", i), l.sum(out) == l.sum(path))
		}
	}
	l.result(name+" not found", l.client("curl", "-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}", fmt.Sprintf("http://127.0.0.1:%d/nothing", port)))
	l.client("curl", "-sS", "--fail", "--max-time", "40", "--parallel", "--parallel-max", "20", "-o", filepath.Join(l.dir, "part-#1"), fmt.Sprintf("http://127.0.0.1:%d/small?[1-60]", port))
	same := 0
	for i := range 60 {
		if l.sum(filepath.Join(l.dir, fmt.Sprint("part-", i+1))) == l.sum(files["small"]) {
			same++
		}
	}
	l.result(name+" of 60 at a time are the same", same)
	l.shown(port)         // a client that says nothing is accepted, too
	l.counted(15 + 1 + 1) // curl may do those in parallel on a few connections
}

// pages are the files to fetch, in a directory of their own.
func (l *lab) pages() (dir string, files map[string]string) {
	files = map[string]string{"small": l.random("pages/small", 900), "large": l.random("pages/large", 3_000_000), "empty": l.random("pages/empty", 0)}
	return filepath.Join(l.dir, "pages"), files
}

var apache2 = &program{
	name: "apache2", what: "with Debian's configuration, which defers accept; curl",
	packages: []string{"apache2", "curl"},
	needs:    []string{"apache2", "curl", "/etc/apache2/apache2.conf"},
	root:     true,
	run: func(l *lab) {
		dir, files := l.pages()
		port := l.port()
		conf := filepath.Join(l.dir, "apache2")
		l.helper("cp", "-r", "/etc/apache2", conf)
		l.file("apache2/ports.conf", fmt.Sprintf("Listen 127.0.0.1:%d\n", port))
		l.helper("sed", "-i", fmt.Sprintf("s|/etc/apache2|%s|; s|/var/www/html|%s|; s|/var/www/|%[2]s/|; s|\\*:80|*:%d|", conf, dir, port),
			filepath.Join(conf, "apache2.conf"), filepath.Join(conf, "sites-available", "000-default.conf"))
		cmd := l.command("apache2", "-d", conf, "-f", filepath.Join(conf, "apache2.conf"), "-D", "FOREGROUND")
		cmd.Env = append(cmd.Env, "APACHE_RUN_USER=www-data", "APACHE_RUN_GROUP=www-data", "APACHE_PID_FILE="+filepath.Join(l.dir, "apache2.pid"),
			"APACHE_RUN_DIR="+l.dir, "APACHE_LOCK_DIR="+l.dir, "APACHE_LOG_DIR="+l.dir)
		s := l.serveCommand(port, cmd)
		l.fetches("apache2", port, files)
		out := l.client("curl", "-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{num_connects}", fmt.Sprintf("http://127.0.0.1:%d/small", port), "-o", "/dev/null", fmt.Sprintf("http://127.0.0.1:%d/large", port))
		l.result("kept alive", out)
		s.signal = syscall.SIGTERM
	},
}

var uwsgi = &program{
	name: "uwsgi", what: "a program in Python by HTTP; curl",
	packages: []string{"uwsgi", "uwsgi-plugin-python3", "curl"},
	needs:    []string{"uwsgi", "curl", "/usr/lib/uwsgi/plugins/python3*_plugin.so"},
	run: func(l *lab) {
		dir, files := l.pages()
		port := l.port()
		app := l.file("app.py", `import os
def application(environ, start_response):
    path = os.path.join(`+strconv.Quote(dir)+`, os.path.basename(environ["PATH_INFO"]))
    if not os.path.isfile(path):
        start_response("404 Not Found", [])
        return [b"nothing"]
    with open(path, "rb") as f:
        body = f.read()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
`)
		args := []string{"--plugin", "python3", "--http-socket", fmt.Sprintf("127.0.0.1:%d", port), "--wsgi-file", app, "--processes", "2", "--master", "--die-on-term", "--disable-logging"}
		l.serve(port, "uwsgi", args...)
		l.fetches("uwsgi", port, files)
	},
}

var lighttpd = &program{
	name: "lighttpd", what: "files, with accept deferred; curl",
	packages: []string{"lighttpd", "curl"},
	needs:    []string{"lighttpd", "curl"},
	run: func(l *lab) {
		dir, files := l.pages()
		port := l.port()
		conf := l.file("lighttpd.conf", fmt.Sprintf(`server.document-root = %q
server.port = %d
server.bind = "127.0.0.1"
server.defer-accept = 30
`, dir, port))
		s := l.serve(port, "lighttpd", "-D", "-f", conf)
		s.signal = syscall.SIGTERM
		l.fetches("lighttpd", port, files)
	},
}

var deferred = &program{
	name: "deferred", what: "haproxy with defer-accept before nginx with a deferred listener; curl",
	packages: []string{"haproxy", "nginx-light", "curl"},
	needs:    []string{"haproxy", "nginx", "curl"},
	run: func(l *lab) {
		dir, files := l.pages()
		port, proxy := l.port(), l.port()
		who := ""
		if os.Geteuid() == 0 {
			who = "user root;"
		}
		conf := l.file("nginx.conf", fmt.Sprintf(`%s
daemon off;
pid %s/nginx.pid;
error_log stderr warn;
worker_processes 2;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path %[2]s/t1; proxy_temp_path %[2]s/t2; fastcgi_temp_path %[2]s/t3; uwsgi_temp_path %[2]s/t4; scgi_temp_path %[2]s/t5;
  server { listen 127.0.0.1:%[3]d deferred; root %[4]s; }
}
`, who, l.dir, port, dir))
		n := l.serve(port, "nginx", "-c", conf, "-p", l.dir, "-e", "stderr")
		n.signal = syscall.SIGQUIT
		l.fetches("nginx", port, files)
		tcp, behind := l.port(), l.port()
		cfg := l.file("haproxy.cfg", fmt.Sprintf(`defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend in
  bind 127.0.0.1:%[1]d defer-accept
  bind 127.0.0.1:%[4]d accept-proxy
  http-response set-header X-To %%[dst]:%%[dst_port]
  http-response set-header X-Here yes if { dst 127.0.0.1 }
  default_backend out
backend out
  server here 127.0.0.1:%[2]d
listen tcp
  mode tcp
  bind 127.0.0.1:%[3]d
  server here 127.0.0.1:%[4]d send-proxy
`, proxy, port, tcp, behind))
		h := l.serve(proxy, "haproxy", "-db", "-f", cfg)
		h.signal = syscall.SIGUSR1
		l.fetches("haproxy", proxy, files)
		// Where a connection was to: haproxy asks SO_ORIGINAL_DST first, and tells the next one by PROXY.
		for what, port := range map[string]int{"itself": proxy, "another one": tcp} {
			head := strings.ToLower(l.client("curl", "-sS", "--max-time", "20", "-o", "/dev/null", "-D", "-", fmt.Sprintf("http://127.0.0.1:%d/small", port)))
			l.result("haproxy knows where to, "+what, strings.Contains(head, fmt.Sprintf("x-to: 127.0.0.1:%d\r\n", port)))
			l.result("haproxy's ACL knows it, "+what, strings.Contains(head, "x-here: yes"))
		}
	},
}
