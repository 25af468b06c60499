package link

import (
	"slices"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// This file handles peers that are silent after a move.
//
// Linux's net/smc holds back small writes while a message of the connection is not completed
// (smc_should_autocork). A message that was on its way over a link that failed may not be completed
// for a long time: soft-RoCE sends it again and again. Then the bytes of its program stay where
// they are, and both programs wait. A message with [cdc.CursorUpdateRequested] makes it send all
// that it has (RFC 7609 §4.5.1 has that flag for cursors).
//
// So connections that have moved after a failure are looked at once a second, and one that is
// silent is asked. If data follows, the peer is one that holds back each message. The connection is
// then looked at every few milliseconds, so that two programs that take turns do not wait for a
// second each time. When nothing comes of it that ends, and the connection is looked at once a second
// again, and asked once a minute at last. That goes on as long as it lives: the message that is not
// completed waits for the path of the link that failed, which may stay dead for ever, and a program
// may have something to say at any time. The same goes for a peer whose element is full: see probe.go.

// A pace is how connections are looked at.
type pace struct {
	every  time.Duration // between two looks
	after  [3]int        // looks without news after which a connection is asked
	window int           // looks after that, in which data counts as the answer
	again  int           // looks between further asks; 0: there are none, and the pace ends
}

// The paces: slowPace for every connection that has moved, quickPace for those whose peers hold
// back.
var (
	slowPace  = pace{every: time.Second, after: [3]int{1, 5, 25}, window: 1, again: 60}
	quickPace = pace{every: 8 * time.Millisecond, after: [3]int{1, 6, 31}, window: 25}
)

// maxVain is how many asks in a row that no data follows end the quick pace, however often there is
// other news.
const maxVain = 8

// Lookers are the connections of a group that are looked at with one pace. The group's mu guards
// them, and their connections' silences.
type lookers struct {
	pace
	list  []*silence
	timer *time.Timer // runs askSilent while there are any; nil before it was needed
}

// A silence is the result of the last look at a connection.
type silence struct {
	carrier            *Carrier   // nil: it is not to be looked at any more
	produced, consumed cdc.Cursor // of the peer's
	arrived            uint64     // bytes at the peer, but for those that asked
	looks              int        // since there was news
	asked              int        // looks, when it was asked last; 0: not since then
	vain               int        // asks that have brought nothing
}

// see takes note of where the connection is, and reports whether the peer has sent data since, or
// there is other news. Flags are none: an answer has them, and so has a question of the peer's.
func (s *silence) see() (data, news bool) {
	c := s.carrier
	produced, arrived := cdc.UnpackProducer(c.inProd.Load()), c.finished.Load()-c.asked.Load()
	consumed, _, _ := cdc.UnpackConsumer(c.inCons.Load())
	data = produced != s.produced
	news = data || consumed != s.consumed || arrived != s.arrived
	s.produced, s.consumed, s.arrived = produced, consumed, arrived
	return data, news
}

// A verdict is the decision about a connection that was looked at.
type verdict uint8

const (
	verdictStay verdict = iota
	verdictAsk          // and stay
	verdictHeld         // the peer holds back its data
	verdictEnd          // nothing comes of it, at this pace
)

// look looks at a connection.
func (s *silence) look(p *pace) verdict {
	data, news := s.see()
	s.looks++
	held := data && s.asked > 0 && s.looks <= s.asked+p.window
	if news {
		s.looks, s.asked = 0, 0
	}
	switch last := p.after[len(p.after)-1]; {
	case held:
		s.vain = 0 // rule: TestSilentHeldBack: s.vain = 0 -> _ = 0
		return verdictHeld
	case slices.Contains(p.after[:], s.looks):
		s.vain++
		s.asked = s.looks
		return verdictAsk
	case p.again > 0: // rule: TestSilentLate: p.again > 0 -> p.again > 0 && s.carrier.held.Load()
		if s.looks > last && s.looks%p.again == 0 { // rule: TestSilent, TestProbeForLong
			s.asked = s.looks
			return verdictAsk
		}
	case s.vain >= maxVain || s.looks >= last+p.window: // rule: TestSilentInVain: s.vain >= maxVain -> false
		return verdictEnd
	}
	return verdictStay
}

// watch has a connection that has just moved looked at. Its locks may be held.
func (g *Group) watch(c *Carrier) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.failed.Store(true)
	if g.closed {
		return
	}
	if c.silence == nil {
		c.silence = &silence{carrier: c}
		g.slow.add(g, c.silence)
	}
	s := c.silence
	s.looks, s.asked, s.vain = 0, 0, 0
	s.see()
}

