package core

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// The simulation runs two peers in virtual time. Everything random comes from one seed, which a
// failure prints; go test -run TestSim -seed=N plays that one again and logs its events.
var (
	simSeed  = flag.Uint64("seed", 0, "play only this seed of the simulations, and log it")
	simSeeds = flag.Uint64("seeds", defaultSeeds, "how many seeds each simulation plays")
)

// A world is virtual time and the events that will happen in it.
type world struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	now  time.Time
	seq  int
	todo simEvents
	log  []string

	quiet bool // only the run of -seed is logged
}

type simEvent struct {
	at  time.Time
	seq int // orders events of the same time
	do  func()
}

// simEvents is a heap of the events to come, the next first.
type simEvents []simEvent

func (q simEvents) Len() int      { return len(q) }
func (q simEvents) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q simEvents) Less(i, j int) bool {
	c := q[i].at.Compare(q[j].at)
	return c < 0 || c == 0 && q[i].seq < q[j].seq
}
func (q *simEvents) Push(e any) { *q = append(*q, e.(simEvent)) }
func (q *simEvents) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}

func newWorld(t *testing.T, seed uint64) *world {
	return &world{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: epoch}
}

// forEachSeed runs play for every seed, or for the one of -seed.
func forEachSeed(t *testing.T, play func(w *world)) {
	t.Helper()
	if *simSeed != 0 {
		w := newWorld(t, *simSeed)
		defer func() { t.Log(strings.Join(w.log, "\n")) }()
		play(w)
		return
	}
	for seed := uint64(1); seed <= *simSeeds && !t.Failed(); seed++ {
		play(newWorld(t, seed))
	}
}

func (w *world) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%10v  ", w.now.Sub(epoch).Round(time.Microsecond))+fmt.Sprintf(format, args...))
}

// failf reports a broken invariant with the seed and the events that led to it.
func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("%s\n%s\nreplay with: go test -run %s -seed=%d", fmt.Sprintf(format, args...),
		strings.Join(w.log, "\n"), w.t.Name(), w.seed)
}

