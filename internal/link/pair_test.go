package link

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// randomLoopback returns an address of 127.0.0.0/8 that nobody else is likely to have.
func randomLoopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(rand.N(250) + 2), byte(rand.N(250) + 2), byte(rand.N(250) + 2)})
}

func openDevice(t testing.TB, addr netip.Addr, cfg *rdma.Config) verbs.Device {
	t.Helper()
	dev, err := rdma.Open(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return rdma.Verbs(dev)
}

// A side is one end of a link, and its group.
type side struct {
	dev   verbs.Device
	group *Group
	link  *Link
}

func newSide(t testing.TB, dev verbs.Device) *side {
	t.Helper()
	s := &side{dev: dev, group: NewGroup()}
	t.Cleanup(s.group.Close)
	var err error
	if s.link, err = s.group.NewLink(dev); err != nil {
		t.Fatal(err)
	}
	return s
}

// peer has the values of s that the other end has to know.
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

func joinSides(t testing.TB, a, b verbs.Device) sides {
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

// A valve is a network that can be shut for as long as a test likes.
type valve struct{ shut atomic.Bool }

// newValve makes sides with a valve between them, whose queue pairs wait for ever.
func newValve(t testing.TB) (*valve, sides) {
	t.Helper()
	v := &valve{}
	cfg := &rdma.Config{Drop: func([]byte) bool { return v.shut.Load() }}
	s := sides{newSide(t, openDevice(t, randomLoopback(), cfg)), newSide(t, openDevice(t, randomLoopback(), cfg))}
	for i := range s {
		l := s[i].link
		if err := l.ReadyToReceive(s[1-i].peer()); err != nil {
			t.Fatal(err)
		}
		if err := l.qp.ReadyToSend(verbs.RTS{SendPSN: l.psn, RetryCount: retryCount, RNRRetry: rnrRetryCount}); err != nil {
			t.Fatal(err)
		}
		l.ready = true
	}
	return v, s
}

// poll returns the next event of s.
func (s *side) poll(t testing.TB) Event {
	t.Helper()
	for {
		if e, ok := s.group.Poll(); ok {
			return e
		}
		select {
		case <-s.group.News():
		case <-time.After(time.Minute):
			t.Fatal("no event")
		}
	}
}

// close ends the connection in order, or with an abort, and gives its memory back.
func (e *end) close(flags cdc.ConnFlags) (unread int) {
	unread = e.Conn.Close()
	e.SendLast(flags)
	e.carrier.Detach()
	e.carrier.Release()
	e.rmb.Free()
	return unread
}

// awaitDrained waits until nothing of a detached end is on its way.
func (e *end) awaitDrained(t testing.TB) {
	t.Helper()
	eventually(t, "the ring is given back", func() bool {
		e.carrier.mu.Lock()
		defer e.carrier.mu.Unlock()
		return e.carrier.ring == nil
	})
}

// eventually waits for something that has no news of its own.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// An end is one end of a connection.
type end struct {
	*stream.Conn
	side    *side
	rmb     *RMB
	carrier *Carrier
	ready   atomic.Bool // Conn is there for wake
}

// open makes the stream, after Attach.
func (e *end) open(spin time.Duration) {
	cfg := e.carrier.Stream()
	cfg.Spin = spin
	e.Conn = stream.New(cfg)
	e.ready.Store(true)
	e.Wake()
}

// settings say how a connection is made; the zero value is as with Linux.
type settings struct {
	code       [2]wire.SizeCode
	sendBuffer int
	eyecatcher [2]bool
	spin       time.Duration
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
		if e.ready.Load() {
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
	to := e.asOn(t, e.side.link)
	to.Eyecatcher = eyecatcher
	return to
}

// asOn is how the peer writes to e over a link of e's.
func (e *end) asOn(t testing.TB, l *Link) PeerRMBE {
	t.Helper()
	token, ok := e.rmb.Token(l)
	if !ok {
		t.Fatal("no token")
	}
	return PeerRMBE{AlertToken: e.carrier.AlertToken(), RKey: token.RKey, Addr: token.Addr, Index: 1, Size: e.rmb.Size()}
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
		e.open(set.spin)
	}
	return ends[0], ends[1]
}

// watchdog ends a test that hangs.
func watchdog(t testing.TB) {
	timer := time.AfterFunc(2*time.Minute, func() { panic(t.Name() + " hangs") })
	t.Cleanup(func() { timer.Stop() })
}

func sizes(a, b wire.SizeCode) [2]wire.SizeCode { return [2]wire.SizeCode{a, b} }