// unwatch ends that. g.mu is held.
func (g *Group) unwatch(c *Carrier) {
	if c.silence != nil {
		c.silence.carrier = nil
		c.silence = nil
	}
}

// rest has a connection looked at again only when it keeps bytes back. It reports false if it does
// so now, and is to be looked at. g.mu is held.
func (g *Group) rest(c *Carrier) bool {
	c.resting.Store(true) // before looking: a goroutine that keeps bytes back looks afterwards
	if c.held.Load() && c.resting.Swap(false) {
		return false
	}
	g.unwatch(c)
	return true
}

// add adds a connection. g.mu is held.
func (w *lookers) add(g *Group, s *silence) {
	if w.list = append(w.list, s); len(w.list) > 1 || w.every == 0 {
		return
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(w.every, func() { g.askSilent(w) })
	} else {
		w.timer.Reset(w.every)
	}
}

// stop looks at nobody any more. g.mu is held.
func (w *lookers) stop() {
	w.list = nil
	if w.timer != nil {
		w.timer.Stop()
	}
}

// askSilent looks at all connections of a pace.
func (g *Group) askSilent(w *lookers) {
	var silent []*Carrier
	g.mu.Lock()
	w.list = slices.DeleteFunc(w.list, func(s *silence) bool {
		if s.carrier == nil {
			return true
		}
		switch v := s.look(&w.pace); {
		case v == verdictAsk:
			silent = append(silent, s.carrier)
		case v == verdictHeld && w == &g.slow: // rule: TestSilentHeldBack
			g.quick.add(g, s)
			return true
		case v == verdictEnd: // rule: TestSilentQuickEnds
			s.looks, s.asked = slowPace.after[0], 0 // it has been asked
			g.slow.add(g, s)
			return true
		}
		return false
	})
	if len(w.list) > 0 && w.every > 0 && !g.closed {
		w.timer.Reset(w.every)
	}
	g.mu.Unlock()
	for _, c := range silent {
		asked, over := c.askPeer()
		g.mu.Lock()
		switch {
		case over:
			g.unwatch(c)
		case !asked:
			g.rest(c) // one that keeps bytes back now stays, and is asked at the next turn
		}
		g.mu.Unlock()
	}
}

// askPeer asks the peer for a message, unless that has no more to say. A peer that has ended its
// own direction still has to say how far it has read, if we wait for room. over reports that it
// will never be asked again.
func (c *Carrier) askPeer() (asked, over bool) {
	_, _, flags := cdc.UnpackConsumer(c.inCons.Load())
	c.mu.Lock()
	blocked := c.prod&cdc.WriterBlocked != 0 || c.put != c.posted && c.sendable() == 0
	switch {
	case flags&(cdc.Closed|cdc.Abort) != 0, c.ring == nil, c.detached: // rule: TestSilentEnds, TestProbeDetached
		c.mu.Unlock()
		return false, true
	// rule: TestSilentEnds
	case flags&cdc.DoneWriting != 0 && !blocked: // rule: TestProbeHalfClosed: !blocked -> (!blocked || true)
		c.mu.Unlock()
		return false, false
	}
	c.grant()
	c.ask, c.urgent = true, true
	c.poke()
	c.mu.Unlock()
	// A writer may wait for more room than there is. The bytes that fill that room have the peer
	// read, and say so.
	c.wake() // rule: TestProbeLittleRoom
	return true, false
}
