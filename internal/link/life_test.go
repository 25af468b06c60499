package link

import (
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// TestMany moves bytes both ways through many connections of one link at once, some of which are lost.
func TestMany(t *testing.T) {
	watchdog(t)
	s := newSides(t, &rdma.Config{Drop: func([]byte) bool { return rand.IntN(300) == 0 }})
	conns, size := 100, 200_000
	if raceEnabled {
		conns, size = 40, 50_000
	}
	var all sync.WaitGroup
	for range conns {
		a, b := s.connect(t, settings{})
		all.Go(func() {
			exchange(t, a, b, size)
			finish(t, a, b)
		})
	}
	all.Wait()
	for i := range s {
		if n := len(s[i].group.carriers()); n != 0 {
			t.Errorf("%d tokens are left", n)
		}
		if c, m := s[i].link.onTheirWay(); c+m != 0 {
			t.Errorf("%d and %d messages are left", c, m)
		}
		if st := s[i].link.Stats(); st.UnknownToken+st.Stale+st.Malformed != 0 {
			t.Errorf("%+v", st)
		}
	}
	s.check(t)
}

// check closes both groups and looks for memory that they leave.
func (s sides) check(t testing.TB) {
	t.Helper()
	for _, e := range s {
		e.group.Close()
		if err := e.link.pd.Close(); err != nil {
			t.Error(err)
		}
		e.group.mu.Lock()
		if n, k := len(e.group.memories), len(e.group.rings); n != 0 || k != 0 {
			t.Errorf("%d buffers are left, of which %d are idle send rings", n, k)
		}
		e.group.mu.Unlock()
	}
}

// TestTeardown ends connections, links, groups and devices in any order and at once, in the middle of everything.
func TestTeardown(t *testing.T) {
	watchdog(t)
	rounds := 60
	if raceEnabled {
		rounds = 25
	}
	for round := range rounds {
		r := rand.New(rand.NewPCG(uint64(round), 3))
		s := newSides(t, nil)
		var ends []*end
		var all sync.WaitGroup
		for range 4 {
			a, b := s.connect(t, settings{})
			ends = append(ends, a, b)
			for _, e := range []*end{a, b} {
				all.Go(func() { io.Copy(io.Discard, e.Conn) })
				all.Go(func() {
					b := make([]byte, 20_000)
					for n := 1; ; n = (n*7 + 1) % len(b) {
						if _, err := e.Write(b[:n]); err != nil {
							return
						}
					}
				})
			}
		}
		all.Go(func() {
			for s[0].link.SendLLC([]byte{7}, 1) == nil || errors.Is(s[0].link.SendLLC(make([]byte, 100), 1), ErrTooMany) {
				s[0].group.Poll()
				s[1].group.Poll()
			}
		})
		var ending sync.WaitGroup
		for _, f := range []func(){
			s[0].group.Close, s[1].link.Close, func() { s[1].link.Fail(io.EOF) }, func() { s[0].dev.Close() },
			func() { ends[0].SendLast(cdc.Abort); ends[0].carrier.Detach() },
			func() { ends[3].SendLast(cdc.Closed); ends[3].carrier.Detach(); ends[3].carrier.Release() },
			func() { ends[4].carrier.Release() },
		} {
			pause := r.IntN(200)
			ending.Go(func() {
				for range pause {
					s[0].link.Stats()
					ends[7].PeerHeader()
				}
				f()
			})
		}
		ending.Wait()
		for _, e := range ends { // as their owner does when a link has failed
			all.Go(func() {
				e.Fail(io.ErrUnexpectedEOF)
				e.Conn.Detach()
				e.carrier.Detach()
			})
		}
		all.Wait()
		for _, e := range ends {
			e.carrier.Release()
			if e.carrier.ring != nil {
				t.Errorf("round %d: a send ring is left, %d messages on their way", round, e.carrier.out)
			}
			e.rmb.Free()
		}
		s.check(t)
	}
}

// TestFailedLink has a connection's owner learn that the peer is gone, while it writes.
func TestFailedLink(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	a, _ := s.connect(t, settings{})
	s[1].dev.Close()
	go func() {
		for {
			if _, err := a.Write(make([]byte, 1000)); err != nil {
				return
			}
		}
	}()
	e := s[0].poll(t)
	broken, ok := errors.AsType[*WorkError](e.Err)
	if e.Kind != EventFailed || !ok || broken.Status != verbs.StatusRetryExceeded {
		t.Errorf("event %+v", e)
	}
	<-s[0].link.Failed()
	a.Fail(e.Err)
	finish(t, a)
}

// TestRMBs has RMBs reached over several links, cleared, and taken away.
func TestRMBs(t *testing.T) {
	s := newSides(t, nil)
	g := s[0].group
	first, err := g.NewRMB(1)
	if err != nil {
		t.Fatal(err)
	}
	other, err := g.NewLink(s[0].dev)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[RMBToken]bool)
	second, err := g.NewRMB(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, rmb := range []*RMB{first, second} {
		for _, l := range []*Link{s[0].link, other} {
			token, ok := rmb.Token(l)
			if !ok || token.RKey == 0 || seen[token] {
				t.Errorf("token %+v, %v", token, ok)
			}
			seen[token] = true
		}
		if _, ok := rmb.Token(s[1].link); ok {
			t.Error("a token for another group's link")
		}
	}
	if n := len(first.Bytes()); n != wire.SizeCode(1).Bytes() || first.Size() != 1 {
		t.Errorf("%d bytes of size %v", n, first.Size())
	}
	first.Bytes()[len(first.Bytes())-1], first.Bytes()[0] = 1, 1
	first.Clear()
	for i, b := range first.Bytes() {
		if b != 0 {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	other.Close()
	if _, ok := first.Token(other); ok {
		t.Error("a token for a closed link")
	}
	first.Free()
	g.Close()
	second.Free()
	if _, err := g.NewRMB(0); err == nil {
		t.Error("an RMB of a closed group")
	}
	if _, err := g.NewLink(s[0].dev); err == nil {
		t.Error("a link of a closed group")
	}
}

// TestAlertTokens has tokens that nobody else has, until there are too many.
func TestAlertTokens(t *testing.T) {
	g := NewGroup()
	defer g.Close()
	rmb := &RMB{group: g, mem: &memory{bytes: make([]byte, 16<<10)}}
	seen := make(map[wire.AlertToken]bool)
	var sum, highest wire.AlertToken
	for range maxTokens {
		c, err := g.NewCarrier(CarrierConfig{RMB: rmb})
		if err != nil {
			t.Fatal(err)
		}
		if token := c.AlertToken(); token == 0 || seen[token] {
			t.Fatalf("token %v", token)
		} else {
			seen[token] = true
			sum ^= token
			highest = max(highest, token)
		}
	}
	if highest < 1<<30 {
		t.Errorf("no token is above %v", highest)
	}
	if _, err := g.NewCarrier(CarrierConfig{RMB: rmb}); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	g.carriers()[0].Release()
	if _, err := g.NewCarrier(CarrierConfig{RMB: rmb}); err != nil {
		t.Errorf("after one was released: %v", err)
	}
}

// TestIdleRings has the send rings of former connections used again, some of them.
func TestIdleRings(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	const code, size, kept = 6, 1 << 20, maxIdleRings / keptBytes
	var ends []*end
	for range 1 + kept {
		a, b := s.connect(t, settings{code: sizes(code, code), sendBuffer: size})
		rally(t, a, b)
		ends = append(ends, a, b)
	}
	ring := ends[len(ends)-2].carrier.ring
	finish(t, ends...)
	g := s[0].group
	if n := len(g.rings); n != kept {
		t.Errorf("%d idle rings", n)
	}
	a, b := s.connect(t, settings{code: sizes(code, code), sendBuffer: size})
	if a.carrier.ring != ring {
		t.Error("the ring that was used last is not used again")
	}
	rally(t, a, b)
	finish(t, a, b)
	s.check(t)
}

// TestReturnPages gives the pages of a send ring back while a connection is idle.
func TestReturnPages(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	a, b := s.connect(t, settings{code: sizes(4, 4)})
	data := make([]byte, 100_000)
	for i := range data {
		data[i] = 1
	}
	for range 2 {
		if _, err := a.Write(data); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, make([]byte, len(data))); err != nil {
			t.Fatal(err)
		}
		b.SayRead()
		eventually(t, "all is read", a.PeerReadAll)
		eventually(t, "the pages to be given back", func() bool { // not before the ACK of all bytes
			if err := a.ReturnPages(a.carrier.ReturnPages); err != nil {
				t.Fatal(err)
			}
			zeroes := 0
			for _, x := range a.carrier.ring.bytes {
				if x == 0 {
					zeroes++
				}
			}
			return zeroes >= len(a.carrier.ring.bytes)-3*4096
		})
	}
}

// TestPathMTU has peers with a smaller path MTU than the device's, which counts, or with one that
// is none.
func TestPathMTU(t *testing.T) {
	watchdog(t)
	s := sides{newSide(t, openDevice(t, randomLoopback(), nil)), newSide(t, openDevice(t, randomLoopback(), nil))}
	for i := range s {
		p := s[1-i].peer()
		for _, p.MTU = range []wire.MTU{0, 6, 15} {
			if err := s[i].link.ReadyToReceive(p); !errors.Is(err, ErrArgument) {
				t.Errorf("path MTU %d: %v", p.MTU, err)
			}
		}
		p.MTU = wire.MTU256
		if err := s[i].link.ReadyToReceive(p); err != nil {
			t.Fatal(err)
		}
		if err := s[i].link.ReadyToSend(); err != nil {
			t.Fatal(err)
		}
	}
	_, b := s.connect(t, settings{})
	before := s[1].link.QPStats().SentPackets
	if _, err := b.Write(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all of it", func() bool { return s[0].link.Stats().ReceivedCDC > 0 })
	if n := s[1].link.QPStats().SentPackets - before; n < 4096/256+1 {
		t.Errorf("%d packets for 4096 bytes and a message, with a path MTU of 256", n)
	}
}

// A recorder notes the calls of a link to its queue pair.
type recorder struct {
	verbs.QP
	mu   sync.Mutex
	rtr  verbs.RTR
	rts  verbs.RTS
	sent []verbs.SendWR
}

func (q *recorder) ReadyToReceive(a verbs.RTR) error {
	q.rtr = a
	return q.QP.ReadyToReceive(a)
}

func (q *recorder) ReadyToSend(a verbs.RTS) error {
	q.rts = a
	return q.QP.ReadyToSend(a)
}

func (q *recorder) PostSend(work ...verbs.SendWR) error {
	q.mu.Lock()
	q.sent = append(q.sent, work...)
	q.mu.Unlock()
	return q.QP.PostSend(work...)
}

// TestQueuePair has the attributes of a link's queue pair, its receives, and its work, as peers count on them: Linux net/smc sends 16 messages and more
// without waiting for us, sends again for as long as these attributes say, and is woken by solicited events alone.
func TestQueuePair(t *testing.T) {
	watchdog(t)
	s := sides{newSide(t, openDevice(t, randomLoopback(), nil)), newSide(t, openDevice(t, randomLoopback(), nil))}
	l := s[0].link
	if err := l.qp.PostRecv(l.receiveWork(0)); receives != 48 || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("%d receives, one more: %v; want 48 that were posted before anybody knows the link", receives, err)
	}
	q := &recorder{QP: l.qp}
	l.qp = q
	for i := range s {
		if err := s[i].link.ReadyToReceive(s[1-i].peer()); err != nil {
			t.Fatal(err)
		}
		if err := s[i].link.ReadyToSend(); err != nil {
			t.Fatal(err)
		}
	}
	if q.rtr.MinRNRTimer != 5 {
		t.Errorf("RNR NAK timer %d, want 5, 60 µs", q.rtr.MinRNRTimer)
	}
	if q.rts.Timeout != 15 || q.rts.RetryCount != 7 || q.rts.RNRRetry != 7 {
		t.Errorf("timeout %d, %d retries, %d after RNR NAKs; want 15, 7, 7", q.rts.Timeout, q.rts.RetryCount, q.rts.RNRRetry)
	}
	a, b := s.connect(t, settings{})
	exchange(t, a, b, 100_000)
	if err := l.SendLLC([]byte{7}, 0); err != nil {
		t.Fatal(err)
	}
	finish(t, a, b)
	q.mu.Lock()
	defer q.mu.Unlock()
	writes := 0
	for i, w := range q.sent {
		switch w.Op {
		case verbs.OpWrite:
			if writes++; w.Signaled || w.Solicited || i+1 == len(q.sent) {
				t.Fatalf("a WRITE that is signaled, solicited, or the last one: %+v", w)
			}
		case verbs.OpSend:
			if !w.Signaled || !w.Solicited || writes > 2 {
				t.Fatalf("a SEND after %d WRITEs: %+v", writes, w)
			}
			writes = 0
		default:
			t.Fatalf("%+v", w)
		}
	}
}
