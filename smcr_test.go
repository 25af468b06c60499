package smc

import (
	"context"
	"net"
	"net/http/httptest"
	"net/netip"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/smctest"
)

// An smcrPair is two hosts that have only SMC-R between them: one at 127.0.0.2, the server at 127.0.0.1, of which
// httptest has a certificate.
type smcrPair struct {
	dialer Dialer // from the one
	server *Host
	listen string // at the other
}

func newSMCRPair(tb testing.TB, change func(*host.Config)) smcrPair {
	tb.Helper()
	addrs := [2]netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")}
	port := smctest.FreePort(tb, addrs[:]...)
	var hosts [2]*Host
	for i := range hosts {
		config := Config{Dir: tb.TempDir(), UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"127.0.0.0/8"}}
		cfg := config.internal()
		cfg.RDMA.Port = port
		if change != nil {
			change(&cfg)
		}
		h, err := host.New(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		hosts[i] = &Host{h: h}
		tb.Cleanup(func() { h.Close() })
	}
	return smcrPair{
		dialer: Dialer{Host: hosts[0], Require: RequireSMCR, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(addrs[0], 0))},
		server: hosts[1],
		listen: addrs[1].String() + ":0",
	}
}

// connect returns both ends of a connection.
func (p smcrPair) connect(tb testing.TB) (c, s *Conn) {
	tb.Helper()
	lc := ListenConfig{Host: p.server}
	l, err := lc.Listen(context.Background(), "tcp", p.listen)
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	if c, err = p.dialer.Dial("tcp", l.Addr().String()); err != nil {
		tb.Fatal(err)
	}
	if s, err = l.AcceptSMC(); err != nil {
		tb.Fatal(err)
	}
	return c, s
}

func TestSMCRNettest(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*host.Config)
	}{
		{"default", nil},
		{"without spinning", func(c *host.Config) { c.Spin = -1 }},
		{"with small buffers", func(c *host.Config) { c.ReadBuffer = 16 << 10 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			p := newSMCRPair(t, tt.change)
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				c, s := p.connect(t)
				return c, s, func() { c.Close(); s.Close() }, nil
			})
		})
	}
}

func TestSMCRHTTP(t *testing.T) {
	for _, tt := range httpKinds {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			p := newSMCRPair(t, nil)
			ts, hc := httpOver(t, p.dialer, p.server, p.listen, tt.start, tt.protocols)
			testHTTP(t, ts, hc, tt.proto, ModeSMCR)
		})
	}
}

func TestSMCRTLS(t *testing.T) {
	smctest.CheckLeaks(t)
	ts := httptest.NewUnstartedServer(nil) // has a certificate
	ts.StartTLS()
	defer ts.Close()
	c, s := newSMCRPair(t, nil).connect(t)
	testTLS(t, ts, c, s)
}
