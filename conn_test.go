package smc

import (
	"context"
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) { smctest.Main(m) }

// newHost returns a host with a run directory of its own, which is closed with the test.
func newHost(tb testing.TB, config Config) *Host {
	tb.Helper()
	if config.Dir == "" {
		config.Dir = tb.TempDir()
	}
	h, err := NewHost(&config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { h.Close() })
	return h
}

// connect returns both ends of a connection between two hosts.
func connect(tb testing.TB, client, server *Host, want Mode) (c, s *Conn) {
	tb.Helper()
	lc := ListenConfig{Host: server}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	d := Dialer{Host: client}
	if c, err = d.Dial("tcp", l.Addr().String()); err != nil {
		tb.Fatal(err)
	}
	if s, err = l.AcceptSMC(); err != nil {
		tb.Fatal(err)
	}
	for _, end := range []*Conn{c, s} {
		if st := end.State(); st.Mode != want {
			tb.Fatalf("mode = %v (%v), want %v", st.Mode, st.Reason, want)
		}
	}
	return c, s
}

func TestNettest(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config Config
		want   Mode
	}{
		{"SMC-D", Config{}, ModeSMCD},
		{"SMC-D without spinning", Config{Spin: -1}, ModeSMCD},
		{"SMC-D with small buffers", Config{ReadBuffer: 16 << 10}, ModeSMCD},
		{"TCP", Config{Disabled: true}, ModeTCP},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.Dir = t.TempDir()
			client, server := newHost(t, tt.config), newHost(t, tt.config)
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				c, s := connect(t, client, server, tt.want)
				return c, s, func() { c.Close(); s.Close() }, nil
			})
		})
	}
}

// TestBufferSizes has each side announce a buffer of the size that its dialer, listener or host says, or the next power of two: "at least as large as the TCP
// receive buffer size in effect" (RFC 7609 §4.1).
func TestBufferSizes(t *testing.T) {
	dir := t.TempDir()
	client, server := newHost(t, Config{Dir: dir, ReadBuffer: 16 << 10}), newHost(t, Config{Dir: dir, ReadBuffer: 64 << 10})
	for _, tt := range []struct {
		name                  string
		dialer, listener      int
		ofClient, ofTheServer int
	}{
		{"those of the hosts", 0, 0, 16 << 10, 64 << 10},
		{"those of dialer and listener", 100_000, 20_000, 128 << 10, 32 << 10},
	} {
		l, err := (&ListenConfig{Host: server, ReadBuffer: tt.listener}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c, err := (&Dialer{Host: client, ReadBuffer: tt.dialer}).Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.AcceptSMC()
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range []struct {
			name         string
			state        State
			ours, theirs int
		}{
			{"client", c.State(), tt.ofClient, tt.ofTheServer},
			{"server", s.State(), tt.ofTheServer, tt.ofClient},
		} {
			if st := end.state; st.ReadBuffer != end.ours || st.WriteBuffer != end.theirs {
				t.Errorf("%s: the %s (%v) has %d bytes, and its peer %d; want %d and %d", tt.name, end.name, st.Mode, st.ReadBuffer, st.WriteBuffer, end.ours, end.theirs)
			}
		}
		c.Close()
		s.Close()
		l.Close()
	}
}
