package rdma

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gosmc/smc/wire/roce"
)

var (
	schedLocal = netip.MustParseAddrPort("192.0.2.1:4791")
	schedPeers = []netip.AddrPort{
		netip.MustParseAddrPort("192.0.2.2:4791"), netip.MustParseAddrPort("192.0.2.3:4791"), netip.MustParseAddrPort("192.0.2.4:4791"),
	}
)

// A turnTaker is a queue pair as a scheduler sees it.
type turnTaker struct {
	share
	q qpc
}

func newTurnTaker(s *scheduler, remote netip.AddrPort) *turnTaker {
	k := new(turnTaker)
	k.q.state = StateRTS
	s.join(&k.share, schedLocal, remote, turnPackets)
	k.answered = true
	return k
}

// send has n packets go out in a turn.
func (k *turnTaker) send(s *scheduler, n, promised int) {
	k.q.next = k.q.next.Add(n)
	s.settle(time.Second, &k.share, &k.q, promised)
}

// acked has n packets acknowledged.
func (k *turnTaker) acked(s *scheduler, n int) {
	k.q.una = k.q.una.Add(n)
	s.settle(time.Second, &k.share, &k.q, 0)
}

func expectTurn(t *testing.T, s *scheduler, want *turnTaker, wantN int) {
	t.Helper()
	sh, n := s.next(false)
	switch {
	case want == nil && sh != nil:
		t.Fatalf("next() = a turn of %d, want none", n)
	case want != nil && (sh != &want.share || n != wantN):
		t.Fatalf("next() = %p, %d, want %p, %d", sh, n, &want.share, wantN)
	}
}

// TestTurns has three queue pairs of one path send as much as they can.
func TestTurns(t *testing.T) {
	var s scheduler
	a, b, c := newTurnTaker(&s, schedPeers[0]), newTurnTaker(&s, schedPeers[0]), newTurnTaker(&s, schedPeers[0])
	a.path.budget.size, a.path.budget.threshold = 150, 150
	for _, k := range []*turnTaker{a, b, c} {
		s.wait(&k.share, false)
	}
	expectTurn(t, &s, a, 64)
	a.send(&s, 64, 64)
	s.wait(&a.share, false)
	expectTurn(t, &s, b, 64)
	b.send(&s, 64, 64)
	s.wait(&b.share, false)
	expectTurn(t, &s, c, 22)
	c.send(&s, 10, 22) // it had no more
	s.wait(&c.share, false)
	expectTurn(t, &s, nil, 0) // 12 are left, which are not worth a turn
	if s.hasWork() {
		t.Error("there is work for nobody")
	}
	if n := s.claim(&a.share); n != 0 {
		t.Errorf("claim() = %d while others wait, want 0", n)
	}
	b.acked(&s, 40)
	expectTurn(t, &s, a, 52)
	a.send(&s, 52, 52)
	a.acked(&s, 116)
	expectTurn(t, &s, b, 64)
}

// TestTurnAlone has one queue pair on a path, which may have all of it.
func TestTurnAlone(t *testing.T) {
	var s scheduler
	a := newTurnTaker(&s, schedPeers[0])
	a.path.budget.size = 700
	if n := s.claim(&a.share); n != 700 {
		t.Errorf("claim() = %d, want 700", n)
	}
	a.send(&s, 300, 700)
	s.wait(&a.share, false)
	expectTurn(t, &s, a, 400)
}

// TestFirstTurn has the peer of one queue pair not answer yet, and the peer of another answer no
// more.
func TestFirstTurn(t *testing.T) {
	var s scheduler
	a, b := newTurnTaker(&s, schedPeers[0]), newTurnTaker(&s, schedPeers[0])
	a.path.budget.size, a.path.budget.progressAt = 700, time.Second
	a.answered = false
	s.wait(&a.share, false)
	s.wait(&b.share, false)
	expectTurn(t, &s, a, firstTurn)
	a.send(&s, firstTurn, firstTurn)
	a.acked(&s, 1)
	s.wait(&a.share, false)
	s.wait(&b.share, false)
	expectTurn(t, &s, b, 64)
	b.send(&s, 64, 64)
	s.wait(&b.share, false)
	expectTurn(t, &s, a, 64)
	a.q.stats.Timeouts++
	a.q.timeout = time.Second
	a.send(&s, 0, 64)
	s.wait(&a.share, false)
	expectTurn(t, &s, b, 64)
	s.wait(&b.share, false)
	expectTurn(t, &s, a, firstTurn)
}

