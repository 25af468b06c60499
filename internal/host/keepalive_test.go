package host

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/transport"
)

// keepAliveOf returns TCP_KEEPIDLE of a connection's TCP socket in seconds, 0 if it has no keepalive.
func keepAliveOf(t *testing.T, c interface {
	SyscallConn() (syscall.RawConn, error)
}) (idle int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			var on int
			if on, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on != 0 {
				idle, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
			}
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return idle
}

// Connections that carry bytes through a network have TCP's keepalive as package net has it; SMC-D
// only if the program says so.
func TestKeepAlive(t *testing.T) {
	const byDefault = 15 // of package net, in seconds
	asked := net.KeepAliveConfig{Enable: true, Idle: 33 * time.Second}
	for _, tt := range []struct {
		name   string
		mode   conn.Mode
		idle   time.Duration // KeepAlive of both ends
		config net.KeepAliveConfig
		want   int
	}{
		{"SMC-D", conn.ModeSMCD, 0, net.KeepAliveConfig{}, 0},
		{"SMC-D, time given", conn.ModeSMCD, 40 * time.Second, net.KeepAliveConfig{}, 40},
		{"SMC-D, asked for", conn.ModeSMCD, 0, asked, 33},
		{"TCP", conn.ModeTCP, 0, net.KeepAliveConfig{}, byDefault},
		{"TCP, time given", conn.ModeTCP, 40 * time.Second, net.KeepAliveConfig{}, 40},
		{"TCP, asked for", conn.ModeTCP, -1, asked, 33},
		{"TCP, off", conn.ModeTCP, -1, net.KeepAliveConfig{}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			dir := t.TempDir()
			server := newTestHost(t, Config{Dir: dir})
			client := newTestHost(t, Config{Dir: dir, Disabled: tt.mode == conn.ModeTCP})
			l, err := server.Listen(context.Background(), "tcp", "127.0.0.1:0", ListenOptions{Net: net.ListenConfig{KeepAlive: tt.idle, KeepAliveConfig: tt.config}})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			c, err := client.Dial(boundedContext(t), "tcp", l.Addr().String(), DialOptions{Net: net.Dialer{KeepAlive: tt.idle, KeepAliveConfig: tt.config}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			s := mustAccept(t, l)
			defer s.Close()
			for role, conn := range map[string]conn.Conn{"client": c, "server": s} {
				if conn.Mode() != tt.mode {
					t.Fatalf("%s: the connection is %v, want %v", role, conn.Mode(), tt.mode)
				}
				if got := keepAliveOf(t, conn); got != tt.want { // SMC-R is in TestSMCR
					t.Errorf("%s: keepalive after %d s, want %d (0: none)", role, got, tt.want)
				}
			}
		})
	}
}

// TestSMCRKeepAliveFloor has a program ask for keepalive each second. On a connection over SMC-R
// TCP's own keeps to its least time in each way of setting it, and the program reads back the value
// that it has set.
func TestSMCRKeepAliveFloor(t *testing.T) {
	const least = 15 // seconds
	r := newSMCRRig(t, func(c, s *Config) { c.SMCRKeepAlive, s.SMCRKeepAlive = -1, -1 })
	fast := net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second}
	c, err := r.dial(DialOptions{Net: net.Dialer{KeepAliveConfig: fast}})
	if err != nil {
		t.Fatal(err)
	}
	s := mustAccept(t, r.l)
	checkSMCR(t, c, s)
	if got := keepAliveOf(t, c); got != least {
		t.Errorf("of a dialer: after %d s, want %d", got, least)
	}
	for _, tt := range []struct {
		set  func() error
		want int
	}{
		{func() error { return s.SetKeepAliveConfig(fast) }, least},
		{func() error { return s.SetKeepAlivePeriod(time.Second) }, least},
		{func() error { return s.SetKeepAlivePeriod(time.Minute) }, 60},
	} {
		if err := tt.set(); err != nil {
			t.Fatal(err)
		}
		if got := keepAliveOf(t, s); got != tt.want {
			t.Errorf("after %d s, want %d", got, tt.want)
		}
	}
	if got := c.Options().KeepAlive; got != fast {
		t.Errorf("the program reads %+v, and has set %+v", got, fast)
	}
	smctest.Eventually(t, patience, "the link is asked, as the dialer wants", func() bool { return asked(r.client) > 0 })
}

