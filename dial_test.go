package smc

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// A brokenStream fails on every call.
type brokenStream struct{ err error }

func (b brokenStream) Read([]byte) (int, error)  { return 0, b.err }
func (b brokenStream) Write([]byte) (int, error) { return 0, b.err }

// Errors of copies have the type that they have in package net, whichever end they are from.
func TestCopyErrors(t *testing.T) {
	type copier interface {
		testConn
		io.ReaderFrom
		io.WriterTo
	}
	dir := t.TempDir()
	hosts := [2]*Host{newHost(t, Config{Dir: dir}), newHost(t, Config{Dir: dir})}
	plain := newHost(t, Config{Dir: dir, Disabled: true})
	errBroken := errors.New("broken")
	for _, kind := range []struct {
		name string
		pair func() (a, b copier)
	}{
		{"net", func() (a, b copier) { return netPair(t) }},
		{"TCP", func() (a, b copier) { return connect(t, plain, hosts[1], ModeTCP) }},
		{"SMC-D", func() (a, b copier) { return connect(t, hosts[0], hosts[1], ModeSMCD) }},
	} {
		t.Run(kind.name, func(t *testing.T) {
			check := func(call, op string, err, want error) {
				t.Helper()
				var opErr *net.OpError
				var netErr net.Error
				if !errors.As(err, &opErr) || opErr.Op != op || opErr.Net != "tcp" || !errors.As(err, &netErr) || !errors.Is(err, want) {
					t.Errorf("%s = %#v, want a *net.OpError of %s around %v", call, err, op, want)
				}
			}
			a, b := kind.pair()
			defer a.Close()
			a.SetDeadline(time.Now().Add(patience))
			_, err := a.ReadFrom(brokenStream{errBroken})
			check("ReadFrom(broken)", "readfrom", err, errBroken)
			if _, err := b.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			_, err = a.WriteTo(brokenStream{errBroken})
			check("WriteTo(broken)", "writeto", err, errBroken)

			b.SetLinger(0)
			b.Close()
			smctest.Eventually(t, patience, "the reset arrives", func() bool {
				_, err = a.ReadFrom(strings.NewReader("y"))
				return err != nil
			})
			want := error(syscall.ECONNRESET)
			if errors.Is(err, syscall.EPIPE) { // what a second write gets
				want = syscall.EPIPE
			}
			check("ReadFrom after a reset", "readfrom", err, want)
		})
	}
}

// An address without a host, or with the unspecified one, is that of this machine.
func TestDialWithoutHost(t *testing.T) {
	dir := t.TempDir()
	server := newHost(t, Config{Dir: dir})
	for _, tt := range []struct{ network, listen, host string }{
		{"tcp", "127.0.0.1:0", ""},
		{"tcp4", "127.0.0.1:0", ""},
		{"tcp", "127.0.0.1:0", "0.0.0.0"},
		{"tcp6", "[::1]:0", ""},
		{"tcp", "[::1]:0", "::"},
	} {
		lc := ListenConfig{Host: server}
		l, err := lc.Listen(context.Background(), "tcp", tt.listen)
		if err != nil {
			t.Skipf("needs IPv6: %v", err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		for _, config := range []Config{{Dir: dir}, {Dir: dir, Disabled: true}, {}} {
			want := State{Mode: ModeTCP, Reason: Reason{Tag: "NO_LISTENER"}}
			if config.Disabled {
				want.Reason.Tag = "DISABLED"
			} else if config.Dir == dir {
				want = State{Mode: ModeSMCD}
			}
			d := Dialer{Host: newHost(t, config)}
			c, err := d.Dial(tt.network, net.JoinHostPort(tt.host, port))
			if err != nil {
				t.Errorf("Dial(%q, %q) with %+v = %v", tt.network, tt.host+":", config, err)
				continue
			}
			if st := c.State(); st.Mode != want.Mode || st.Reason.Tag != want.Reason.Tag {
				t.Errorf("Dial(%q, %q) with %+v = %v because of %v, want %v because of %s", tt.network, tt.host+":", config, st.Mode, st.Reason, want.Mode, want.Reason.Tag)
			}
			c.Close()
		}
		l.Close()
	}
}

// A negative Timeout has passed before the dial begins.
func TestDialTimeoutNegative(t *testing.T) {
	host := newHost(t, Config{})
	lc := ListenConfig{Host: host}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := Dialer{Host: host, Timeout: -time.Second}
	c, err := d.Dial("tcp", l.Addr().String())
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("Dial with a negative Timeout = %v, %v, want a timeout", c, err)
	}
	if c != nil {
		c.Close()
	}
}