// TestKeepsIsShared has a queue pair find out that the peer keeps packets after a gap. Others need not
// lose a window each to find it out too, and find out by themselves if it is not so with them.
func TestKeepsIsShared(t *testing.T) {
	var s scheduler
	a, b := newTurnTaker(&s, schedPeers[0]), newTurnTaker(&s, schedPeers[0])
	a.send(&s, 1, 0)
	b.send(&s, 1, 0)
	if b.q.keeps {
		t.Fatal("who said so?")
	}
	a.q.keeps = true
	a.acked(&s, 1)
	b.acked(&s, 1)
	if !b.q.keeps {
		t.Error("b has not heard that the peer keeps packets")
	}
	b.q.keeps = false
	b.send(&s, 1, 0)
	if b.q.keeps {
		t.Error("b has been told again what it has found wrong")
	}
}

// TestPathsTakeTurns has a path with many queue pairs, and one with a single one.
func TestPathsTakeTurns(t *testing.T) {
	var s scheduler
	a, b, c := newTurnTaker(&s, schedPeers[0]), newTurnTaker(&s, schedPeers[0]), newTurnTaker(&s, schedPeers[1])
	a.path.budget.size, c.path.budget.size = 700, 100
	s.wait(&a.share, false)
	s.wait(&b.share, false)
	s.wait(&c.share, false)
	expectTurn(t, &s, a, 64)
	expectTurn(t, &s, c, 100)
	expectTurn(t, &s, b, 636)
}

// manyPeers returns n addresses.
func manyPeers(n int) (peers []netip.AddrPort) {
	for i := range n {
		peers = append(peers, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(100 + i/200), byte(1 + i%200)}), roce.Port))
	}
	return peers
}

// TestSlowPaths has peers that acknowledge late hold the budget of the device. Another peer's queue
// pairs send all the same, and the slow ones share the rest.
func TestSlowPaths(t *testing.T) {
	var s scheduler
	var slow []*turnTaker
	for _, peer := range manyPeers(6) {
		k := newTurnTaker(&s, peer)
		k.path.budget.size = maxBudget
		slow = append(slow, k)
	}
	for turn, n := s.claim(&slow[0].share), 0; turn > 0; turn = s.claim(&slow[n%6].share) {
		slow[n%6].send(&s, turn, turn)
		n++
	}
	for _, k := range slow {
		s.wait(&k.share, false)
	}
	for sh, n := s.next(false); sh != nil && n > 0; sh, n = s.next(false) {
		for _, k := range slow {
			if sh == &k.share {
				k.send(&s, n, n)
				s.wait(&k.share, false)
			}
		}
	}
	if s.flight < maxFlight-turnPackets || s.flight > 2*maxFlight || s.hasWork() {
		t.Fatalf("%d packets on their way, of %d; work: %t", s.flight, maxFlight, s.hasWork())
	}

	quick := newTurnTaker(&s, schedPeers[0])
	n := s.claim(&quick.share)
	if n == 0 {
		t.Fatal("nobody else may send")
	}
	for range 100 { // however often
		quick.send(&s, n, n)
		quick.acked(&s, n)
		s.wait(&quick.share, false)
		var sh *share
		if sh, n = s.next(false); sh != &quick.share || n == 0 {
			t.Fatalf("next() = %p, %d, want %p", sh, n, &quick.share)
		}
	}
	quick.send(&s, 0, n)

	slow[5].acked(&s, slow[5].q.next.Sub(slow[5].q.una)) // now there is room, and theirs is the turn
	if sh, n := s.next(false); sh == nil || sh == &quick.share || n == 0 {
		t.Errorf("next() = %p, %d, want a turn of a slow one", sh, n)
	}
}

