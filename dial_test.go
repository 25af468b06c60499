package smc

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// An address without a host, or with the unspecified one, is an address of this machine.
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

// Where SMC-R is required neither end gets a connection over SMC-D, and both are told the reason.
func TestRequireNotOffered(t *testing.T) {
	dir := t.TempDir()
	client, server := newHost(t, Config{Dir: dir}), newHost(t, Config{Dir: dir})
	listen := func(r Requirement) *Listener {
		lc := ListenConfig{Host: server, Require: r}
		l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}

	d := Dialer{Host: client, Require: RequireSMCR}
	l := listen(AnyMode)
	c, err := d.Dial("tcp", l.Addr().String())
	var fallback *FallbackError
	if !errors.As(err, &fallback) || fallback.Reason.Tag != "POLICY" {
		t.Errorf("Dial that requires SMC-R = %v, %v, want a FallbackError with POLICY", c, err)
	}
	d.Require = AnyMode
	if c, err = d.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.AcceptSMC()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("accepted a connection in mode %v from %v, want that from %v", s.State().Mode, s.RemoteAddr(), c.LocalAddr())
	}

	c, err = d.Dial("tcp", listen(RequireSMCR).Addr().String())
	if err != nil {
		t.Fatalf("Dial of a listener that requires SMC-R = %v, want a connection over TCP", err)
	}
	defer c.Close()
	if st := c.State(); st.Mode != ModeTCP || st.Reason.Tag != "POLICY" {
		t.Errorf("Dial of a listener that requires SMC-R is %v because of %v, want TCP because of POLICY", st.Mode, st.Reason)
	}
	c.SetDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read from a listener that requires SMC-R = %d, %v, want EOF", n, err)
	}
}

// A lateContext is over from some call of Err on.
type lateContext struct {
	context.Context
	left atomic.Int32
}

func (c *lateContext) Err() error {
	if c.left.Add(-1) < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// Whenever the context of a dial ends, there is an error or a connection that works.
func TestDialContextEnds(t *testing.T) {
	dir := t.TempDir()
	client, server := newHost(t, Config{Dir: dir}), newHost(t, Config{Dir: dir})
	lc := ListenConfig{Host: server}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	d := Dialer{Host: client}
	for calls := range int32(30) {
		ctx := &lateContext{Context: context.Background()}
		ctx.left.Store(calls)
		c, err := d.DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			if ctx.left.Load() >= 0 || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Dial = %v after %d calls of Err of at most %d, want DeadlineExceeded or none", err, calls-ctx.left.Load(), calls)
			}
			continue
		}
		c.SetDeadline(time.Now().Add(patience))
		b := []byte{1}
		if _, err := c.Write(b); err != nil {
			t.Errorf("after %d calls of Err: Write = %v", calls, err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			t.Errorf("after %d calls of Err: Read = %v", calls, err)
		}
		c.Close()
	}
}