// TestSMCRKeepAlive looks when a link is asked whether the peer is there: as the host likes, and sooner if a program wants that of a
// connection, for as long as that lasts.
func TestSMCRKeepAlive(t *testing.T) {
	t.Run("by the host", func(t *testing.T) {
		r := newSMCRRig(t, func(c, s *Config) { c.SMCRKeepAlive, s.SMCRKeepAlive = 20*time.Millisecond, -1 })
		c, s := r.connect()
		checkSMCR(t, c, s)
		smctest.Eventually(t, patience, "the peer was asked", func() bool { return asked(r.client) > 1 })
		checkExchange(t, c, s)
		if sent, received := linkTests(r.server); sent > received { // its messages are answers
			t.Errorf("a server that does not want to has asked %d times", sent-received)
		}
		c.Close()
		s.Close()
	})
	t.Run("by connections", func(t *testing.T) {
		r := newSMCRRig(t, func(c, s *Config) { c.SMCRKeepAlive, s.SMCRKeepAlive = -1, -1 })
		quiet := new(quietBinding)
		wrapBindings(r.client, func(b transport.Binding) transport.Binding {
			quiet.Binding = b
			return quiet
		})
		c, s := r.connect()
		checkSMCR(t, c, s)
		for _, tt := range []struct {
			config net.KeepAliveConfig
			want   time.Duration
		}{
			{net.KeepAliveConfig{Enable: true, Idle: 10 * time.Minute}, 10 * time.Minute},
			{net.KeepAliveConfig{Enable: true, Idle: 2 * time.Hour}, 2 * time.Hour},
			{net.KeepAliveConfig{Enable: true, Idle: -1}, 0},
			{net.KeepAliveConfig{Enable: true}, 15 * time.Second},
			{net.KeepAliveConfig{Idle: time.Second}, 0},
			{net.KeepAliveConfig{Enable: true, Idle: time.Millisecond}, time.Second},
		} {
			if err := c.SetKeepAliveConfig(tt.config); err != nil {
				t.Fatal(err)
			}
			if quiet.last != tt.want {
				t.Errorf("with %+v the link is asked after %v, want %v", tt.config, quiet.last, tt.want)
			}
		}
		smctest.Eventually(t, patience, "the peer was asked", func() bool { return asked(r.client) > 0 })
		if err := c.SetKeepAlive(false); err != nil {
			t.Fatal(err)
		}
		if quiet.last != 0 {
			t.Errorf("without keepalive the link is asked after %v", quiet.last)
		}
		c.Close()
		s.Close()
	})
}

// linkTests counts the messages by which a host and its peer ask whether the other one is there, and answer.
func linkTests(h *Host) (sent, received uint64) {
	for _, m := range h.Status().Counters.LLC {
		if m.Type == "TEST LINK" {
			return m.Sent, m.Rcvd
		}
	}
	return 0, 0
}

// asked counts how often a host has asked. Its peer does not ask.
func asked(h *Host) uint64 {
	sent, _ := linkTests(h)
	return sent
}

// A quietBinding keeps how long its link may be silent, as the connection has said last.
type quietBinding struct {
	transport.Binding
	last time.Duration
}

func (c *quietBinding) SetQuiet(d time.Duration) {
	c.last = d
	c.Binding.SetQuiet(d)
}

// TestSMCRKeepAliveMoves has the packets of a link vanish over which nobody says anything: with keepalive that is found out, and the connection
// goes on over the other link.
func TestSMCRKeepAliveMoves(t *testing.T) {
	r, cables := newTwinRig(t, func(c, s *Config) { c.SMCRKeepAlive, s.SMCRKeepAlive = -1, -1 })
	c, s := r.connect()
	checkSMCR(t, c, s)
	r.awaitRedundancy("symmetric")
	vanish(cables, 1)
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second}); err != nil {
		t.Fatal(err)
	}
	r.awaitRedundancy("single")
	checkExchange(t, c, s)
	c.Close()
	s.Close()
}
