package core

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire/cdc"
)

// A simPeer is one end of a connection with its application, its memory and its TCP.
type simPeer struct {
	w     *coretest.World
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
	ev.ReadAll = (kind == EventTCPFin || kind == EventPeerDead) && p.w.Chance(50)
	if kind == EventClose && p.closedAt.IsZero() {
		p.closedAt = p.w.Now
	}
	before := p.c.State()
	outs := p.c.Handle(p.w.Now, ev, nil)
	p.w.Logf("%s %v(%v) %v -> %v: %s", p.name, kind, ev.Peer, before, p.c.State(), outputText(p.w.Now, outs))
	for _, o := range outs {
		p.carryOut(o)
	}
}

func (p *simPeer) carryOut(o ConnOutput) {
	w, other := p.w, p.other
	if p.ends > 0 {
		w.Failf("%s: %T after ConnClosed", p.name, o)
	}
	switch o := o.(type) {
	case SendFlags:
		if p.published&(cdc.Closed|cdc.Abort) != 0 {
			w.Failf("%s: SendFlags %v after %v", p.name, o.Flags, p.published)
		}
		if o.Flags&p.published != p.published || o.Flags == p.published {
			w.Failf("%s: SendFlags %v after %v is not sticky, or new", p.name, o.Flags, p.published)
		}
		if p.mute {
			w.Failf("%s: SendFlags %v after the link was lost", p.name, o.Flags)
		}
		p.published = o.Flags
		delay := w.Delay()
		if p.mode == SMCD && w.Chance(5) {
			delay = time.Second // the doorbell is lost, the peer looks by itself
		}
		w.After(delay, func() { // the doorbell, or the CDC message
			if p.mode == SMCR && p.dead && w.Chance(50) {
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
			w.Failf("%s: ReadEOF, but the peer has not stopped writing", p.name)
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
		w.At(o.At.Add(-1), func() { p.handle(EventTimer, false) }) // too early
		w.At(o.At.Add(w.Delay()/1000), func() { p.handle(EventTimer, false) })
	case ClearTimer: // a timer that fires although it was cleared must be harmless
	case ReleaseBuffers:
		p.releases++
		p.clean = o.Clean
		if o.Clean && p.see()&(cdc.Closed|cdc.Abort) == 0 {
			w.Failf("%s: clean release, but the peer has promised nothing", p.name)
		}
	case ConnClosed:
		p.ends++
		p.endedAt = w.Now
		p.why = o.Why
	default:
		w.Failf("%s: unknown output %T", p.name, o)
	}
}

// sendTCP delivers in order.
func (p *simPeer) sendTCP(what string) {
	other := p.other
	other.tcpIn = append(other.tcpIn, what)
	p.w.After(p.w.Delay(), func() {
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
	p.w.Logf("%s is killed", p.name)
	p.dead, p.aborted = true, true
	if p.tcpEnds == 0 {
		p.sendTCP([]string{"fin", "rst"}[p.w.Rand.IntN(2)])
	}
	p.w.After(p.w.Delay()+time.Duration(p.w.Rand.Int64N(int64(time.Second))), func() { p.other.handle(EventPeerDead, false) })
}

// loseLink ends the path between the peers. Both learn of it, from retries or from TEST LINK.
func (p *simPeer) loseLink() {
	if p.mode != SMCR {
		return
	}
	for _, x := range []*simPeer{p, p.other} {
		x.linkDead = true
		x.w.After(x.w.Delay(), func() { x.lose(EventLinkLost) })
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
	coretest.ForEachSeed(t, func(w *coretest.World) {
		mode := SMCD
		if w.Chance(40) {
			mode = SMCR
		}
		a := &simPeer{w: w, name: "a", mode: mode, c: NewConn(mode)}
		b := &simPeer{w: w, name: "b", mode: mode, c: NewConn(mode), other: a}
		a.other = b
		w.Logf("%v", mode)
		for _, p := range []*simPeer{a, b} {
			p.script()
		}
		w.Run()
		for _, p := range []*simPeer{a, b} {
			p.check()
			ended[p.why]++
		}
	})
	if coretest.Thorough() {
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
	w.After(w.Delay(), func() { p.handle(EventEstablished, false) })
	start := 20 * time.Second // both established
	if w.Chance(5) {
		start = 0
	}
	random := func(max time.Duration) time.Duration { return start + time.Duration(w.Rand.Int64N(int64(max))) }
	if w.Chance(40) {
		w.After(random(time.Second), func() { p.handle(EventShutdownWrite, false) })
	}
	lifetime := time.Second
	if w.Chance(20) {
		lifetime = 200 * time.Second // longer than the peer will wait
	}
	abortive := w.Chance(15)
	w.After(random(lifetime), func() {
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
		if w.Chance(f.percent) {
			w.After(random(2*time.Second), f.do)
		}
	}
	for range w.Rand.IntN(4) { // events that tell nothing new
		w.After(random(time.Second), func() { p.handle(EventPeerFlags, false) })
		w.After(random(time.Second), func() { p.handle(EventTimer, false) })
	}
}

// check tests the invariants after everything has happened.
func (p *simPeer) check() {
	w := p.w
	if p.dead {
		if p.releases > 0 || p.ends > 0 {
			w.Failf("%s: released its buffers after its death", p.name)
		}
		return
	}
	switch {
	case p.c.State() != StateClosed || p.ends != 1:
		w.Failf("%s: ends in %v after %d ConnClosed", p.name, p.c.State(), p.ends)
	case p.releases != 1:
		w.Failf("%s: released its buffers %d times", p.name, p.releases)
	case p.tcpEnds != 1:
		w.Failf("%s: ended TCP %d times", p.name, p.tcpEnds)
	case p.eofs > 1 || p.fails > 1:
		w.Failf("%s: %d ReadEOF, %d FailIO", p.name, p.eofs, p.fails)
	case !p.c.Deadline().IsZero():
		w.Failf("%s: a timer runs in state Closed", p.name)
	}
	longest := max(PeerCloseWaitTimeout, PeerFinCloseWaitTimeout, PeerAbortWaitTimeout) + 20*time.Millisecond
	if wait := p.endedAt.Sub(p.closedAt); !p.closedAt.IsZero() && wait > longest {
		w.Failf("%s: waited %v after the application's close", p.name, wait)
	}
	if p.aborted || p.other.aborted {
		return
	}
	// From here both applications closed in good order, in a world without faults.
	apart := p.closedAt.Sub(p.other.closedAt).Abs()
	if apart < PeerCloseWaitTimeout-25*time.Second {
		if p.why != FailNone || !p.clean || p.fails > 0 {
			w.Failf("%s: orderly close ended with %v, clean %t", p.name, p.why, p.clean)
		}
	}
	if p.why != FailNone && p.why != FailTimeout {
		w.Failf("%s: ended with %v, though nothing was wrong", p.name, p.why)
	}
}
