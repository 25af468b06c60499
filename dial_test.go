package smc

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

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
