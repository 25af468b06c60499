package rdma

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// poolWithout returns a pool of which all but some keepers are in use.
func poolWithout(left int32) *keeperPool {
	p := new(keeperPool)
	p.used.Store(maxKeepers - left)
	return p
}

// newKeeping is newRTS with a pool that has a keeper left.
func newKeeping(t *testing.T) (*solo, *keeperPool) {
	s := newRTS(t)
	s.keepers = poolWithout(1)
	return s, s.keepers
}

// byteAt is a WRITE of one byte, i after the next, to offset i of the region.
func (s *solo) byteAt(i int, value byte) roce.Packet {
	p := s.request(roce.WriteOnly, i, []byte{value})
	p.RETH.VA += uint64(i)
	return p
}

// TestKept fills gaps, and looks at the packets that were kept behind them.
func TestKept(t *testing.T) {
	s, pool := newKeeping(t)
	was := s.was[testGuard:][:8]
	for _, i := range []int{2, 1, 5, 2, 7} { // 2 twice: the first copy stays
		s.take(s.byteAt(i, byte(i)))
		s.mem[0] = s.was[0]
	}
	s.take(s.byteAt(2, 99))
	s.untouched()
	if got := s.answerOf(); got != roce.NakSequence {
		t.Errorf("the answer to a gap is %v", got)
	}
	s.take(s.byteAt(0, 50))
	want := []byte{50, 1, 2, was[3], was[4], was[5], was[6], was[7]}
	if got := s.mem[testGuard:][:8]; string(got) != string(want) || s.expected != testRecvPSN.Add(3) {
		t.Errorf("memory %x, want %x; expected %v", got, want, s.expected)
	}
	if got := s.answerOf(); got != roce.NakSequence {
		t.Errorf("the answer to the first of three gaps is %v, want a NAK of the next", got)
	}
	s.take(s.byteAt(3, 3))
	s.answerOf()
	s.take(s.byteAt(4, 4))
	if got := s.answerOf(); got != roce.NakSequence || s.expected != testRecvPSN.Add(6) {
		t.Errorf("the answer to the second gap is %v, expected %v", got, s.expected)
	}
	s.take(s.byteAt(6, 6))
	if got := s.answerOf(); got != roce.AckUnlimited || s.expected != testRecvPSN.Add(8) || s.msn != 8 {
		t.Errorf("the answer to the last gap is %v, expected %v, MSN %d", got, s.expected, s.msn)
	}
	if s.kept != nil || pool.used.Load() != maxKeepers-1 {
		t.Errorf("with nothing to keep there is still a keeper")
	}
	s.only(0, 8)
}

// TestKeepAhead looks how far ahead packets are kept.
func TestKeepAhead(t *testing.T) {
	for _, tt := range []struct{ ahead, kept int }{{1, 1}, {keepAhead - 1, 1}, {keepAhead, 0}, {keepAhead + 1, 0}, {1<<23 - 1, 0}} {
		s, _ := newKeeping(t)
		s.take(s.byteAt(tt.ahead, 1))
		got := 0
		if s.kept != nil {
			got = s.kept.count
		}
		if got != tt.kept {
			t.Errorf("%d ahead: %d packets kept, want %d", tt.ahead, got, tt.kept)
		}
	}
}

// TestKeptForgotten ends a connection while packets are kept: they must not come up in the next one.
func TestKeptForgotten(t *testing.T) {
	for _, end := range []string{"reset", "fail"} {
		s, pool := newKeeping(t)
		s.take(s.byteAt(1, 1))
		s.take(s.byteAt(2, 2))
		if end == "fail" {
			s.fail()
			if s.kept != nil || pool.used.Load() != maxKeepers-1 {
				t.Errorf("%s: the keeper has not come back", end)
			}
		}
		s.reset()
		if s.kept != nil || pool.used.Load() != maxKeepers-1 {
			t.Errorf("%s: the keeper has not come back", end)
		}
		s.to(StateRTS)
		s.take(s.byteAt(3, 3)) // takes a keeper
		s.take(s.byteAt(0, 0))
		if s.expected != testRecvPSN.Add(1) {
			t.Errorf("%s: packets of the connection before were carried out: expected %v", end, s.expected)
		}
		s.only(0, 1)
	}
}

