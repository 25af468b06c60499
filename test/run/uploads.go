package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// A sink takes uploads and answers with their SHA-256: nginx before php-fpm, and a proxy before
// that. It has files, too.
type sink struct {
	port, buffered, direct int // of the server itself, and of proxies that keep an upload until it is whole, or not
	root                   string
}

var sinkFiles = map[string]int{"1k": 1000, "1m": 1_000_000, "20m": 20_000_000}

func (l *lab) sink() *sink {
	s := &sink{port: l.port(), buffered: l.port(), direct: l.port(), root: filepath.Join(l.dir, "sink")}
	fpm := l.port()
	for name, size := range sinkFiles {
		l.random("sink/"+name, size)
	}
	script := l.file("sink/sum.php", "<?php echo hash_file('sha256', 'php://input');\n")
	who, user, args := "", "", []string{"-F", "-n"}
	if os.Geteuid() == 0 { // with workers of another user nginx's own connections would stay TCP
		who, user, args = "user root;", "user = root\ngroup = root", append(args, "-R")
	}
	pool := l.file("fpm.conf", fmt.Sprintf(`[global]
error_log = /dev/stderr
daemonize = no
[www]
%s
listen = 127.0.0.1:%d
pm = static
pm.max_children = 3
php_admin_value[post_max_size] = 100M
`, user, fpm))
	php := l.serve(fpm, "/usr/sbin/php-fpm*", append(args, "-y", pool)...)
	php.signal = syscall.SIGQUIT
	conf := l.file("sink.conf", fmt.Sprintf(`%s
daemon off;
pid %s/sink.pid;
error_log stderr error;
worker_processes 2;
events { worker_connections 1024; }
http {
  access_log off;
  sendfile on;
  client_max_body_size 0;
  client_body_temp_path %[2]s/t1; proxy_temp_path %[2]s/t2; fastcgi_temp_path %[2]s/t3; uwsgi_temp_path %[2]s/t4; scgi_temp_path %[2]s/t5;
  server {
    listen 127.0.0.1:%[3]d;
    root %[4]s;
    location = /sum {
      fastcgi_pass 127.0.0.1:%[5]d;
      fastcgi_param SCRIPT_FILENAME %[6]s;
      fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param CONTENT_TYPE $content_type;
      fastcgi_param CONTENT_LENGTH $content_length;
    }
  }
  server { listen 127.0.0.1:%[7]d; location / { proxy_pass http://127.0.0.1:%[3]d; } }
  server { listen 127.0.0.1:%[8]d; location / { proxy_pass http://127.0.0.1:%[3]d; proxy_request_buffering off; proxy_http_version 1.1; } }
}
`, who, l.dir, s.port, s.root, fpm, script, s.buffered, s.direct))
	n := l.serve(s.port, "nginx", "-c", conf, "-p", l.dir, "-e", "stderr")
	n.signal = syscall.SIGQUIT
	return s
}

// upload sends a file, and returns whether it has come as it is.
func (l *lab) upload(s *sink, port int, name string, more ...string) bool {
	args := append([]string{"-sS", "--fail", "--max-time", "60", "-H", "Expect:", "-H", "Content-Type: application/octet-stream",
		"--data-binary", "@" + filepath.Join(s.root, name)}, more...)
	return l.client("curl", append(args, fmt.Sprintf("http://127.0.0.1:%d/sum", port))...) == l.sum(filepath.Join(s.root, name))
}

// download fetches a file, and returns whether it has come as it is.
func (l *lab) download(s *sink, port int, name, out string) bool {
	l.client("curl", "-sS", "--fail", "--max-time", "60", "-o", out, fmt.Sprintf("http://127.0.0.1:%d/%s", port, name))
	file, _, _ := strings.Cut(name, "?")
	return l.sum(out) == l.sum(filepath.Join(s.root, file))
}

// atATime does something several times at a time, and returns how often it was right.
func (l *lab) atATime(n int, do func(i int) bool) (right int) {
	var wait sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for i := range n {
		wait.Go(func() {
			var ok bool
			err := l.try(func() { ok = do(i) })
			mu.Lock()
			defer mu.Unlock()
			if ok {
				right++
			}
			if failed == nil {
				failed = err
			}
		})
	}
	wait.Wait()
	l.must(failed)
	return right
}

var uploads = &program{
	name: "uploads", what: "through nginx, whole or as they come, to php-fpm: one by one, four at a time, slowly",
	packages: []string{"nginx-light", "curl", "php-fpm"},
	needs:    []string{"nginx", "curl", "/usr/sbin/php-fpm*"},
	run: func(l *lab) {
		s := l.sink()
		ports := map[string]int{"none": s.port, "buffered": s.buffered, "direct": s.direct}
		for proxy, port := range ports {
			for name := range sinkFiles {
				for i := range 2 {
					l.result(fmt.Sprint("the same: ", name, ", proxy: ", proxy, " ", i), l.upload(s, port, name))
				}
			}
			l.result("in chunks, proxy: "+proxy, l.upload(s, port, "1m", "-H", "Transfer-Encoding: chunked"))
			l.result("the same at a time, proxy: "+proxy, l.atATime(4, func(int) bool { return l.upload(s, port, "20m") }))
			l.result("the same slowly, proxy: "+proxy, l.upload(s, port, "1m", "--limit-rate", "2M"))
			l.shown(port)
		}
		l.counted(2 * len(ports) * (2*len(sinkFiles) + 6)) // curl's, and nginx's own to php-fpm
	},
}

var varnish = &program{
	name: "varnish", what: "between curl and nginx: uploads, and downloads that it keeps or passes on",
	packages: []string{"varnish", "nginx-light", "curl", "php-fpm"},
	needs:    []string{"varnishd", "nginx", "curl", "/usr/sbin/php-fpm*", "gcc"},
	run: func(l *lab) {
		s := l.sink()
		port := l.port()
		vcl := l.file("varnish.vcl", fmt.Sprintf(`vcl 4.1;
backend default { .host = "127.0.0.1"; .port = "%d"; }
sub vcl_recv { if (req.url ~ "\?pass") { return (pass); } }
`, s.port))
		l.serve(port, "varnishd", "-F", "-j", "none", "-n", filepath.Join(l.dir, "varnish"), "-a", "127.0.0.1:"+strconv.Itoa(port), "-f", vcl,
			"-s", "malloc,100m", "-T", "none")
		out := filepath.Join(l.dir, "out")
		for name := range sinkFiles {
			for i := range 2 {
				l.result(fmt.Sprint("up: ", name, " ", i), l.upload(s, port, name))
				l.result(fmt.Sprint("down: ", name, " ", i), l.download(s, port, name, out))
				l.result(fmt.Sprint("down, passed on: ", name, " ", i), l.download(s, port, name+"?pass", out))
			}
		}
		l.result("up at a time", l.atATime(4, func(int) bool { return l.upload(s, port, "20m") }))
		l.result("down at a time", l.atATime(4, func(i int) bool { return l.download(s, port, "20m?pass", out+strconv.Itoa(i)) }))
		l.shown(port)
		l.counted(26) // curl's; varnish's may be used again
	},
}
