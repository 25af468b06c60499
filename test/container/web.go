package main

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// nginxConfig serves the files of a root, as Debian's does: workers have another user than the first process.
const nginxConfig = `user www-data;
daemon off;
pid /tmp/nginx.pid;
error_log stderr warn;
worker_processes 2;
events { worker_connections 256; }
http {
  access_log off;
  sendfile on;
  client_body_temp_path /tmp/t1; proxy_temp_path /tmp/t2; fastcgi_temp_path /tmp/t3; uwsgi_temp_path /tmp/t4; scgi_temp_path /tmp/t5;
  server {
    listen 8080;
    listen [::]:8080;
    root /srv;
  }
}
`

// haproxyConfig has haproxy in the middle pass requests on to the server.
const haproxyConfig = `global
  maxconn 200
defaults
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  option splice-auto
listen http
  mode http
  bind :8081
  server here 10.97.0.2:8080
`

var nginxServer = program{root: "debian", args: []string{"/usr/bin/nginx", "-c", "/etc/nginx.conf", "-p", "/tmp", "-e", "stderr"}}

func (l *lab) nginx() error {
	curl := func(w way) program {
		return program{root: "debian", args: []string{"/usr/bin/curl", "-sS", "--fail",
			fmt.Sprintf("http://%s:%s/{1k,1m,empty,1k}", w.host, w.port)}}
	}
	j := job{name: "curl", port: portNginx, server: nginxServer, client: curl, check: sum}
	if err := l.compare(j); err != nil {
		return err
	}
	busybox := func(w way) program {
		return program{root: "busybox", args: []string{"/bin/sh", "-c", strings.ReplaceAll(
			"for i in 1k 1m empty 1k 1k; do wget -q -O - http://SERVER/$i; done", "SERVER", w.host+":"+w.port)}}
	}
	if err := l.compare(job{name: "wget of busybox", port: portNginx, server: nginxServer, client: busybox, check: sum}); err != nil {
		return err
	}
	return l.mixed(mixture{
		port: portNginx, bareServer: nginxServer,
		server:     program{root: "debian", args: []string{"/talk", "http", fmt.Sprintf(":%d", portNginx), "/srv"}},
		bareClient: curl,
		client: func(w way) program {
			at := "http://" + w.host + ":" + w.port
			return program{root: "empty", args: []string{"/talk", "get", at + "/1k", at + "/1m", at + "/empty", at + "/1k"}}
		},
	})
}

// sum is short and tells whether two texts are equal.
func sum(text string) string {
	return fmt.Sprintf("%d bytes, %x", len(text), sha256.Sum256([]byte(text)))
}

// haproxy has a proxy in the middle: a client of one container, and a server of another.
func (l *lab) haproxy() error {
	proxy := program{at: atMiddle, root: "debian", args: []string{"/usr/bin/haproxy", "-db", "-f", "/etc/haproxy"}}
	curl := program{at: atClient, root: "debian", args: []string{"/usr/bin/curl", "-sS", "--fail",
		fmt.Sprintf("http://%s:%d/{1k,1m,empty,1k}", address(atMiddle), portHaproxy)}}
	server := nginxServer
	want := ""
	for _, run := range []bool{false, true} {
		server.run, proxy.run, curl.run = run, run, run
		back, err := l.serve(portNginx, server)
		if err != nil {
			return err
		}
		front, err := l.serve(portHaproxy, proxy)
		if err != nil {
			return err
		}
		j := job{name: "haproxy", check: sum}
		if !run {
			if want, err = l.output(j, curl); err != nil {
				return err
			}
		} else if err := l.moved("between curl and haproxy", front, j, curl, want); err != nil {
			return err
		} else if err := l.moved("between haproxy and nginx", back, j, curl, want); err != nil {
			return err
		}
		front.delete()
		back.delete()
	}
	return nil
}

// postgres has a cluster in the memory of its container.
func (l *lab) postgres() error {
	path, err := lookPath("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return err
	}
	bin := strings.TrimSuffix(path, "/postgres")
	server := program{root: "debian", user: userPostgres, args: []string{"/bin/sh", "-c",
		bin + "/initdb -D /tmp/data -A trust -U postgres --no-sync --locale=C -E UTF8 >/dev/null && " +
			"echo 'host all all all trust' >>/tmp/data/pg_hba.conf && " +
			"exec " + bin + "/postgres -D /tmp/data -c listen_addresses=0.0.0.0 -c unix_socket_directories= -c fsync=off -c jit=off"}}
	client := func(w way) program {
		to := fmt.Sprintf(" -h %s -p %s -U postgres ", w.host, w.port)
		return program{root: "debian", user: userPostgres, args: []string{"/bin/sh", "-c",
			"until " + bin + "/psql" + to + "-c 'select 1' >/dev/null 2>&1; do sleep 0.1; done; " +
				bin + "/psql" + to + `-qAtX -v ON_ERROR_STOP=1 -c 'drop table if exists t; create table t (n int, s text);
insert into t select i, repeat(i::text, 1 + i % 30) from generate_series(1, 20000) i; select count(*), sum(n) from t' && ` +
				bin + "/psql" + to + "-qAtX -c 'copy (select * from t order by n) to stdout' && " +
				bin + "/pgbench" + to + "-i -q -s 1 >/dev/null 2>&1 && " +
				bin + "/pgbench" + to + "-n -c 4 -t 50 | grep 'transactions actually\\|failed' && " +
				bin + "/pgbench" + to + "-n -C -c 2 -t 10 | grep 'transactions actually\\|failed'"}}
	}
	return l.compare(job{name: "psql and pgbench", port: portPostgres, server: server, client: client, check: sum})
}
