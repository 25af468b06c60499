package host

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

func reusePort(_, _ string, raw syscall.RawConn) (err error) {
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return err
}

// dialMany dials at the same time, checks that every connection echoes, and returns their outcomes.
func dialMany(t *testing.T, client *Host, addr net.Addr, count int) map[string]int {
	outcomes := make(map[string]int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range count {
		wg.Go(func() {
			c, err := client.Dial(boundedContext(t), "tcp", addr.String(), DialOptions{})
			if err != nil {
				t.Errorf("Dial = %v", err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			if err := echo(c); err != nil {
				t.Errorf("%v (%v): %v", c.Mode(), c.Reason().Tag, err)
			}
			mu.Lock()
			outcomes[c.Mode().String()+" "+c.Reason().Tag]++
			mu.Unlock()
		})
	}
	wg.Wait()
	return outcomes
}

// serveEcho echoes on every connection until the listener is closed.
func serveEcho[C io.ReadWriteCloser](accept func() (C, error)) {
	for {
		c, err := accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

// checkBoth makes sure that connections went both ways, and nowhere else.
func checkBoth(t *testing.T, outcomes map[string]int) {
	t.Helper()
	if outcomes["SMC-D "] == 0 || outcomes["TCP NOT_ACCEPTED"] == 0 || len(outcomes) != 2 {
		t.Errorf("outcomes = %v, want some SMC-D and some TCP NOT_ACCEPTED", outcomes)
	}
}

// TestReusePort has a plain program listen on the same port: the kernel chooses which of the two
// gets a connection.
func TestReusePort(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	lc := net.ListenConfig{Control: reusePort}
	l, err := server.Listen(context.Background(), "tcp", "127.0.0.1:0", ListenOptions{Net: lc})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	plain, err := lc.Listen(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	go serveEcho(l.Accept)
	go serveEcho(plain.Accept)
	checkBoth(t, dialMany(t, client, l.Addr(), 60))
}

// TestInheritedListener has a plain program accept from the same socket, as one does that has
// inherited it.
func TestInheritedListener(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	file, err := l.tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	heir, err := net.FileListener(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer heir.Close()
	go serveEcho(l.Accept)
	for range 4 {
		go serveEcho(heir.Accept)
	}
	outcomes := make(map[string]int)
	for range 20 { // one of the two may be quicker for a while
		for k, n := range dialMany(t, client, l.Addr(), 40) {
			outcomes[k] += n
		}
		if len(outcomes) > 1 {
			break
		}
	}
	checkBoth(t, outcomes)
}

// TestRedirected has connections to an announced address arrive at another program, which a
// redirection, or a listener on the more specific address, brings about. It is then a proxy: from
// there they reach the server from another socket than the one that was announced.
func TestRedirected(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	lc := net.ListenConfig{Control: reusePort}
	l, err := server.Listen(context.Background(), "tcp4", "0.0.0.0:0", ListenOptions{Net: lc})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.addr.Port()
	proxy, err := lc.Listen(context.Background(), "tcp4", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)}).String())
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	var firstBytes [][]byte
	var mu sync.Mutex
	var proxies sync.WaitGroup
	defer proxies.Wait()
	go func() {
		for {
			from, err := proxy.Accept()
			if err != nil {
				return
			}
			proxies.Go(func() {
				defer from.Close()
				b := make([]byte, 4)
				if _, err := io.ReadFull(from, b); err != nil {
					t.Errorf("proxy: %v", err)
					return
				}
				mu.Lock()
				firstBytes = append(firstBytes, b)
				mu.Unlock()
				to, err := net.Dial("tcp4", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: int(port)}).String())
				if err != nil {
					t.Errorf("proxy: %v", err)
					return
				}
				defer to.Close()
				to.Write(b)
				go func() {
					io.Copy(to, from)
					to.(*net.TCPConn).CloseWrite()
				}()
				io.Copy(from, to)
			})
		}
	}()
	go func() {
		for {
			s, err := l.Accept()
			if err != nil {
				return
			}
			if s.Mode() != conn.ModeTCP || s.Reason().Code != clc.DiagPeerNoSMC {
				t.Errorf("behind the proxy: mode %v, reason %v; want TCP, %v", s.Mode(), s.Reason(), clc.DiagPeerNoSMC)
			}
			go func() {
				defer s.Close()
				io.Copy(s, s)
			}()
		}
	}()
	const count = 20
	outcomes := dialMany(t, client, proxy.Addr(), count)
	if outcomes["TCP NOT_ACCEPTED"] != count {
		t.Errorf("outcomes = %v, want %d times TCP NOT_ACCEPTED", outcomes, count)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, b := range firstBytes {
		if !slices.Equal(b, []byte("echo")) {
			t.Errorf("the proxy got %x first, want the application's bytes", b)
		}
	}
}

// TestReusePortMany has many processes listen on one port: whichever gets a connection, it is
// SMC-D at once.
func TestReusePortMany(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	const servers = 12
	addr := "127.0.0.1:0"
	for range servers {
		child := smctest.Start(t, "host-serve", dir, addr)
		addr = child.Hear("listening")
	}
	client := newTestHost(t, Config{Dir: dir})
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	const count = 120
	if outcomes := dialMany(t, client, at, count); outcomes["SMC-D "] != count {
		t.Errorf("outcomes = %v, want %d times SMC-D", outcomes, count)
	}
}
