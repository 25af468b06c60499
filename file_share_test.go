package smc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gosmc/smc/internal/smctest"
)

// The functions that use the default host do the same as the functions of package net, and leave
// nothing running.
func TestDefaultHostFiles(t *testing.T) {
	smctest.CheckLeaks(t)
	t.Setenv("GOSMC_DIR", t.TempDir())
	child := smctest.Start(t, "files")
	for _, want := range []string{"SMC-D", "TCP INHERITED", "hello", "nothing runs"} {
		if got := child.Hear("result"); got != want {
			t.Errorf("result = %q, want %q", got, want)
		}
	}
	child.HearEnd()
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

// childFiles listens on a file, dials that, and makes a connection of a file.
func childFiles(p *smctest.Parent) {
	before := goleak.IgnoreCurrent()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	p.Check(err)
	f, err := inner.(*net.TCPListener).File()
	p.Check(err)
	p.Check(inner.Close())
	l, err := FileListener(f)
	p.Check(err)
	p.Check(f.Close())
	accepted := make(chan net.Conn)
	go func() {
		s, err := l.Accept()
		p.Check(err)
		accepted <- s
	}()
	for found := []string(nil); len(found) == 0; runtime.Gosched() { // the test has patience
		found, err = filepath.Glob(filepath.Join(os.Getenv("GOSMC_DIR"), "*", "listen", "*", "*"))
		p.Check(err)
	}
	c, err := DialContext(context.Background(), "tcp", l.Addr().String())
	p.Check(err)
	p.Say("result %v", c.State().Mode)
	p.Check(c.Close())
	s := <-accepted
	p.Check(s.Close())

	plain, err := net.Dial("tcp", l.Addr().String())
	p.Check(err)
	f, err = plain.(*net.TCPConn).File()
	p.Check(err)
	p.Check(plain.Close())
	fc, err := FileConn(f)
	p.Check(err)
	p.Check(f.Close())
	p.Say("result %v %s", fc.State().Mode, fc.State().Reason.Tag)
	s, err = l.Accept()
	p.Check(err)
	_, err = fc.Write([]byte("hello"))
	p.Check(err)
	p.Check(fc.Close())
	b, err := io.ReadAll(s)
	p.Check(err)
	p.Say("result %s", b)
	p.Check(s.Close())
	p.Check(l.Close())
	for deadline := time.Now().Add(patience); ; { // each try takes some 400 ms
		if err = goleak.Find(before); err == nil || time.Now().After(deadline) {
			break
		}
	}
	p.Check(err)
	p.Say("result nothing runs")
}

// inheritedListener returns a listener on a copy of f.
func inheritedListener(t *testing.T, h *Host, f *os.File) *Listener {
	t.Helper()
	inner, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	lc := ListenConfig{Host: h}
	l, err := lc.NewListener(inner)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// accepted returns how many connections the only listener of a host has taken.
func accepted(h *Host) (n uint64) {
	for _, l := range h.h.Status().Listeners {
		n += l.Accepted
	}
	return n
}

// childShare has inherited a listening socket. Arguments: run directory, accept or idle.
func childShare(p *smctest.Parent) {
	inner, err := net.FileListener(os.NewFile(3, "inherited"))
	p.Check(err)
	lc := ListenConfig{Host: childHost(p, p.Args[0])}
	l, err := lc.NewListener(inner)
	p.Check(err)
	if p.Args[1] == "accept" {
		go func() {
			for {
				s, err := l.Accept()
				p.Check(err)
				go func() {
					defer s.Close()
					io.Copy(s, s)
				}()
			}
		}()
	}
	p.Say("ready")
	p.Hear()
}

// Of two processes with the same listening socket only one accepts. It gets every connection,
// whether or not the other one could serve them, and none is kept waiting.
func TestInheritedByTwo(t *testing.T) {
	smctest.CheckLeaks(t)
	config := Config{Dir: t.TempDir()}
	f := fileListener(t)
	for _, does := range []string{"idle", "accept", "idle"} {
		smctest.StartWith(t, []*os.File{f}, "share", config.Dir, does).Hear("ready")
	}
	smctest.Eventually(t, patience, "an announcement", func() bool { return announced(t, config.Dir) > 0 })
	if n := announced(t, config.Dir); n != 1 {
		t.Errorf("%d processes are announced, want the one that accepts", n)
	}
	inner, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	addr := inner.Addr().String()
	inner.Close()
	d := Dialer{Host: newHost(t, config)}
	var clients sync.WaitGroup
	var shared atomic.Int64
	for range 4 {
		clients.Go(func() {
			for i := range 50 {
				dial := net.Dial
				if i%2 == 0 {
					dial = func(network, address string) (net.Conn, error) { return d.Dial(network, address) }
				}
				c, err := dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				if c, ok := c.(*Conn); ok {
					switch st := c.State(); {
					case st.Mode == ModeSMCD:
						shared.Add(1)
					case st.Reason.Tag != "NO_LISTENER":
						t.Errorf("a connection is TCP because of %v", st.Reason)
					}
				}
				c.SetDeadline(time.Now().Add(patience))
				_, err = c.Write([]byte("echo"))
				if err == nil {
					_, err = io.ReadFull(c, make([]byte, 4))
				}
				if err != nil {
					t.Errorf("a connection was not served: %v", err)
				}
				c.Close()
			}
		})
	}
	clients.Wait()
	if shared.Load() == 0 {
		t.Error("no connection uses SMC-D")
	}
}

// A listener has taken connections before other processes share its socket. Closed, it still hands
// those out, and nothing else.
func TestSharedListenerCloses(t *testing.T) {
	smctest.CheckLeaks(t)
	config := Config{Dir: t.TempDir()}
	client, server := newHost(t, config), newHost(t, config)
	l, err := listenOn(server)
	if err != nil {
		t.Fatal(err)
	}
	share := func(l *Listener) {
		f, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	d := Dialer{Host: client}
	for _, dial := range []func(network, address string) (net.Conn, error){
		net.Dial,
		func(network, address string) (net.Conn, error) { return d.Dial(network, address) },
	} {
		c, err := dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte("taken")); err != nil {
			t.Fatal(err)
		}
	}
	smctest.Eventually(t, patience, "two connections that are accepted", func() bool { return accepted(server) >= 2 })
	share(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := l.Accept()
		if err != nil {
			t.Fatalf("Accept of what had been taken = %v", err)
		}
		s.SetDeadline(time.Now().Add(patience))
		b := make([]byte, 5)
		if _, err := io.ReadFull(s, b); string(b) != "taken" || err != nil {
			t.Errorf("ReadFull = %q, %v", b, err)
		}
		s.Close()
	}
	if c, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after all = %v, %v, want ErrClosed", c, err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close = %v, want ErrClosed", err)
	}

	// If nobody calls Accept, the taken connections are reset after a while, or when the host
	// closes.
	for _, end := range []func(*Listener){func(*Listener) {}, func(*Listener) { server.Close() }} {
		l, err := listenOn(server)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		smctest.Eventually(t, patience, "a connection that is accepted", func() bool { return accepted(server) >= 1 })
		share(l)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		end(l)
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Read of a connection that nobody accepted = %v, want a reset", err)
		}
		if c, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept in the end = %v, %v, want ErrClosed", c, err)
		}
	}
}

