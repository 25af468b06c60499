package rdma

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/rdma/polling"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// A sleeper waits for messages as the data path of a connection does: it parks, leads if it may,
// and is woken by the handler of a completion queue.
type sleeper struct {
	*side
	tokens chan struct{}
	asleep chan struct{} // has a token while the sleeper is parked
	sent   uint64        // messages
}

func newSleeper(t testing.TB) *sleeper {
	t.Helper()
	dev, err := Open(randomLoopback(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return newSleeperOn(t, dev)
}

func newSleeperOn(t testing.TB, dev *Device) *sleeper {
	t.Helper()
	s := &sleeper{tokens: make(chan struct{}, 1), asleep: make(chan struct{}, 1)}
	var batch [64]Completion
	s.side = newSideOn(t, dev, func(cq verbs.CQ) {
		for n := cq.Poll(batch[:]); n > 0; n = cq.Poll(batch[:]) {
			for _, c := range batch[:n] {
				if c.Op == Received && c.Status == StatusOK {
					s.qp.PostRecv(s.receive(c.ID))
					s.wake()
				}
			}
		}
	})
	return s
}

func (s *sleeper) receive(id uint64) RecvWR {
	return RecvWR{ID: id, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr() + id*64, Len: 64}}}
}

// ready posts receives.
func (s *sleeper) ready(t testing.TB) {
	for i := range uint64(64) {
		if err := s.qp.PostRecv(s.receive(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// wake gives the sleeper a token.
func (s *sleeper) wake() {
	select {
	case <-s.asleep:
		s.dev.Parked().Add(-1)
	default:
	}
	select {
	case s.tokens <- struct{}{}:
	default:
	}
}

// sleep waits for a token.
func (s *sleeper) sleep() {
	s.dev.Parked().Add(1)
	s.asleep <- struct{}{}
	if len(s.tokens) == 0 {
		s.dev.Lead(func() bool { return len(s.tokens) > 0 })
	}
	<-s.tokens
	select {
	case <-s.asleep: // the token was there before
		s.dev.Parked().Add(-1)
	default:
	}
}

// send sends a message.
func (s *sleeper) send(t testing.TB) {
	s.sent++
	if err := s.qp.PostSend(SendWR{Op: OpSend, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 44}}}); err != nil {
		t.Error(err)
	}
}

// newSleepers returns two, joined.
func newSleepers(t testing.TB) (a, b *sleeper) {
	t.Helper()
	timer := time.AfterFunc(2*time.Minute, func() { panic(t.Name() + " hangs") })
	t.Cleanup(func() { timer.Stop() })
	a, b = newSleeper(t), newSleeper(t)
	connect(t, a.side, b.side, wire.MTU1024)
	a.ready(t)
	b.ready(t)
	return a, b
}

// rally sends a message there and back, n times, and returns when nobody waits any more.
func rally(t testing.TB, a, b *sleeper, n int) {
	t.Helper()
	var both sync.WaitGroup
	both.Go(func() {
		for range n {
			b.sleep()
			b.send(t)
		}
	})
	for range n {
		a.send(t)
		a.sleep()
	}
	both.Wait()
}

// untilLed makes rallies until the sleepers of a device lead, and its goroutine stands by.
func untilLed(t testing.TB, a, b *sleeper) {
	t.Helper()
	for end := time.Now().Add(time.Minute); a.dev.lead.count.Load() == 0; {
		rally(t, a, b, 20)
		if time.Now().After(end) {
			t.Fatal("nobody has led")
		}
	}
}

// TestLead has goroutines that wait receive for themselves, after a while.
func TestLead(t *testing.T) {
	a, b := newSleepers(t)
	untilLed(t, a, b)
	untilLed(t, b, a)
	rally(t, a, b, 100)
}

// TestStandBy has the device's goroutine take over when nobody leads any more: messages are taken,
// and acknowledged, though nobody waits.
func TestStandBy(t *testing.T) {
	a, b := newSleepers(t)
	for range 5 {
		a.dev.lead.count.Store(0)
		untilLed(t, a, b)
		before := a.qp.Stats().RcvdMessages
		b.send(t)
		end := time.Now().Add(time.Minute)
		for a.qp.Stats().RcvdMessages == before || b.qp.Stats().Messages != b.sent {
			if time.Now().After(end) {
				t.Fatal("nobody takes a message")
			}
		}
		a.sleep() // there is a token
	}
}

// leads has a sleep, and reports whether it leads; woken is closed when it has ended.
func (s *sleeper) leads() (woken chan struct{}, ok bool) {
	l := &s.dev.lead
	before := l.count.Load()
	woken = make(chan struct{})
	go func() {
		s.sleep()
		close(woken)
	}()
	for l.shared.Load() && l.count.Load() == before {
		runtime.Gosched()
	}
	return woken, l.count.Load() != before
}

// TestLeadLong has somebody lead for longer than the device's goroutine ticks, so that it waits to
// be called; and then nobody.
func TestLeadLong(t *testing.T) {
	a, b := newSleepers(t)
	l := &a.dev.lead
	for long := 0; long < 5; {
		l.count.Store(0)
		untilLed(t, a, b)
		woken, ok := a.leads()
		if ok {
			long++
		}
		for end := time.Now().Add(3 * standTick); ok && time.Now().Before(end); {
			runtime.Gosched()
		}
		b.send(t)
		<-woken
		b.send(t) // to a device that nobody waits for
		a.sleep()
	}
}

// TestLeadCrowd has a second one wait while one leads: the device's goroutine is called.
func TestLeadCrowd(t *testing.T) {
	a, b := newSleepers(t)
	l := &a.dev.lead
	for led := 0; led < 5; {
		l.count.Store(0)
		untilLed(t, a, b)
		woken, ok := a.leads()
		a.dev.Parked().Add(1)
		b.send(t)
		<-woken
		if ok {
			led++
			if l.shared.Load() {
				t.Error("nobody has called the device's goroutine")
			}
		}
		a.dev.Parked().Add(-1)
	}
}

// TestLeadInterrupt ends leads from outside, soon after they have begun.
func TestLeadInterrupt(t *testing.T) {
	a, b := newSleepers(t)
	rounds := 500
	if raceEnabled {
		rounds = 50
	}
	for led := 0; led < rounds; {
		a.dev.lead.count.Store(0)
		untilLed(t, a, b)
		woken, ok := a.leads()
		if ok {
			led++
			for range rand.IntN(200) {
				a.dev.lead.count.Load()
			}
		}
		a.wake()
		a.dev.Interrupt()
		<-woken
	}
}

// TestLeadDozing has the device's goroutine take a goroutine that leads for a moment for one that
// leads for long: it is called all the same.
func TestLeadDozing(t *testing.T) {
	a, b := newSleepers(t)
	l := &a.dev.lead
	for dozed, end := 0, time.Now().Add(time.Minute); dozed < 20; {
		if time.Now().After(end) {
			t.Fatal("the device's goroutine never dozes")
		}
		l.count.Store(0)
		untilLed(t, a, b)
		for !l.shared.Load() || !l.turn.CompareAndSwap(false, true) { // as Lead does
			rally(t, a, b, 1)
		}
		for !l.dozing.Load() && l.shared.Load() {
			runtime.Gosched()
		}
		if l.dozing.Load() {
			dozed++
		}
		b.send(t)
		a.dev.Parked().Add(1)
		a.asleep <- struct{}{}
		l.turn.Store(false) // and leads now, for a moment
		a.dev.Lead(func() bool { return len(a.tokens) > 0 })
		<-a.tokens
		b.send(t) // to a device that nobody waits for
		a.sleep()
	}
}

// TestLeadPrompt has the goroutine that led send nothing, so that acknowledgements that were left
// to its next packets are late: they are sent at once for a while.
func TestLeadPrompt(t *testing.T) {
	a, b := newSleepers(t)
	l := &a.dev.lead
	prompt := func() int {
		for !l.turn.CompareAndSwap(false, true) { // the goroutine that has it looks for packets
			a.dev.Interrupt()
			runtime.Gosched()
			if !l.shared.Load() {
				return 0 // the device's goroutine has it
			}
		}
		defer func() {
			if l.turn.Store(false); l.dozing.Load() {
				l.call()
			}
		}()
		return l.prompt
	}
	for end := time.Now().Add(time.Minute); prompt() == 0; {
		if time.Now().After(end) {
			t.Fatal("acknowledgements are late for ever")
		}
		l.count.Store(0)
		untilLed(t, a, b)
		woken, _ := a.leads()
		b.send(t)
		<-woken
		for b.qp.Stats().Messages != b.sent {
			runtime.Gosched()
		}
		rally(t, a, b, 30)
	}
}

// TestLeadClosed closes a device while somebody leads, or may be about to.
func TestLeadClosed(t *testing.T) {
	for range 5 {
		a, b := newSleepers(t)
		untilLed(t, a, b)
		led := make(chan struct{})
		closed := make(chan struct{})
		go func() {
			a.dev.Parked().Add(1)
			a.dev.Lead(func() bool {
				select {
				case <-closed:
					return true
				default:
					return false
				}
			})
			a.dev.Parked().Add(-1)
			close(led)
		}()
		for range rand.IntN(1000) {
			a.dev.Stats()
		}
		a.dev.Close()
		close(closed)
		<-led
		a.dev.Lead(func() bool { return false })
	}
}

// TestLeadMany has several goroutines wait on each device, with all that may come of it. None is forgotten.
func TestLeadMany(t *testing.T) {
	a, b := newSleepers(t)
	ends := [][2]*sleeper{{a, b}}
	for range 3 {
		c, d := newSleeperOn(t, a.dev), newSleeperOn(t, b.dev)
		connect(t, c.side, d.side, wire.MTU1024)
		c.ready(t)
		d.ready(t)
		ends = append(ends, [2]*sleeper{c, d})
	}
	rounds := 300
	if raceEnabled {
		rounds = 100
	}
	for _, at := range []int{1, len(ends)} { // alone first, so that it leads
		var all sync.WaitGroup
		for _, e := range ends[:at] {
			all.Go(func() {
				for range rounds {
					rally(t, e[0], e[1], 1+rand.IntN(5))
					for range rand.IntN(2000) { // think
						e[0].dev.lead.count.Load()
					}
				}
			})
		}
		all.Wait()
	}
}

// TestLeadBulk has waits for many packets be led while that moves more of them, and only then.
// Short waits for few are always worth it, and long ones for few never.
func TestLeadBulk(t *testing.T) {
	const packets = leadPackets
	l := &lead{receiver: &receiver{}, bulk: polling.NewTrials(false)}
	now := time.Duration(1)
	run := func(span, led, left time.Duration) (leads, waits int) {
		for until := now + span; now < until; waits++ {
			took := left
			if l.bulk.Second() {
				took = led
			}
			now += took
			l.receiver.packets += packets
			if l.worth(now, took, packets) {
				leads++
			}
		}
		return leads, waits
	}
	for range 2 {
		if leads, waits := run(20*time.Second, 60*time.Microsecond, 100*time.Microsecond); leads < waits/2 {
			t.Errorf("where leading moves more: %d of %d waits were worth it", leads, waits)
		}
		if leads, waits := run(20*time.Second, 100*time.Microsecond, 60*time.Microsecond); leads > waits/2 {
			t.Errorf("where it moves less: %d of %d waits were worth it", leads, waits)
		}
	}
	for _, other := range []bool{false, true} {
		l.bulk = polling.NewTrials(other)
		if !l.worth(now, leadTime-1, packets-1) {
			t.Errorf("a short wait for few packets is not worth it, bulk %v", other)
		}
		if l.worth(now, leadTime, packets-1) {
			t.Errorf("a long wait for few packets is worth it, bulk %v", other)
		}
	}
}
