package conn

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// keepsAlive returns TCP_KEEPIDLE of a socket in seconds, 0 if it has no keepalive.
func keepsAlive(t *testing.T, tcp *net.TCPConn) (idle int) {
	t.Helper()
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	on := 0
	cerr := raw.Control(func(fd uintptr) {
		if on, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on != 0 {
			idle, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		}
	})
	if err := errors.Join(err, cerr); err != nil {
		t.Fatal(err)
	}
	return idle
}

// newLateTCP returns a plain TCP connection of a program that leaves keepalive to its default, and
// its socket.
func newLateTCP(t *testing.T) (*TCP, *net.TCPConn) {
	t.Helper()
	dialer := net.Dialer{}
	late := PutOff(dialer.KeepAliveConfig, &dialer.KeepAlive)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c, err := dialer.DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tcp := c.(*net.TCPConn)
	t.Cleanup(func() { tcp.Close() })
	p := newPending(tcp)
	p.keepAlive = late
	return NewTCP(p, Fallback{}), tcp
}

const defaultIdle = 15 // of package net, in seconds

// TestLateKeepAlive has keepalive turned on for plain TCP a moment later, or as soon as the program
// could see that it is not, and never over a setting of the program.
func TestLateKeepAlive(t *testing.T) {
	t.Run("later", func(t *testing.T) {
		c, tcp := newLateTCP(t)
		if got := keepsAlive(t, tcp); got != 0 && time.Since(c.since) < keepAliveDelay {
			t.Errorf("at once after %d s, want none", got)
		}
		for deadline := time.Now().Add(soon); keepsAlive(t, tcp) == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("never turned on")
			}
		}
		if got := keepsAlive(t, tcp); got != defaultIdle {
			t.Errorf("after %d s, want %d", got, defaultIdle)
		}
		if err := c.SetKeepAlive(false); err != nil {
			t.Fatal(err)
		}
		c.turnOnKeepAlive()
		if got := keepsAlive(t, tcp); got != 0 {
			t.Errorf("turned on once more, after %d s", got)
		}
	})
	for _, tt := range []struct {
		name string
		do   func(c *TCP) error
		want int
	}{
		{"SyscallConn", func(c *TCP) error { _, err := c.SyscallConn(); return err }, defaultIdle},
		{"File", func(c *TCP) error {
			f, err := c.File()
			if err == nil {
				err = f.Close()
			}
			return err
		}, defaultIdle},
		{"SetKeepAlive", func(c *TCP) error { return c.SetKeepAlive(true) }, defaultIdle},
		{"SetKeepAlive off", func(c *TCP) error { return c.SetKeepAlive(false) }, 0},
		{"SetKeepAlivePeriod", func(c *TCP) error { return c.SetKeepAlivePeriod(40 * time.Second) }, 40},
		{"SetKeepAliveConfig", func(c *TCP) error {
			return c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 50 * time.Second})
		}, 50},
		{"SetKeepAliveConfig off", func(c *TCP) error { return c.SetKeepAliveConfig(net.KeepAliveConfig{}) }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, tcp := newLateTCP(t)
			if err := tt.do(c); err != nil {
				t.Fatal(err)
			}
			if got := keepsAlive(t, tcp); got != tt.want {
				t.Errorf("at once after %d s, want %d (0: none)", got, tt.want)
			}
			c.env.keepAlives.turnOn()
			if got := keepsAlive(t, tcp); got != tt.want {
				t.Errorf("later after %d s, want %d (0: none)", got, tt.want)
			}
		})
	}
}

// TestLateKeepAliveInBubble waits for no timer of a bubble, which may end before it fires.
func TestLateKeepAliveInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, tcp := newLateTCP(t)
		if got := keepsAlive(t, tcp); got != defaultIdle {
			t.Errorf("after %d s, want %d", got, defaultIdle)
		}
		if n := len(c.env.keepAlives.waiting); n != 0 {
			t.Errorf("%d connections wait for a timer of the bubble", n)
		}
	})
}

// TestLateKeepAliveClosed turns nothing on for connections that have ended before.
func TestLateKeepAliveClosed(t *testing.T) {
	c, _ := newLateTCP(t)
	c.Close()
	c.env.keepAlives.turnOn()
	if n := len(c.env.keepAlives.waiting); n != 0 {
		t.Errorf("%d connections wait still", n)
	}
}
