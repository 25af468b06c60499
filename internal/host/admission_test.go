package host

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/wire/clc"
)

// An admissionRig is a server that answers requests, and clients of it.
type admissionRig struct {
	t   *testing.T
	dir string
	l   *Listener
}

func newAdmissionRig(t *testing.T) *admissionRig {
	t.Helper()
	r := &admissionRig{t: t, dir: t.TempDir()}
	r.l = mustListen(t, newTestHost(t, Config{Dir: r.dir}), "127.0.0.1:0")
	go func() {
		for {
			c, err := r.l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 200)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					if _, err := c.Write(b[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return r
}

// connect makes n connections, each with so many requests, and returns a letter for each: m for SMC, t for TCP.
func (r *admissionRig) connect(h *Host, n, requests int, opts DialOptions) string {
	r.t.Helper()
	var b strings.Builder
	for range n {
		c, err := h.Dial(context.Background(), "tcp", r.l.Addr().String(), opts)
		if err != nil {
			r.t.Fatal(err)
		}
		for range requests {
			request(r.t, c)
		}
		if c.Mode() == conn.ModeSMCD {
			b.WriteByte('m')
		} else {
			b.WriteByte('t')
			if why := c.Reason().Code; why != clc.DiagShort {
				r.t.Errorf("TCP because of %v", c.Reason())
			}
		}
		if err := c.Close(); err != nil {
			r.t.Error(err)
		}
	}
	return b.String()
}

// request asks the server, and reads its answer.
func request(t *testing.T, c net.Conn) {
	t.Helper()
	b := make([]byte, 100)
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(b); {
		m, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
}

// TestAdmission has connections to a server be TCP after some that were short, but for one now and then, and be moved again after one that was not.
func TestAdmission(t *testing.T) {
	r := newAdmissionRig(t)
	cfg := Config{Dir: r.dir, ShortAfter: 5}
	client := newTestHost(t, cfg)
	if got, want := r.connect(client, 5+31+1+1, 1, DialOptions{}), strings.Repeat("m", 5)+strings.Repeat("t", 31)+"mt"; got != want {
		t.Errorf("short connections: %s, want %s", got, want)
	}
	if n := client.Status().Counters.Fallbacks; len(n) != 1 || n[0].Tag != "SHORT" || n[0].Count != 32 {
		t.Errorf("fallbacks are %+v, want 32, SHORT", n)
	}
	if got := r.connect(newTestHost(t, cfg), 1, 1, DialOptions{}); got != "t" {
		t.Errorf("another host: %s", got)
	}
	if got := r.connect(client, 1, 1, DialOptions{Require: conn.RequireSMCD}); got != "m" {
		t.Errorf("where SMC is required: %s", got)
	}
	off := cfg
	off.ShortAfter = -1
	if got := r.connect(newTestHost(t, off), 3, 1, DialOptions{}); got != "mmm" {
		t.Errorf("switched off: %s", got)
	}
	grown := false
	for range 64 { // the next one that is moved is at most so far away
		if grown = r.connect(client, 1, 20, DialOptions{}) == "m"; grown {
			break
		}
	}
	if got := r.connect(client, 6, 1, DialOptions{}); !grown || got != "mmmmmt" {
		t.Errorf("after one that has gained, %t: %s", grown, got)
	}
}

// TestAdmissionLong checks that a program gets no TCP if its connections carry something.
func TestAdmissionLong(t *testing.T) {
	r := newAdmissionRig(t)
	client := newTestHost(t, Config{Dir: r.dir, ShortAfter: 2})
	if got := r.connect(client, 20, 8, DialOptions{}); got != strings.Repeat("m", 20) {
		t.Errorf("connections with eight requests: %s", got)
	}
}

// TestAdmissionKnown has a connection that stays TCP without a question be as any other: the program's
// settings hold, and so does a policy that has changed.
func TestAdmissionKnown(t *testing.T) {
	r := newAdmissionRig(t)
	client := newTestHost(t, Config{Dir: r.dir, ShortAfter: 1})
	for deadline := time.Now().Add(patience); ; { // an answer may become too old before the next line
		r.connect(client, 2, 1, DialOptions{})
		if client.admission.Known(r.l.addr) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is known of a server after two short connections")
		}
	}
	var seen string
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}
	c, err := client.Dial(boundedContext(t), "tcp", r.l.Addr().String(), DialOptions{
		LocalAddr: from,
		Control: func(_ context.Context, network, address string, _ syscall.RawConn) error {
			seen = network + " " + address
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if ip, want := c.LocalAddr().(*net.TCPAddr).IP, "tcp4 "+r.l.Addr().String(); !ip.Equal(from.IP) || seen != want {
		t.Errorf("a connection from %v, control was called for %q; want %v, %q", ip, seen, from.IP, want)
	}
	if got := c.Reason().Code; got != clc.DiagShort {
		t.Errorf("TCP because of %v, want short", c.Reason())
	}

	refusing := newTestHost(t, Config{Dir: r.dir, Connect: config.Filter{Addresses: []string{"none"}}})
	client.rules.current.Store(refusing.rules.policy())
	c = mustDial(t, client, r.l.Addr())
	defer c.Close()
	if got := c.Reason().Code; got != clc.DiagNotAllowed {
		t.Errorf("TCP because of %v, where the policy refuses the server", c.Reason())
	}
}