// TestUrgent has answers and probes overtake queue pairs that wait for room, and short messages as
// long as they are few.
func TestUrgent(t *testing.T) {
	var s scheduler
	a, b, c := newTurnTaker(&s, schedPeers[0]), newTurnTaker(&s, schedPeers[0]), newTurnTaker(&s, schedPeers[0])
	s.wait(&a.share, false)
	expectTurn(t, &s, a, startWindow)
	a.send(&s, startWindow, startWindow)
	s.wait(&a.share, false)
	s.wait(&b.share, false)
	expectTurn(t, &s, nil, 0)
	s.hurry(&b.share, false)
	expectTurn(t, &s, b, 0)
	short := []*turnTaker{c}
	for range startWindow {
		short = append(short, newTurnTaker(&s, schedPeers[0]))
	}
	passed := 0
	for _, k := range short {
		s.wait(&k.share, true)
		if sh, n := s.next(false); sh == &k.share && n == expressPackets {
			passed++
		} else if sh != nil {
			t.Fatalf("next() = %p, %d", sh, n)
		}
	}
	if want := startWindow / expressPart / expressPackets; passed != want {
		t.Errorf("%d short messages have not waited, want %d", passed, want)
	}
}

// TestStalled has only the goroutines that wait for the socket send.
func TestStalled(t *testing.T) {
	var s scheduler
	a := newTurnTaker(&s, schedPeers[0])
	s.wait(&a.share, false)
	s.stall()
	if s.hasWork() || s.claim(&a.share) != 0 {
		t.Error("somebody has a turn, while a goroutine waits for the socket")
	}
	expectTurn(t, &s, nil, 0)
	if sh, _ := s.next(true); sh != &a.share {
		t.Error("the goroutine that waits for the socket has no turn")
	}
	s.resume()
	s.drains.Done()
	s.close()
	if s.stall() {
		t.Error("stall() after close")
	}
}

// TestSilentPeersLetGo has queue pairs whose peers do not answer. Their packets must not keep
// others from sending.
func TestSilentPeersLetGo(t *testing.T) {
	s := newRTS(t)
	s.window.size = 64
	if err := s.postSend(&SendWR{Op: OpWrite, Local: [2]SGE{s.sge(0, testSize)}}); err != nil {
		t.Fatal(err)
	}
	for s.transmit(s.now, s.out[:8192]) > 0 {
	}
	before := s.flight()
	if before == 0 || before != s.next.Sub(s.una) {
		t.Fatalf("flight %d, una %v, next %v", before, s.una, s.next)
	}
	for range 2 { // before the timeout of verbs
		s.now = s.deadline()
		s.advance(s.now)
		for s.transmit(s.now, s.out[:8192]) > 0 {
		}
	}
	if got := s.flight(); s.probes != 2 || got != before/2 {
		t.Errorf("after %d probes flight is %d, want %d", s.probes, got, before/2)
	}
	s.receive(s.now, &roce.Packet{
		BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: s.una.Add(1)}, AETH: roce.AETH{Syndrome: roce.AckUnlimited},
	})
	if got := s.flight(); got != before-2 {
		t.Errorf("after an answer flight is %d, want %d", got, before-2)
	}
	s.fail()
	if got := s.flight(); got != 0 {
		t.Errorf("after a failure flight is %d", got)
	}
}

// TestQuota has a queue pair that may send less than its window.
func TestQuota(t *testing.T) {
	s := newRTS(t)
	if err := s.postSend(&SendWR{Op: OpWrite, Local: [2]SGE{s.sge(0, 5*256)}}); err != nil {
		t.Fatal(err)
	}
	s.quota = 3
	var asked []bool
	for n := s.transmit(s.now, s.out[:8192]); n > 0; n = s.transmit(s.now, s.out[:8192]) {
		asked = append(asked, s.out[:n][8]&0x80 != 0)
	}
	if len(asked) != 3 || asked[0] || asked[1] || !asked[2] {
		t.Errorf("acknowledge bits %v, want none, none, and one where the quota ends", asked)
	}
	if !s.wantsToTransmit(s.now) || s.urgent(s.now) {
		t.Error("a queue pair without a quota has to want another one, and not to be urgent")
	}
	s.now = s.deadline()
	s.advance(s.now)
	if n := s.transmit(s.now, s.out[:8192]); n == 0 {
		t.Error("a probe waits for a quota")
	}
}

