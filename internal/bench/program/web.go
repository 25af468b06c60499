package program

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// NGINX is wrk with so many clients to nginx with two workers, or with one where wrk has only one other
// processor: three busy programs on two processors measure the scheduler. bytes is the size of the file; 0 is
// the one that the transport names.
func NGINX(clients, bytes int) *Work {
	return &Work{
		needs: []string{"nginx", "wrk"}, packages: "nginx-light wrk",
		run: func(l *lab, what string) (r Result, err error) {
			n := bytes
			if sizes := map[string]int{"1k": 1000, "100k": 100_000}; n == 0 {
				n = sizes[what]
			}
			port, err := l.nginx(n)
			if err != nil {
				return r, err
			}
			return l.wrk(port, clients)
		},
	}
}

// NGINXAsShipped is wrk to nginx as its packages configure it: with a worker for each processor, and it opens
// the file for each request. The transport names the number of clients.
func NGINXAsShipped() *Work {
	return &Work{
		needs: []string{"nginx", "wrk"}, packages: "nginx-light wrk",
		run: func(l *lab, what string) (r Result, err error) {
			clients, err := strconv.Atoi(what)
			if err != nil {
				return r, err
			}
			port, err := l.nginxWith(200, "auto", "")
			if err != nil {
				return r, err
			}
			return l.wrk(port, clients)
		},
	}
}

// nginx starts one that has a file of so many bytes, and returns its port.
func (l *lab) nginx(bytes int) (port int, err error) {
	workers := min(2, max(1, runtime.NumCPU()-1))
	return l.nginxWith(bytes, strconv.Itoa(workers), "open_file_cache max=16;")
}

// nginxWith starts one with so many workers and more directives.
func (l *lab) nginxWith(bytes int, workers, more string) (port int, err error) {
	if bytes == 0 {
		return 0, fmt.Errorf("bench: no file")
	}
	if port, err = freePort(); err != nil {
		return 0, err
	}
	root, err := l.www(bytes)
	if err != nil {
		return 0, err
	}
	conf := filepath.Join(l.dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, `daemon off; pid %s/pid; error_log stderr warn; worker_processes %s;
events { worker_connections 1024; }
http {
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000; %[6]s
  client_body_temp_path %[1]s/t1; proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3;
  uwsgi_temp_path %[1]s/t4; scgi_temp_path %[1]s/t5;
  server { listen %[3]s:%[4]d; root %[5]s; }
}
`, l.dir, workers, l.place.listen(), port, root, more), 0o644); err != nil {
		return 0, err
	}
	return port, l.serve(port, l.command("nginx", "-c", conf, "-p", l.dir, "-e", "stderr"))
}

// www makes a directory for a server, with a file of so many bytes.
func (l *lab) www(bytes int) (root string, err error) {
	root = filepath.Join(l.dir, "www")
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	return root, os.WriteFile(filepath.Join(root, "file"), make([]byte, bytes), 0o644)
}

// wrk measures requests for the file by so many clients.
func (l *lab) wrk(port, clients int) (r Result, err error) {
	args := []string{"-t", strconv.Itoa(min(clients, 2)), "-c", strconv.Itoa(clients),
		fmt.Sprintf("-d%ds", l.seconds()), "--latency",
		fmt.Sprintf("http://%s:%d/file", l.place.connect(), port)}
	a, err := l.client(port, l.command("wrk", args...))
	if err != nil {
		return r, err
	}
	m := regexp.MustCompile(`(\d+) requests in ([0-9.]+)(m?)s`).FindStringSubmatch(a.output)
	if m == nil || strings.Contains(a.output, "Socket errors") || strings.Contains(a.output, "Non-2xx") {
		return r, fmt.Errorf("wrk: %w: %s", errOutput, a.output)
	}
	ops, _ := strconv.ParseFloat(m[1], 64)
	seconds, _ := strconv.ParseFloat(m[2], 64)
	if m[3] != "" {
		seconds /= 1000
	}
	return a.result(ops, seconds)
}

// HAProxy is wrk with so many clients to haproxy, which asks nginx.
func HAProxy(clients int) *Work {
	return &Work{
		needs: []string{"nginx", "wrk", "haproxy"}, packages: "nginx-light wrk haproxy",
		run: func(l *lab, _ string) (r Result, err error) {
			behind, err := l.nginx(200)
			if err != nil {
				return r, err
			}
			port, err := freePort()
			if err != nil {
				return r, err
			}
			conf := filepath.Join(l.dir, "haproxy.cfg")
			if err := os.WriteFile(conf, fmt.Appendf(nil, `global
  maxconn 1000
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen web
  bind 127.0.0.1:%d
  http-reuse always
  server nginx 127.0.0.1:%d
`, port, behind), 0o644); err != nil {
				return r, err
			}
			if err := l.serve(port, l.command("haproxy", "-db", "-f", conf)); err != nil {
				return r, err
			}
			return l.wrk(port, clients)
		},
	}
}

// Varnish is wrk with so many clients to varnish, which asks nginx once and keeps the answer.
func Varnish(clients int) *Work {
	return &Work{
		needs: []string{"nginx", "wrk", "varnishd", "cc"}, packages: "nginx-light wrk varnish gcc",
		run: func(l *lab, _ string) (r Result, err error) {
			behind, err := l.nginx(200)
			if err != nil {
				return r, err
			}
			port, err := freePort()
			if err != nil {
				return r, err
			}
			vcl := filepath.Join(l.dir, "varnish.vcl")
			if err := os.WriteFile(vcl, fmt.Appendf(nil, `vcl 4.1;
backend default { .host = "127.0.0.1"; .port = "%d"; }
`, behind), 0o644); err != nil {
				return r, err
			}
			if err := l.serve(port, l.command("varnishd", "-F", "-j", "none",
				"-n", filepath.Join(l.dir, "varnish"), "-a", fmt.Sprintf("127.0.0.1:%d", port), "-f", vcl,
				"-s", "malloc,100m", "-T", "none")); err != nil {
				return r, err
			}
			return l.wrk(port, clients)
		},
	}
}

// nodeServer answers with 200 bytes on the port that is its argument.
const nodeServer = `const body = Buffer.alloc(200, 'gosmc ');
require('http').createServer((q, r) => r.end(body)).listen(Number(process.argv[1]), '127.0.0.1');`

// Node is wrk with so many clients to a server in node.
func Node(clients int) *Work {
	return &Work{
		needs: []string{"node", "wrk"}, packages: "nodejs wrk",
		run: func(l *lab, _ string) (r Result, err error) {
			port, err := freePort()
			if err != nil {
				return r, err
			}
			if err := l.serve(port, l.command("node", "-e", nodeServer, strconv.Itoa(port))); err != nil {
				return r, err
			}
			return l.wrk(port, clients)
		},
	}
}