// TestKeptRefused keeps packets that are wrong: the refusal comes when it is their turn.
func TestKeptRefused(t *testing.T) {
	s, pool := newKeeping(t)
	s.take(s.request(roce.SendOnly, 1, []byte{1})) // no receive
	s.take(s.request(roce.ReadRequest, 2, nil))
	s.answerOf()
	s.take(s.byteAt(0, 0))
	if got := s.answerOf(); got != 0x25 || s.state != StateRTS {
		t.Errorf("the answer is %v in %v, want an RNR NAK", got, s.state)
	}
	s.postReceive(1, 100, 1)
	s.take(s.request(roce.SendOnly, 1, []byte{1}))
	if got := s.answerOf(); got != roce.NakInvalidRequest || s.state != StateError || s.expected != testRecvPSN.Add(2) {
		t.Errorf("the answer is %v in %v, expected %v", got, s.state, s.expected)
	}
	if s.kept != nil || pool.used.Load() != maxKeepers-1 {
		t.Error("the keeper has not come back")
	}
}

// TestKeepersAreFew has more queue pairs that miss packets than there are keepers.
func TestKeepersAreFew(t *testing.T) {
	pool := new(keeperPool)
	var all []*keeper
	for range maxKeepers {
		all = append(all, pool.get())
	}
	if all[maxKeepers-1] == nil || pool.get() != nil || pool.get() != nil {
		t.Errorf("there are not %d keepers", maxKeepers)
	}
	pool.put(all[3])
	if pool.get() == nil || pool.get() != nil {
		t.Error("a keeper that was put back does not come again")
	}
}

// TestKeeperBound keeps as many packets as there is room for, of any length that the network carries: those
// that are too long for the path are not kept, and refused when it is their turn.
func TestKeeperBound(t *testing.T) {
	for _, mtu := range []wire.MTU{wire.MTU256, wire.MTU1024, wire.MTU4096} {
		s := newSolo(t)
		s.keepers = poolWithout(1)
		rtr := testRTR
		rtr.PathMTU = mtu
		s.must(s.init(LocalWrite | RemoteWrite))
		s.must(s.readyToReceive(rtr))
		s.must(s.readyToSend(testRTS))
		long := make([]byte, 65480)
		for i := 1; i < keepAhead; i += 3 {
			s.take(s.request(roce.WriteOnly, i, long[:max(len(long)-60*i, mtu.Bytes()+1)]))
		}
		for _, n := range []int{1, 200, 3000, mtu.Bytes()} { // the memory of a small one is there for a larger one
			for i := 1; i < keepAhead; i++ {
				s.take(s.request(roce.WriteMiddle, i, long[:min(n, mtu.Bytes())]))
			}
			if s.kept == nil || s.kept.count != keepAhead-1 {
				t.Fatalf("MTU %v, %d bytes: not all packets are kept", mtu, n)
			}
			held := 0
			for i := range s.kept.packets {
				held += cap(s.kept.packets[i].payload)
			}
			if held > keepAhead*mtu.Bytes() {
				t.Errorf("MTU %v, %d bytes: %d packets have %d bytes, more than %d", mtu, n, s.kept.count, held, keepAhead*mtu.Bytes())
			}
			for i := 1; i < keepAhead; i++ {
				s.kept.take(testRecvPSN.Add(i))
			}
		}
		s.reset()
		s.must(s.init(LocalWrite | RemoteWrite))
		s.must(s.readyToReceive(rtr))
		s.must(s.readyToSend(testRTS))
		s.take(s.request(roce.WriteOnly, 1, long[:mtu.Bytes()+1]))
		s.take(s.byteAt(0, 1))
		if s.state != StateRTS || s.expected != testRecvPSN.Add(1) {
			t.Errorf("MTU %v: state %v, expected %v", mtu, s.state, s.expected)
		}
		s.take(s.request(roce.WriteOnly, 1, long[:mtu.Bytes()+1]))
		if got := s.answerOf(); got != roce.NakInvalidRequest {
			t.Errorf("MTU %v: the answer to a packet that is too long is %v", mtu, got)
		}
	}
}

