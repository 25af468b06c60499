package host

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/wire/clc"
)

// A fakeOption is TCP option 254 without an agent.
type fakeOption struct {
	asked  atomic.Int32
	ask    error
	state  option.State
	reason option.Reason
	err    error
}

func (o *fakeOption) Ask(syscall.RawConn) error { o.asked.Add(1); return o.ask }
func (o *fakeOption) Read(syscall.RawConn) (option.State, option.Reason, error) {
	return o.state, o.reason, o.err
}

// TestSMCROption has hosts that learn from the TCP option which peers speak CLC.
func TestSMCROption(t *testing.T) {
	for _, tt := range []struct {
		name           string
		client, server *fakeOption
		want           conn.Mode
		why            clc.Diagnosis // that both ends read from their sockets
	}{
		{"both", &fakeOption{state: option.Both}, &fakeOption{state: option.Both}, conn.ModeSMCR, 0},
		{"peer silent", &fakeOption{state: option.Alone, reason: option.PeerSilent}, &fakeOption{state: option.Alone, reason: option.NotSent}, conn.ModeTCP, clc.DiagPeerNoSMC},
		{"fast open", &fakeOption{state: option.Alone, reason: option.FastOpen}, &fakeOption{state: option.Alone, reason: option.FastOpen}, conn.ModeTCP, clc.DiagFastOpen},
		{"no agent", &fakeOption{ask: option.ErrNoAgent, state: option.Both}, &fakeOption{ask: option.ErrNoAgent, state: option.Both}, conn.ModeTCP, 0},
		{"broken", &fakeOption{err: fmt.Errorf("broken")}, &fakeOption{err: fmt.Errorf("broken")}, conn.ModeTCP, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, func(c, s *Config) {
				c.SMCRPeers, s.SMCRPeers = nil, nil
				c.Option, s.Option = tt.client, tt.server
			})
			for range 2 {
				c, s := r.connect()
				if c.Mode() != tt.want || s.Mode() != tt.want {
					t.Errorf("modes %v, %v, reasons %v, %v; want %v", c.Mode(), s.Mode(), c.Reason(), s.Reason(), tt.want)
				}
				for h, x := range map[*Host]conn.Conn{r.client: c, r.server: s} {
					if _, why := h.readOption(tcpOf(x)); why != tt.why {
						t.Errorf("the sockets say %v, want %v", why, tt.why)
					}
				}
				checkExchange(t, c, s)
				c.Close()
				s.Close()
			}
			if n := tt.client.asked.Load(); tt.client.ask != nil && n != 1 || tt.client.ask == nil && n != 2 {
				t.Errorf("the client has asked %d times for two connections", n)
			}
			if n := tt.server.asked.Load(); n != 1 {
				t.Errorf("the server has asked %d times for one listener", n)
			}
		})
	}
	o := &fakeOption{state: option.Both}
	r := newSMCRRig(t, func(c, s *Config) {
		c.SMCRPeers, s.SMCRPeers, c.UEIDs, s.UEIDs = nil, nil, nil, nil
		c.Option, s.Option = o, o
	})
	c, s := r.connect()
	if c.Mode() != conn.ModeTCP || s.Mode() != conn.ModeTCP || o.asked.Load() != 0 {
		t.Errorf("hosts without a UEID: modes %v, %v, asked %d times", c.Mode(), s.Mode(), o.asked.Load())
	}
	c.Close()
	s.Close()
}

// TestNotCLC has clients at an address where CLC is expected that do not speak it.
func TestNotCLC(t *testing.T) {
	r := newSMCRRig(t, nil)
	for _, said := range []string{"x", "\xe2\xd4x", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\xe2\xd4\xc3\xd8 nearly"} {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop1, 0))}
		c, err := d.Dial("tcp", r.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte(said)); err != nil {
			t.Error(err)
		}
		s := mustAccept(t, r.l)
		if s.Mode() != conn.ModeTCP || s.Reason().Code != clc.DiagPeerNoSMC {
			t.Errorf("after %q: mode %v, reason %v", said, s.Mode(), s.Reason())
		}
		// The application may look for itself, but where it began as we do.
		if f, err := s.File(); err == nil {
			f.Close()
		} else if !conn.EyecatcherStarts([]byte(said[:1])) {
			t.Errorf("File after %q: %v", said, err)
		}
		got := make([]byte, len(said))
		for n := 0; n < len(said); {
			k, err := s.Read(got[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		if string(got) != said {
			t.Errorf("read %q, want %q", got, said)
		}
		checkExchange(t, c, s)
		c.Close()
		s.Close()
	}
}
