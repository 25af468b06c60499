package host

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
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

// What carries bytes through a network has TCP's keepalive as package net has it; SMC-D only if the program says so.
func TestKeepAlive(t *testing.T) {
	const byDefault = 15 // of package net, in seconds
	asked := net.KeepAliveConfig{Enable: true, Idle: 33 * time.Second}
	for _, tt := range []struct {
		name   string
		mode   Mode
		idle   time.Duration // KeepAlive of both ends
		config net.KeepAliveConfig
		want   int
	}{
		{"SMC-D", ModeSMCD, 0, net.KeepAliveConfig{}, 0},
		{"SMC-D, time given", ModeSMCD, 40 * time.Second, net.KeepAliveConfig{}, 40},
		{"SMC-D, asked for", ModeSMCD, 0, asked, 33},
		{"TCP", ModeTCP, 0, net.KeepAliveConfig{}, byDefault},
		{"TCP, time given", ModeTCP, 40 * time.Second, net.KeepAliveConfig{}, 40},
		{"TCP, asked for", ModeTCP, -1, asked, 33},
		{"TCP, off", ModeTCP, -1, net.KeepAliveConfig{}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			dir := t.TempDir()
			server := newTestHost(t, Config{Dir: dir})
			client := newTestHost(t, Config{Dir: dir, Disabled: tt.mode == ModeTCP})
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
			for role, conn := range map[string]*Conn{"client": c, "server": s} {
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

// TestSMCRKeepAliveFloor has a program ask for keepalive each second. On a connection over SMC-R TCP's own keeps to its least time, whatever sets it,
// and the program reads back what it has set.
func TestSMCRKeepAliveFloor(t *testing.T) {
	const least = int(leastTCPKeepAlive / time.Second)
	r := newSMCRRig(t, nil)
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
	if g := groupsOf(r.client)[0]; g.testsAfter() != leastQuiet {
		t.Errorf("the link is asked after %v, want %v", g.testsAfter(), leastQuiet)
	}
}

// TestSMCRKeepAlive looks when a link is asked whether the peer is there: as the host likes, and sooner if a program wants that of a
// connection, for as long as that lasts.
func TestSMCRKeepAlive(t *testing.T) {
	asked := func(h *Host) uint64 {
		for _, m := range h.Status().Counters.LLC {
			if m.Type == "TEST LINK" {
				return m.Sent
			}
		}
		return 0
	}
	t.Run("by the host", func(t *testing.T) {
		r := newSMCRRig(t, func(c, s *Config) { c.SMCRKeepAlive, s.SMCRKeepAlive = 20*time.Millisecond, -1 })
		c, s := r.connect()
		checkSMCR(t, c, s)
		smctest.Eventually(t, patience, "the peer was asked", func() bool { return asked(r.client) > 1 })
		checkExchange(t, c, s)
		if after := groupsOf(r.server)[0].testsAfter(); after != 0 {
			t.Errorf("a server that does not want to asks after %v", after)
		}
		c.Close()
		s.Close()
	})
	t.Run("by connections", func(t *testing.T) {
		r := newSMCRRig(t, func(c, s *Config) { c.SMCRKeepAlive, s.SMCRKeepAlive = -1, -1 })
		c, s := r.connect()
		checkSMCR(t, c, s)
		asking, peer := func() (c, s *Conn) {
			c, err := r.dial(DialOptions{Net: net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Hour}}})
			if err != nil {
				t.Fatal(err)
			}
			return c, mustAccept(t, r.l)
		}()
		g := groupsOf(r.client)[0]
		check := func(what string, want time.Duration) {
			t.Helper()
			if got := g.testsAfter(); got != want {
				t.Errorf("%s: asks after %v, want %v", what, got, want)
			}
		}
		check("the dialer's time", time.Hour)
		for _, tt := range []struct {
			config net.KeepAliveConfig
			want   time.Duration
		}{
			{net.KeepAliveConfig{Enable: true, Idle: 10 * time.Minute}, 10 * time.Minute},
			{net.KeepAliveConfig{Enable: true, Idle: 2 * time.Hour}, time.Hour},
			{net.KeepAliveConfig{Enable: true, Idle: -1}, time.Hour},
			{net.KeepAliveConfig{Enable: true}, defaultQuiet},
			{net.KeepAliveConfig{Idle: time.Second}, time.Hour},
		} {
			if err := c.SetKeepAliveConfig(tt.config); err != nil {
				t.Fatal(err)
			}
			check("after SetKeepAliveConfig", tt.want)
		}
		if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		if c.binding.(*smcrBinding).quiet != leastQuiet {
			t.Error("less than the least time is taken")
		}
		smctest.Eventually(t, patience, "the peer was asked", func() bool { return asked(r.client) > 0 })
		if err := c.SetKeepAlive(false); err != nil {
			t.Fatal(err)
		}
		asking.Close()
		peer.Close()
		smctest.Eventually(t, patience, "nobody asks after the connection has ended", func() bool { return g.testsAfter() == 0 })
		c.Close()
		s.Close()
	})
}

// testsAfter returns how long a link is silent when the peer is asked, 0: it is not.
func (g *smcrGroup) testsAfter() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ctl.TestInterval()
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
