package link

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire"
)

// randomLoopback returns an address of 127.0.0.0/8 that nobody else is likely to have.
func randomLoopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(rand.N(250) + 2), byte(rand.N(250) + 2), byte(rand.N(250) + 2)})
}

func openDevice(t testing.TB, addr netip.Addr, cfg *rdma.Config) *rdma.Device {
	t.Helper()
	dev, err := rdma.Open(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

// A side is one end of a link, and its group.
type side struct {
	dev   *rdma.Device
	group *Group
	link  *Link
}

func newSide(t testing.TB, dev *rdma.Device) *side {
	t.Helper()
	s := &side{dev: dev, group: NewGroup()}
	t.Cleanup(s.group.Close)
	var err error
	if s.link, err = s.group.NewLink(dev); err != nil {
		t.Fatal(err)
	}
	return s
}

// peer is what the other end has to know of s.
func (s *side) peer() Peer {
	return Peer{GID: s.dev.GID(), QPN: s.link.QPN(), PSN: s.link.PSN(), MTU: s.link.MTU()}
}

// sides are the ends of a link.
type sides [2]*side

// newSides makes two, joined, whose devices have a configuration.
func newSides(t testing.TB, cfg *rdma.Config) sides {
	t.Helper()
	return joinSides(t, openDevice(t, randomLoopback(), cfg), openDevice(t, randomLoopback(), cfg))
}

func joinSides(t testing.TB, a, b *rdma.Device) sides {
	t.Helper()
	s := sides{newSide(t, a), newSide(t, b)}
	for i := range s {
		if err := s[i].link.ReadyToReceive(s[1-i].peer()); err != nil {
			t.Fatal(err)
		}
		if err := s[i].link.ReadyToSend(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// An end is one end of a connection.
type end struct {
	*stream.Conn
	side    *side
	rmb     *RMB
	carrier *Carrier
}

// settings say how a connection is made; the zero value is as with Linux.
type settings struct {
	code       [2]wire.SizeCode
	sendBuffer int
	eyecatcher [2]bool
	spin       time.Duration
	notice     func(error)
}

// prepare makes an end that waits for its peer.
func (s *side) prepare(t testing.TB, code wire.SizeCode, sendBuffer int) *end {
	t.Helper()
	e := &end{side: s}
	var err error
	if e.rmb, err = s.group.NewRMB(code); err != nil {
		t.Fatal(err)
	}
	wake := func() {
		if e.Conn != nil {
			e.Wake()
		}
	}
	if e.carrier, err = s.group.NewCarrier(CarrierConfig{RMB: e.rmb, Wake: wake, SendBuffer: sendBuffer}); err != nil {
		t.Fatal(err)
	}
	return e
}

// as is how the peer writes to e.
func (e *end) as(t testing.TB, eyecatcher bool) PeerRMBE {
	t.Helper()
	token, ok := e.rmb.Token(e.side.link)
	if !ok {
		t.Fatal("no token")
	}
	return PeerRMBE{AlertToken: e.carrier.AlertToken(), RKey: token.RKey, Addr: token.Addr, Index: 1, Size: e.rmb.Size(), Eyecatcher: eyecatcher}
}

// connect makes a connection. Both ends are made before either is attached.
func (s sides) connect(t testing.TB, set settings) (a, b *end) {
	t.Helper()
	ends := [2]*end{}
	for i := range s {
		ends[i] = s[i].prepare(t, set.code[i], set.sendBuffer)
	}
	for i, e := range ends {
		if err := e.carrier.Attach(s[i].link, ends[1-i].as(t, set.eyecatcher[1-i]), set.eyecatcher[i]); err != nil {
			t.Fatal(err)
		}
		cfg := e.carrier.Stream()
		cfg.Spin = set.spin
		e.Conn = stream.New(cfg)
	}
	return ends[0], ends[1]
}

// watchdog ends a test that hangs.
func watchdog(t testing.TB) {
	timer := time.AfterFunc(2*time.Minute, func() { panic(t.Name() + " hangs") })
	t.Cleanup(func() { timer.Stop() })
}