// A server that is replaced by another one at the same socket, again and again, loses no connection.
func TestRestartLosesNothing(t *testing.T) {
	smctest.CheckLeaks(t)
	config := Config{Dir: t.TempDir()}
	f := fileListener(t)
	serve := func(l *Listener, servers *sync.WaitGroup) {
		for {
			s, err := l.Accept()
			if err != nil {
				return
			}
			servers.Go(func() {
				defer s.Close()
				s.SetDeadline(time.Now().Add(patience))
				b := make([]byte, 4)
				if _, err := io.ReadFull(s, b); err != nil {
					t.Errorf("server reads: %v", err)
				}
				s.Write(b)
			})
		}
	}
	var stop atomic.Bool
	var exchanges atomic.Int64
	var clients, servers sync.WaitGroup
	start := func() (*Host, *Listener) {
		h := newHost(t, config)
		l := inheritedListener(t, h, f)
		servers.Go(func() { serve(l, &servers) })
		return h, l
	}
	h, l := start()
	addr := l.Addr().String()
	for range 4 {
		d := Dialer{Host: newHost(t, config), Timeout: patience}
		clients.Go(func() {
			for !stop.Load() {
				c, err := d.Dial("tcp", addr)
				if err != nil {
					t.Errorf("Dial during restarts = %v", err)
					return
				}
				c.SetDeadline(time.Now().Add(patience))
				_, err = c.Write([]byte("echo"))
				if err == nil {
					_, err = io.ReadFull(c, make([]byte, 4))
				}
				if err != nil {
					t.Errorf("connection (%v) during restarts: %v", c.State().Mode, err)
				}
				c.Close()
				exchanges.Add(1)
			}
		})
	}
	for range 10 {
		before := exchanges.Load()
		smctest.Eventually(t, patience, "exchanges with this server", func() bool { return exchanges.Load() >= before+8 })
		oldHost, old := h, l
		h, l = start()
		if err := old.Close(); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		servers.Go(func() {
			defer cancel()
			if err := oldHost.Shutdown(ctx); err != nil {
				t.Errorf("Shutdown of a server that was replaced = %v", err)
			}
		})
	}
	stop.Store(true)
	clients.Wait()
	l.Close()
	servers.Wait()
}