func (w *world) at(at time.Time, do func()) {
	w.seq++
	heap.Push(&w.todo, simEvent{at, w.seq, do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

// run plays until nothing is left to happen.
func (w *world) run() {
	for steps := 0; len(w.todo) > 0 && !w.t.Failed(); steps++ {
		if steps > 10_000 {
			w.failf("the simulation does not end")
			return
		}
		e := heap.Pop(&w.todo).(simEvent)
		w.now = e.at
		e.do()
	}
}

// delay returns a short time, and now and then a long one.
func (w *world) delay() time.Duration {
	switch w.rng.IntN(10) {
	case 0:
		return time.Duration(w.rng.Int64N(int64(20 * time.Second)))
	case 1, 2:
		return 0
	}
	return time.Duration(w.rng.Int64N(int64(2 * time.Millisecond)))
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

// A simPeer is one end of a connection with its application, its memory and its TCP.
type simPeer struct {
	w     *world
	name  string
	other *simPeer
	mode  Mode
	c     *Conn

	published cdc.ConnFlags // flags that have left this peer
	arrived   cdc.ConnFlags // the other's flags when they were last seen (SMC-R: received)
	tcpIn     []string      // "fin" or "rst", in order, arriving
	dead      bool          // killed
	linkDead  bool          // SMC-R: nothing of this peer's flags arrives any more
	mute      bool          // it has been told that the link is lost
	aborted   bool          // something other than an orderly close was done here

	closedAt time.Time // the application's close
	endedAt  time.Time

	eofs, fails, releases, ends, tcpEnds int
	clean                                bool
	why                                  FailKind
}

// see returns the other's flags as this peer can see them now.
func (p *simPeer) see() cdc.ConnFlags {
	if p.mode == SMCD {
		return p.other.published // shared memory
	}
	return p.arrived
}

func (p *simPeer) handle(kind ConnEventKind, abortive bool) {
	if p.dead {
		return
	}
	ev := ConnEvent{Kind: kind, Abortive: abortive}
	if kind >= EventPeerFlags {
		ev.Peer = p.see()
	}
	ev.ReadAll = (kind == EventTCPFin || kind == EventPeerDead) && p.w.chance(50)
	if kind == EventClose && p.closedAt.IsZero() {
		p.closedAt = p.w.now
	}
	before := p.c.State()
	outs := p.c.Handle(p.w.now, ev, nil)
	p.w.logf("%s %v(%v) %v -> %v: %s", p.name, kind, ev.Peer, before, p.c.State(), outputText(p.w.now, outs))
	for _, o := range outs {
		p.carryOut(o)
	}
}

func (p *simPeer) carryOut(o Output) {
	w, other := p.w, p.other
	if p.ends > 0 {
		w.failf("%s: %T after ConnClosed", p.name, o)
	}
	switch o := o.(type) {
	case SendFlags:
		if p.published&(cdc.Closed|cdc.Abort) != 0 {
			w.failf("%s: SendFlags %v after %v", p.name, o.Flags, p.published)
		}
		if o.Flags&p.published != p.published || o.Flags == p.published {
			w.failf("%s: SendFlags %v after %v is not sticky, or new", p.name, o.Flags, p.published)
		}
		if p.mute {
			w.failf("%s: SendFlags %v after the link was lost", p.name, o.Flags)
		}
		p.published = o.Flags
		delay := w.delay()
		if p.mode == SMCD && w.chance(5) {
			delay = time.Second // the doorbell is lost, the peer looks by itself
		}
		w.after(delay, func() { // the doorbell, or the CDC message
			if p.mode == SMCR && p.dead && w.chance(50) {
				return // lost with its sender
			}
			if p.linkDead {
				return
			}
			other.arrived |= o.Flags
			other.handle(EventPeerFlags, false)
		})
	case ReadEOF:
		p.eofs++
		if p.see()&(cdc.DoneWriting|cdc.Closed) == 0 {
			w.failf("%s: ReadEOF, but the peer has not stopped writing", p.name)
		}
	case WriteClosed:
	case FailIO:
		p.fails++
	case ResetTCP:
		p.tcpEnds++
		p.sendTCP("rst")
	case CloseTCP:
		p.tcpEnds++
		p.sendTCP("fin")
	case SetTimer:
		w.at(o.At.Add(-1), func() { p.handle(EventTimer, false) }) // too early
		w.at(o.At.Add(w.delay()/1000), func() { p.handle(EventTimer, false) })
	case ClearTimer: // a timer that fires although it was cleared must be harmless
	case ReleaseBuffers:
		p.releases++
		p.clean = o.Clean
		if o.Clean && p.see()&(cdc.Closed|cdc.Abort) == 0 {
			w.failf("%s: clean release, but the peer has promised nothing", p.name)
		}
	case ConnClosed:
		p.ends++
		p.endedAt = w.now
		p.why = o.Why
	default:
		w.failf("%s: unknown output %T", p.name, o)
	}
}

// sendTCP delivers in order.
func (p *simPeer) sendTCP(what string) {
	other := p.other
	other.tcpIn = append(other.tcpIn, what)
	p.w.after(p.w.delay(), func() {
		what := other.tcpIn[0]
		other.tcpIn = other.tcpIn[1:]
		if other.tcpEnds > 0 {
			return // its socket is gone
		}
		if what == "fin" {
			other.handle(EventTCPFin, false)
		} else {
			other.handle(EventTCPReset, false)
		}
	})
}

// kill ends the process: its kernel ends TCP, the fabric notices sooner or later.
func (p *simPeer) kill() {
	if p.dead || p.ends > 0 {
		return
	}
	p.w.logf("%s is killed", p.name)
	p.dead, p.aborted = true, true
	if p.tcpEnds == 0 {
		p.sendTCP([]string{"fin", "rst"}[p.w.rng.IntN(2)])
	}
	p.w.after(p.w.delay()+time.Duration(p.w.rng.Int64N(int64(time.Second))), func() { p.other.handle(EventPeerDead, false) })
}

// loseLink ends the path between the peers. Both learn of it, from retries or from TEST LINK.
func (p *simPeer) loseLink() {
	if p.mode != SMCR {
		return
	}
	for _, x := range []*simPeer{p, p.other} {
		x.linkDead = true
		x.w.after(x.w.delay(), func() { x.lose(EventLinkLost) })
	}
}

// lose tells a peer that it cannot send any more.
func (p *simPeer) lose(kind ConnEventKind) {
	if p.mode != SMCR || p.dead {
		return
	}
	p.aborted, p.mute = true, true
	p.handle(kind, false)
}

func TestSimConn(t *testing.T) {
	ended := map[FailKind]int{}
	forEachSeed(t, func(w *world) {
		mode := SMCD
		if w.chance(40) {
			mode = SMCR
		}
		a := &simPeer{w: w, name: "a", mode: mode, c: NewConn(mode)}
		b := &simPeer{w: w, name: "b", mode: mode, c: NewConn(mode), other: a}
		a.other = b
		w.logf("%v", mode)
		for _, p := range []*simPeer{a, b} {
			p.script()
		}
		w.run()
		for _, p := range []*simPeer{a, b} {
			p.check()
			ended[p.why]++
		}
	})
	if *simSeed == 0 && *simSeeds >= 1000 {
		for k := FailNone; k <= FailLinkLost; k++ {
			if ended[k] == 0 {
				t.Errorf("no connection ended with %v: the simulation misses something", k)
			}
		}
	}
}

// script schedules the events of p: an application's life, and sometimes a fault.
func (p *simPeer) script() {
	w := p.w
	w.after(w.delay(), func() { p.handle(EventEstablished, false) })
	start := 20 * time.Second // both established
	if w.chance(5) {
		start = 0
	}
	random := func(max time.Duration) time.Duration { return start + time.Duration(w.rng.Int64N(int64(max))) }
	if w.chance(40) {
		w.after(random(time.Second), func() { p.handle(EventShutdownWrite, false) })
	}
	lifetime := time.Second
	if w.chance(20) {
		lifetime = 200 * time.Second // longer than the peer will wait
	}
	abortive := w.chance(15)
	w.after(random(lifetime), func() {
		p.aborted = p.aborted || abortive || start == 0
		p.handle(EventClose, abortive)
	})
	faults := []struct {
		percent int
		do      func()
	}{
		{5, func() { p.aborted = true; p.handle(EventAbort, false) }},
		{5, func() { p.aborted = true; p.handle(EventProtocolViolation, false) }},
		{10, p.kill},
		{5, func() { p.aborted = true; p.handle(EventTCPReset, false) }}, // a box on the way
		{5, p.loseLink},
		{2, func() { p.lose(EventElementLost) }},
	}
	for _, f := range faults {
		if w.chance(f.percent) {
			w.after(random(2*time.Second), f.do)
		}
	}
	for range w.rng.IntN(4) { // events that tell nothing new
		w.after(random(time.Second), func() { p.handle(EventPeerFlags, false) })
		w.after(random(time.Second), func() { p.handle(EventTimer, false) })
	}
}

// check tests the invariants after everything has happened.
func (p *simPeer) check() {
	w := p.w
	if p.dead {
		if p.releases > 0 || p.ends > 0 {
			w.failf("%s: released its buffers after its death", p.name)
		}
		return
	}
	switch {
	case p.c.State() != StateClosed || p.ends != 1:
		w.failf("%s: ends in %v after %d ConnClosed", p.name, p.c.State(), p.ends)
	case p.releases != 1:
		w.failf("%s: released its buffers %d times", p.name, p.releases)
	case p.tcpEnds != 1:
		w.failf("%s: ended TCP %d times", p.name, p.tcpEnds)
	case p.eofs > 1 || p.fails > 1:
		w.failf("%s: %d ReadEOF, %d FailIO", p.name, p.eofs, p.fails)
	case !p.c.Deadline().IsZero():
		w.failf("%s: a timer runs in state Closed", p.name)
	}
	longest := max(PeerCloseWaitTimeout, PeerFinCloseWaitTimeout, PeerAbortWaitTimeout) + 20*time.Millisecond
	if wait := p.endedAt.Sub(p.closedAt); !p.closedAt.IsZero() && wait > longest {
		w.failf("%s: waited %v after the application's close", p.name, wait)
	}
	if p.aborted || p.other.aborted {
		return
	}
	// From here both applications closed in good order, in a world without faults.
	apart := p.closedAt.Sub(p.other.closedAt).Abs()
	if apart < PeerCloseWaitTimeout-25*time.Second {
		if p.why != FailNone || !p.clean || p.fails > 0 {
			w.failf("%s: orderly close ended with %v, clean %t", p.name, p.why, p.clean)
		}
	}
	if p.why != FailNone && p.why != FailTimeout {
		w.failf("%s: ended with %v, though nothing was wrong", p.name, p.why)
	}
}
