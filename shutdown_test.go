package smc

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// listenTest listens with a host; the listener is closed with the test.
func listenTest(t *testing.T, h *Host) *Listener {
	t.Helper()
	lc := ListenConfig{Host: h}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// checkOver makes sure that a connection has ended, or ends, for a reader.
func checkOver(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	_, err := c.Read(make([]byte, 1))
	if ne := net.Error(nil); err == nil || errors.As(err, &ne) && ne.Timeout() {
		t.Errorf("Read = %v, want the end of the connection", err)
	}
}

func TestShutdownWaits(t *testing.T) {
	smctest.CheckLeaks(t)
	for _, mode := range []Mode{ModeSMCD, ModeTCP} {
		dir := t.TempDir()
		config := Config{Dir: dir, Disabled: mode == ModeTCP}
		client, server := newHost(t, config), newHost(t, config)
		c, s := connect(t, client, server, mode)
		l := listenTest(t, server)
		done := make(chan error, 1)
		go func() { done <- server.Shutdown(context.Background()) }()
		// No new connections; those there are go on.
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v: Accept = %v, want %v", mode, err, net.ErrClosed)
		}
		if err := pingPong(c, s); err != nil {
			t.Errorf("%v: during Shutdown: %v", mode, err)
		}
		d := Dialer{Host: server}
		if c, err := d.Dial("tcp", "127.0.0.1:9"); err == nil {
			t.Errorf("%v: Dial of a host that shuts down has worked", mode)
			c.Close()
		}
		select {
		case err := <-done:
			t.Errorf("%v: Shutdown = %v with a connection open", mode, err)
		default:
		}
		c.Close()
		s.Close()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%v: Shutdown = %v", mode, err)
			}
		case <-time.After(patience):
			t.Errorf("%v: Shutdown does not end after the last connection", mode)
		}
		client.Close()
		server.Close()
	}
}

// Shutdown waits for the application, not for peers that keep their ends of connections open.
// Written bytes reach them all the same.
func TestShutdownPeerHoldsOn(t *testing.T) {
	smctest.CheckLeaks(t)
	config := Config{Dir: t.TempDir()}
	client, server := newHost(t, config), newHost(t, config)
	c, s := connect(t, client, server, ModeSMCD)
	defer s.Close()
	if _, err := c.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- client.Shutdown(context.Background()) }()
	select {
	case err := <-done:
		t.Errorf("Shutdown = %v with a connection in use", err)
	case <-time.After(50 * time.Millisecond):
	}
	c.Close()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Shutdown = %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Shutdown waits for the peer")
	}
	s.SetDeadline(time.Now().Add(patience))
	if b, err := io.ReadAll(s); string(b) != "last words" || err != nil {
		t.Errorf("the peer reads %q, %v", b, err)
	}
}

func TestShutdownForced(t *testing.T) {
	smctest.CheckLeaks(t)
	for _, mode := range []Mode{ModeSMCD, ModeTCP} {
		dir := t.TempDir()
		config := Config{Dir: dir, Disabled: mode == ModeTCP}
		client, server := newHost(t, config), newHost(t, config)
		c, s := connect(t, client, server, mode)
		ctx, cancel := context.WithCancel(context.Background())
		reading := make(chan error, 1)
		go func() {
			_, err := s.Read(make([]byte, 1))
			reading <- err
		}()
		cancel()
		if err := server.Shutdown(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v: Shutdown = %v, want %v", mode, err, context.Canceled)
		}
		if err := <-reading; err == nil || err == io.EOF {
			t.Errorf("%v: Read of a connection that was reset = %v", mode, err)
		}
		checkOver(t, c)
		c.Close()
		s.Close()
		client.Close()
	}
}

// TestCloseListener closes a listener at every moment of many handshakes: no connection is left
// that nobody has, and none that hangs.
func TestCloseListener(t *testing.T) {
	testInterrupted(t, func(_, _ *Host, l *Listener, _ context.CancelFunc) { l.Close() })
}

// TestCloseServerHost does the same with the host.
func TestCloseServerHost(t *testing.T) {
	testInterrupted(t, func(_, server *Host, _ *Listener, _ context.CancelFunc) { server.Close() })
}

// TestCloseClientHost closes the host of connections that are being dialled.
func TestCloseClientHost(t *testing.T) {
	testInterrupted(t, func(client, _ *Host, _ *Listener, _ context.CancelFunc) { client.Close() })
}

// TestCancelDial ends the context of connections that are being dialled.
func TestCancelDial(t *testing.T) {
	testInterrupted(t, func(_, _ *Host, _ *Listener, cancel context.CancelFunc) { cancel() })
}

func testInterrupted(t *testing.T, interrupt func(client, server *Host, l *Listener, cancel context.CancelFunc)) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	smctest.CheckLeaks(t)
	const dials = 20
	ended := make(map[string]int)
	for range rounds {
		dir := t.TempDir()
		client, server := newHost(t, Config{Dir: dir, ReadBuffer: 16 << 10}), newHost(t, Config{Dir: dir, ReadBuffer: 16 << 10})
		l := listenTest(t, server)
		ctx, cancel := context.WithCancel(context.Background())
		accepting := make(chan struct{})
		go func() {
			defer close(accepting)
			serveEach(l, func(s net.Conn) {
				s.SetDeadline(time.Now().Add(patience))
				io.Copy(s, s)
				s.Close()
			})
		}()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var conns []*Conn
		interrupted := make(chan struct{})
		after := int32(rand.IntN(dials)) // dials that have ended
		var over atomic.Int32
		start := time.Now()
		go func() {
			defer close(interrupted)
			for over.Load() < after {
				runtime.Gosched()
			}
			interrupt(client, server, l, cancel)
		}()
		for range dials {
			wg.Go(func() {
				d := Dialer{Host: client}
				c, err := d.DialContext(ctx, "tcp", l.Addr().String())
				over.Add(1)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					ended["error"]++
					return
				}
				ended[c.State().Mode.String()]++
				conns = append(conns, c)
			})
		}
		wg.Wait()
		<-interrupted
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("dials that were interrupted took %v", took)
		}
		client.Close()
		for _, c := range conns {
			checkOver(t, c)
			c.Close()
		}
		server.Close()
		cancel()
		<-accepting
	}
	t.Log(ended)
}