// A program that hands out its listening socket and accepts nothing itself, as programs do that
// fork their workers, leaves every connection to the process that accepts.
func TestSharedListener(t *testing.T) {
	smctest.CheckLeaks(t)
	config := Config{Dir: t.TempDir()}
	client, server := newHost(t, config), newHost(t, config)
	lc := ListenConfig{Host: server}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inner, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	worker := inner.(*net.TCPListener)
	defer worker.Close()

	// serve makes a connection and has the worker accept it.
	serve := func(what string, dial func(network, address string) (net.Conn, error)) net.Conn {
		t.Helper()
		c, err := dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		worker.SetDeadline(time.Now().Add(20 * time.Second))
		w, err := worker.Accept()
		if err != nil {
			t.Fatalf("%s did not reach the worker: %v", what, err)
		}
		w.Close()
		return c
	}
	d := Dialer{Host: client}
	dialSMC := func(network, address string) (net.Conn, error) { return d.Dial(network, address) }
	for range 10 {
		serve("a connection over TCP", net.Dial)
		c := serve("a connection that asks for SMC", dialSMC)
		if tag := c.(*Conn).State().Reason.Tag; tag != "NO_LISTENER" {
			t.Errorf("connection to a worker without SMC: %s, want NO_LISTENER: nobody is announced", tag)
		}
	}

	// With Accept it takes connections again, one for each call. It is announced by the first call, so that the
	// first connection may have come too early.
	type result struct {
		c   *Conn
		err error
	}
	for i := range 3 {
		got := make(chan result, 1)
		go func() {
			c, err := l.AcceptSMC()
			got <- result{c, err}
		}()
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		r := <-got
		if r.err != nil {
			t.Fatal(r.err)
		}
		if i > 0 && r.c.State().Mode != ModeSMCD {
			t.Errorf("connection %d that Accept took: %+v, want SMC-D", i, r.c.State().Reason)
		}
		c.Close()
		r.c.Close()
		serve("the connection after one that Accept took", net.Dial)
	}
	// An Accept that gives up leaves nothing behind that takes connections.
	if err := l.SetDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Accept = %v, want a timeout", err)
	}
	for range 4 {
		serve("a connection after a timeout", net.Dial)
	}
}