// TestKeeperGivenBack looks whether the memory of a keeper that nobody uses is collected.
func TestKeeperGivenBack(t *testing.T) {
	pool := new(keeperPool)
	gone := make(chan struct{})
	func() {
		k := pool.get()
		runtime.AddCleanup(k, func(c chan struct{}) { close(c) }, gone)
		pool.put(k)
	}()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		runtime.GC()
		select {
		case <-gone:
			if pool.get() == nil {
				t.Error("there is no keeper afterwards")
			}
			return
		default:
		}
	}
	t.Error("a keeper that nobody uses stays")
}

// TestDeadRegion has a region that is marked, as Deregister does it first.
func TestDeadRegion(t *testing.T) {
	s := newRTS(t)
	first := s.request(roce.WriteFirst, 0, make([]byte, 256))
	first.RETH.Length = 700
	s.take(first)
	copy(s.was, s.mem)
	s.mr.dead.Store(true)
	s.take(s.request(roce.WriteMiddle, 1, make([]byte, 256)))
	if s.state != StateError || s.syndrome != roce.NakRemoteAccess {
		t.Errorf("state %v, answer %v; want ERR and a remote access error", s.state, s.syndrome)
	}
	s.untouched()
}

// TestDeregisterWaits holds a queue pair as one does that carries out a packet: Deregister has to
// wait for it.
func TestDeregisterWaits(t *testing.T) {
	s := newSide(t, randomLoopback(), nil, nil)
	mem := make([]byte, 100)
	m := must1(s.pd.RegisterMR(mem, LocalWrite|RemoteWrite))(t)
	s.qp.mu.Lock()
	returned := make(chan error, 1)
	go func() { returned <- m.Deregister() }()
	for !m.dead.Load() {
		runtime.Gosched()
	}
	for range 20000 {
		runtime.Gosched()
		if len(returned) > 0 {
			t.Error("Deregister has returned while the queue pair was in use")
			break
		}
	}
	s.qp.mu.Unlock()
	select {
	case err := <-returned:
		if err != nil {
			t.Errorf("Deregister() = %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Deregister does not return")
	}
}

// TestRNRForever has a peer like rxe that never posts a receive, and a network that lets its second
// NAK come after we have sent again.
func TestRNRForever(t *testing.T) {
	s := newRTS(t)
	s.post(1, 1000)
	s.drain()
	for range 50 {
		s.reply(0, 0x25)
		s.now += 70 * time.Microsecond
		s.drain()
		s.now += time.Millisecond
		s.reply(0, roce.NakSequence)
		s.drain()
	}
	if s.state != StateRTS {
		t.Errorf("state %v: an RNR retry count of 7 means for ever", s.state)
	}
}

// TestNakAgain leaves a gap open while other packets come: after many of them it is told again.
func TestNakAgain(t *testing.T) {
	s, _ := newKeeping(t)
	var told []int
	for i := 1; i <= 3*nakAgain; i++ {
		s.take(s.byteAt(1, 1))
		switch got := s.answerOf(); got {
		case roce.NakSequence:
			told = append(told, i)
		case silent:
		default:
			t.Fatalf("packet %d behind the gap: the answer is %v", i, got)
		}
	}
	if want := []int{1, 1 + nakAgain, 1 + 2*nakAgain}; !slices.Equal(told, want) {
		t.Errorf("the gap was told at packets %v, want %v", told, want)
	}
	if !s.expects() {
		t.Error("expects() is false behind a gap")
	}
	s.take(s.byteAt(0, 0))
	if s.expects() {
		t.Error("expects() is true without a gap")
	}
}
