package smc

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
)

// BenchmarkConnect makes a connection, moves one byte each way, and closes it.
func BenchmarkConnect(b *testing.B) {
	for _, tt := range []struct {
		name   string
		config Config
	}{{"SMC-D", Config{}}, {"TCP", Config{Disabled: true}}} {
		b.Run(tt.name, func(b *testing.B) {
			tt.config.Dir = b.TempDir()
			client, server := newHost(b, tt.config), newHost(b, tt.config)
			lc := ListenConfig{Host: server}
			l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			go serveEach(l, func(c net.Conn) {
				defer c.Close()
				io.Copy(c, c)
			})
			d := Dialer{Host: client}
			b.RunParallel(func(pb *testing.PB) {
				buf := make([]byte, 1)
				for pb.Next() {
					c, err := d.Dial("tcp", l.Addr().String())
					if err != nil {
						b.Error(err)
						return
					}
					c.Write(buf)
					if _, err := io.ReadFull(c, buf); err != nil {
						b.Error(err)
					}
					c.Close()
				}
			})
		})
	}
}

// serveEach calls serve for each connection, until the listener is closed.
func serveEach(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serve(c)
	}
}

// BenchmarkHTTP makes keep-alive requests over 64 connections.
func BenchmarkHTTP(b *testing.B) {
	for _, tt := range []struct {
		name   string
		config Config
	}{{"SMC-D", Config{}}, {"TCP", Config{Disabled: true}}} {
		b.Run(tt.name, func(b *testing.B) {
			tt.config.Dir = b.TempDir()
			clientHost, serverHost := newHost(b, tt.config), newHost(b, tt.config)
			lc := ListenConfig{Host: serverHost}
			l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, "hello")
			})}
			go server.Serve(l)
			defer server.Close()
			d := Dialer{Host: clientHost}
			transport := &http.Transport{
				DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
					return d.DialContext(ctx, network, addr)
				},
				MaxIdleConnsPerHost: 64,
			}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := client.Get("http://" + l.Addr().String())
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		})
	}
}
