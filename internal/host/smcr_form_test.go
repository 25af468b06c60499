package host

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestSMCREyecatcher has a client that keeps to RFC 7609 and does not know of "no eyecatcher": in the elements of both sides data
// begins after one.
func TestSMCREyecatcher(t *testing.T) {
	r := newSMCRRig(t, nil)
	x := newSMCRLiar(t, r)
	var conn atomic.Pointer[stream.Conn]
	carrier, err := x.net.NewCarrier(link.CarrierConfig{RMB: x.rmb, Wake: func() {
		if c := conn.Load(); c != nil {
			c.Wake()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	x.propose()
	x.confirm(func(p *clc.ParamsR) { p.AlertToken = carrier.AlertToken() })
	reply := x.confirmLink(x.next())
	reply.CacheSize = 0
	x.send(reply.Append(nil))
	x.reject(x.next())
	s := mustAccept(t, r.l)
	checkSMCR(t, s)
	s.SetDeadline(time.Now().Add(patience))
	a := x.accept.R
	to := link.PeerRMBE{AlertToken: a.AlertToken, RKey: a.RKey, Addr: a.RMBAddr, Index: a.RMBEIndex, Size: a.RMBESize, Eyecatcher: true}
	if err := carrier.Attach(x.link, to, true); err != nil {
		t.Fatal(err)
	}
	c := stream.New(carrier.Stream())
	conn.Store(c)
	c.Wake()
	c.SetReadDeadline(time.Now().Add(patience))
	for range 3 { // each more than once round
		data := make([]byte, 100<<10)
		smctest.Pattern(data, 0)
		for _, ends := range [][2]io.ReadWriter{{s, c}, {c, s}} {
			go ends[0].Write(data)
			got := make([]byte, len(data))
			if _, err := io.ReadFull(ends[1], got); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, data) {
				t.Fatal("other bytes than were written")
			}
		}
	}
	s.Abort()
	s.Close()
	c.Fail(nil)
	carrier.Detach()
	carrier.Release()
}

// TestSMCRShed has clients that come once and go, each with an identity of its own, as processes have: the memory that is kept for their
// next connections is there for others.
func TestSMCRShed(t *testing.T) {
	const buffer = 64 << 10
	r := newSMCRRig(t, func(c, s *Config) {
		c.ReadBuffer, s.ReadBuffer = buffer, buffer
		s.MemoryBudget = 4 * buffer // of which one is a client's send ring, while it is there
	})
	for i := range byte(6) {
		addr := netip.AddrFrom4([4]byte{127, 0, 0, 10 + i})
		other := newTestHost(t, Config{
			UEIDs: r.client.cfg.UEIDs, SMCRPeers: r.client.cfg.SMCRPeers, ReadBuffer: buffer, RDMA: r.client.cfg.RDMA,
		})
		c, err := other.Dial(boundedContext(t), "tcp", r.l.Addr().String(), DialOptions{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0))})
		if err != nil {
			t.Fatal(err)
		}
		s := mustAccept(t, r.l)
		checkSMCR(t, c, s)
		checkExchange(t, c, s)
		c.Close()
		s.Close()
		checkGone(t, other, r.server)
		smctest.Eventually(t, patience, "the send ring is given back", func() bool { return rings(r.server) == 0 })
	}
	// A connection that needs more than the remaining memory takes the memory of several.
	l, err := r.server.Listen(t.Context(), "tcp", loop2.String()+":0", ListenOptions{ReadBuffer: 2 * buffer})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r.l = l
	c, s := r.connect()
	checkSMCR(t, c, s)
	checkExchange(t, c, s)
	if used := memoryOf(r.server); used > r.server.cfg.MemoryBudget {
		t.Errorf("%d bytes are in use, more than the budget", used)
	}
	c.Close()
	s.Close()
}

// TestSMCRBufferSize has hosts that receive into 1 MiB. A peer of which that is not known to be within its architecture is given 512 KiB: one of version 1, and
// a client's first connection, unless it is a Linux kernel, as only these have no peer ID.
func TestSMCRBufferSize(t *testing.T) {
	const large = 1 << 20
	size := func(c conn.Conn) int {
		local, _ := c.Buffers()
		return local
	}
	for version, want := range map[string][2][2]int{ // of client and server, by connection
		"2.1": {{large, large / 2}, {large, large}},
		"1.0": {{large / 2, large / 2}, {large / 2, large / 2}},
	} {
		r := newSMCRRig(t, func(c, s *Config) {
			for _, x := range []*Config{c, s} {
				x.ReadBuffer = large
				if version == "1.0" {
					x.SMCRv1, x.UEIDs = true, nil
				}
			}
		})
		for i, want := range want {
			c, s := r.connect()
			checkSMCR(t, c, s)
			if got := [2]int{size(c), size(s)}; got != want || c.Agreed().Version != version {
				t.Errorf("version %s, connection %d: %v bytes, want %v", c.Agreed().Version, i+1, got, want)
			}
			checkExchange(t, c, s)
			defer c.Close()
			defer s.Close()
		}
	}
	for _, kernel := range []bool{false, true} {
		r := newSMCRRig(t, func(c, s *Config) { c.ReadBuffer, s.ReadBuffer = large, large })
		x := newSMCRLiar(t, r)
		x.dial()
		p := x.proposal()
		if kernel {
			p.PeerID, p.MAC = wire.PeerID{}, wire.MAC{}
		}
		x.write(p)
		m, err := readCLC(x.tcp)
		a, ok := m.(clc.Accept)
		if err != nil || !ok {
			t.Fatalf("the server answered %v, %v, want an Accept", m, err)
		}
		if want := map[bool]int{false: large / 2, true: large}[kernel]; a.R.RMBESize.Bytes() != want {
			t.Errorf("without a peer ID %v: the server has %d bytes, want %d", kernel, a.R.RMBESize.Bytes(), want)
		}
		x.tcp.Close()
	}
}
