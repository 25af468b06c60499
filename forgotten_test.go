package smc

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"
	"weak"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/smctest"
)

// forgettingModes runs a test on hosts of each kind.
func forgettingModes(t *testing.T, test func(t *testing.T, client, server *Host, mode Mode)) {
	t.Helper()
	for _, mode := range []Mode{ModeSMCD, ModeTCP} {
		t.Run(mode.String(), func(t *testing.T) {
			smctest.CheckLeaks(t)
			config := Config{Dir: t.TempDir(), Disabled: mode == ModeTCP}
			test(t, newHost(t, config), newHost(t, config), mode)
		})
	}
}

// A connection that nobody has any more is closed.
func TestForgottenConn(t *testing.T) {
	forgettingModes(t, func(t *testing.T, client, server *Host, mode Mode) {
		c, s := connect(t, client, server, mode)
		defer s.Close()
		if _, err := c.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		c = nil
		s.SetReadDeadline(time.Unix(1, 0))
		var text []byte
		smctest.Eventually(t, patience, "the end of a forgotten connection", func() bool {
			runtime.GC()
			b := make([]byte, 100)
			s.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			n, err := s.Read(b)
			text = append(text, b[:n]...)
			return err == io.EOF
		})
		if string(text) != "last words" {
			t.Errorf("of a forgotten connection came %q, want its last words", text)
		}
		s.Close()
		smctest.Eventually(t, patience, "the host forgets it, too", func() bool { return len(client.h.Status().Connections) == 0 })
	})
}

// A listener that nobody has any more is closed.
func TestForgottenListener(t *testing.T) {
	forgettingModes(t, func(t *testing.T, client, server *Host, mode Mode) {
		listen := func() string { // the only frame that has the listener
			lc := ListenConfig{Host: server}
			l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			return l.Addr().String()
		}
		addr := listen()
		smctest.Eventually(t, patience, "the end of a forgotten listener", func() bool {
			runtime.GC()
			c, err := net.Dial("tcp", addr)
			if err == nil {
				c.Close()
			}
			return errors.Is(err, syscall.ECONNREFUSED)
		})
		smctest.Eventually(t, patience, "the host forgets it, too", func() bool { return len(server.h.Status().Listeners) == 0 })
	})
}

// A connection that a call waits for is not forgotten, though nobody has it but the call.
func TestWaitedForIsNotForgotten(t *testing.T) {
	forgettingModes(t, func(t *testing.T, client, server *Host, mode Mode) {
		c, s := connect(t, client, server, mode)
		defer s.Close()
		type result struct {
			n   int
			err error
		}
		read := make(chan result, 1)
		go func(c *Conn) {
			n, err := c.Read(make([]byte, 1))
			read <- result{n, err}
		}(c)
		c = nil
		lc := ListenConfig{Host: server}
		l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		accepted := make(chan result, 1)
		go func(l *Listener) {
			c, err := l.Accept()
			if err == nil {
				c.Close()
			}
			accepted <- result{0, err}
		}(l)
		l = nil
		// Cleanups run one after the other: when one that was set later has run, the collector has seen all.
		for range 5 {
			done := make(chan struct{})
			runtime.AddCleanup(new([64]byte), func(done chan struct{}) { close(done) }, done)
			smctest.Eventually(t, patience, "a collection", func() bool {
				runtime.GC()
				select {
				case <-done:
					return true
				default:
					return false
				}
			})
		}
		if _, err := s.Write([]byte("x")); err != nil {
			t.Errorf("Write to one who waits = %v", err)
		}
		if r := <-read; r.n != 1 || r.err != nil {
			t.Errorf("Read of a connection that only it has = %d, %v, want 1", r.n, r.err)
		}
		d := Dialer{Host: client}
		if c, err := d.Dial("tcp", addr); err != nil {
			t.Errorf("Dial of a listener that only Accept has = %v", err)
		} else {
			defer c.Close()
		}
		if r := <-accepted; r.err != nil {
			t.Errorf("Accept of a listener that only it has = %v", r.err)
		}
	})
}

type contextKey struct{}

// A context that Dial was given is not kept beyond Dial, nor are the values in it: net/http has the request there.
func TestForgottenContext(t *testing.T) {
	forgettingModes(t, func(t *testing.T, client, server *Host, mode Mode) {
		lc := ListenConfig{Host: server}
		l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		gone := make(chan struct{})
		dial := func() *Conn { // the only frame that has the context
			value := new([1024]byte)
			runtime.AddCleanup(value, func(gone chan struct{}) { close(gone) }, gone)
			ctx, cancel := context.WithCancel(context.WithValue(context.Background(), contextKey{}, value))
			defer cancel()
			d := Dialer{Host: client}
			c, err := d.DialContext(ctx, "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := dial()
		defer c.Close()
		if got := c.State().Mode; got != mode {
			t.Fatalf("mode %v, want %v", got, mode)
		}
		smctest.Eventually(t, patience, "the end of the context", func() bool {
			runtime.GC()
			select {
			case <-gone:
				return true
			default:
				return false
			}
		})
	})
}

// A closed connection is gone with the next cycle of the garbage collector. One that stays for a
// cycle more is counted as live by it: then the heap of a server grows with every cycle if its
// connections come and go.
func TestClosedIsCollected(t *testing.T) {
	forgettingModes(t, func(t *testing.T, client, server *Host, mode Mode) {
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // no cycle but those below
		smctest.Eventually(t, patience, "a connection that is collected at once", func() bool {
			c, s := connect(t, client, server, mode)
			gone := []func() bool{collected(c.c), collected(s.c)}
			c.Close()
			s.Close()
			c, s = nil, nil
			smctest.Eventually(t, patience, "the hosts forget it", func() bool {
				return len(client.h.Status().Connections)+len(server.h.Status().Connections) == 0
			})
			runtime.GC()
			return gone[0]() || gone[1]() // a goroutine may still have one
		})
	})
}

// collected returns a function that reports whether a connection is gone, and does not keep it.
func collected(c innerConn) func() bool {
	switch c := c.(type) {
	case *conn.SMC:
		p := weak.Make(c)
		return func() bool { return p.Value() == nil }
	case *conn.TCP:
		p := weak.Make(c)
		return func() bool { return p.Value() == nil }
	}
	panic("a connection of another kind")
}