// TestSchedulerRules plays random moves and checks that nothing is counted twice, or forgotten.
func TestSchedulerRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s scheduler
		var all []*turnTaker
		peers := schedPeers
		if rapid.Bool().Draw(t, "many paths") {
			peers = manyPeers(8)
		}
		for i := range 16 {
			all = append(all, newTurnTaker(&s, peers[i%len(peers)]))
			all[i].path.budget.size = rapid.SampledFrom([]int{startWindow, maxBudget}).Draw(t, "budget")
		}
		type turn struct {
			k *turnTaker
			n int
		}
		var turns []turn
		one := func() *turnTaker { return rapid.SampledFrom(all).Draw(t, "who") }
		for range rapid.IntRange(1, 300).Draw(t, "moves") {
			switch rapid.IntRange(0, 9).Draw(t, "move") {
			case 0, 1:
				s.wait(&one().share, rapid.Bool().Draw(t, "short"))
			case 2:
				s.hurry(&one().share, rapid.Bool().Draw(t, "first"))
			case 3, 4:
				if sh, n := s.next(false); sh != nil {
					for _, k := range all {
						if sh == &k.share {
							turns = append(turns, turn{k, n})
						}
					}
				}
			case 5:
				k := one()
				turns = append(turns, turn{k, s.claim(&k.share)})
			case 6, 7:
				if len(turns) == 0 {
					continue
				}
				u := turns[0]
				turns = turns[1:]
				if rapid.IntRange(0, 4).Draw(t, "nothing") == 0 {
					s.giveBack(&u.k.share, u.n, rapid.Bool().Draw(t, "urgent"))
					continue
				}
				u.k.send(&s, rapid.IntRange(0, min(u.n, u.k.promised)).Draw(t, "packets"), u.n)
			case 8:
				k := one()
				k.acked(&s, rapid.IntRange(0, k.q.next.Sub(k.q.una)).Draw(t, "acked"))
			case 9:
				k := one()
				s.leave(&k.share)
				if rapid.Bool().Draw(t, "again") {
					k.q.una, k.q.next = 0, 0
					k.una = 0
					s.join(&k.share, schedLocal, rapid.SampledFrom(peers).Draw(t, "to"), turnPackets)
				}
			}
			checkScheduler(t, &s, all)
		}
		for _, u := range turns {
			u.k.send(&s, 0, u.n)
		}
		for _, k := range all {
			k.acked(&s, k.q.next.Sub(k.q.una))
		}
		checkScheduler(t, &s, all)
		if s.flight != 0 {
			t.Fatalf("%d packets are on their way in the end", s.flight)
		}
		for _, k := range all {
			s.leave(&k.share)
		}
		if len(s.paths) != 0 {
			t.Fatalf("%d paths without queue pairs", len(s.paths))
		}
	})
}

func checkScheduler(t *rapid.T, s *scheduler, all []*turnTaker) {
	flights, users, waiting, urgent := map[*path]int{}, map[*path]int{}, map[*path]int{}, 0
	for _, k := range all {
		if k.promised < 0 || k.charged < 0 {
			t.Fatalf("promised %d, charged %d", k.promised, k.charged)
		}
		if k.links[laneUrgent].in {
			urgent++
		}
		if k.path == nil {
			if k.links[laneUrgent].in || k.links[laneWaiting].in || k.charged+k.promised != 0 {
				t.Fatalf("%+v has no path", k.share)
			}
			continue
		}
		flights[k.path] += k.charged + k.promised
		users[k.path]++
		if k.links[laneWaiting].in {
			waiting[k.path]++
		}
	}
	total := 0
	for _, p := range s.paths {
		total += p.flight
		if p.flight != flights[p] || p.users != users[p] || p.waiting.len != waiting[p] {
			t.Fatalf("path: flight %d, users %d, waiting %d, of which its queue pairs have %d, %d, %d",
				p.flight, p.users, p.waiting.len, flights[p], users[p], waiting[p])
		}
		if p.waiting.len > 0 && p.room() > 0 && !p.open && !p.rich {
			t.Fatal("a path with room and somebody who waits is in no list")
		}
		if p.waiting.len > 0 && p.flight == 0 && !s.hasWork() {
			t.Fatal("a path that has nothing on its way waits for others")
		}
		if most := p.budget.size + p.budget.size/expressPart + expressPackets; p.flight > most {
			t.Fatalf("%d packets on their way, budget %d", p.flight, p.budget.size)
		}
	}
	if s.flight != total || s.urgent.len != urgent || s.flight > math.MaxInt32 {
		t.Fatalf("flight %d, urgent %d, want %d, %d", s.flight, s.urgent.len, total, urgent)
	}
}
