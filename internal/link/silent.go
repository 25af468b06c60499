package link

import (
	"slices"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// This file has what is done about peers that say nothing after a move.
//
// Linux's net/smc holds back what is little while a message of the connection is not completed (smc_should_autocork), and one that
// was on its way over a link that failed may not be for a long time: soft-RoCE sends it again and again. Then what its program says stays where it
// is, and both programs wait. A message with [cdc.CursorUpdateRequested] makes it send all that it has (RFC 7609 §4.5.1 has that flag for cursors).
//
// So connections that have moved after a failure are looked at once a second, by a timer of the group, and one that is silent is asked.
// That ends when nothing comes of it: nobody is asked for ever.

// askEvery is the time between two looks.
const askEvery = time.Second

// askAfter are the looks without news after which a connection is asked. After the last one it is left alone.
var askAfter = [...]int{1, 5, 25}

// maxVain is how many asks a connection gets after a move that no data follows within a look, however often it falls silent.
const maxVain = 8

// A silence is what the last look at a connection has found.
type silence struct {
	carrier            *Carrier   // nil: it is not to be looked at any more
	produced, consumed cdc.Cursor // of the peer's
	arrived            uint64     // bytes at the peer
	looks              int        // since there was news
	asked              bool       // at the last look
	vain               int        // asks that have brought nothing
}

// see takes note of where the connection is, and reports whether the peer has sent data since, or there is other news. Flags are none: an
// answer has them, and so has a question of the peer's.
func (s *silence) see() (data, news bool) {
	c := s.carrier
	produced, arrived := cdc.UnpackProducer(c.inProd.Load()), c.finished.Load()
	consumed, _, _ := cdc.UnpackConsumer(c.inCons.Load())
	data = produced != s.produced
	news = data || consumed != s.consumed || arrived != s.arrived
	s.produced, s.consumed, s.arrived = produced, consumed, arrived
	return data, news
}

// look reports whether the peer is to be asked, and whether the connection needs to be looked at again.
func (s *silence) look() (ask, again bool) {
	data, news := s.see()
	s.looks++
	if news {
		s.looks = 0
	}
	if data && s.asked {
		s.vain = 0 // rule: TestSilentHeldBack: s.vain = 0 -> _ = 0
	}
	if s.asked = s.vain < maxVain && slices.Contains(askAfter[:], s.looks); s.asked { // rule: TestSilentInVain: s.vain < maxVain -> true
		s.vain++
		return true, true
	}
	return false, s.vain < maxVain && s.looks < askAfter[len(askAfter)-1]
}

// watch has a connection that has just moved looked at. Its locks may be held.
func (g *Group) watch(c *Carrier) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	if len(g.moved) == 0 && g.askEvery > 0 {
		if g.asker == nil {
			g.asker = time.AfterFunc(g.askEvery, g.askSilent)
		} else {
			g.asker.Reset(g.askEvery)
		}
	}
	if c.silence == nil {
		c.silence = &silence{carrier: c}
		g.moved = append(g.moved, c.silence)
	}
	s := c.silence
	s.looks, s.asked, s.vain = 0, false, 0
	s.see()
}

// unwatch ends that. g.mu is held.
func (g *Group) unwatch(c *Carrier) {
	if c.silence != nil {
		c.silence.carrier = nil
		c.silence = nil
	}
}

// askSilent looks at all connections that have moved.
func (g *Group) askSilent() {
	var silent []*Carrier
	g.mu.Lock()
	g.moved = slices.DeleteFunc(g.moved, func(s *silence) bool {
		if s.carrier == nil {
			return true
		}
		ask, again := s.look()
		if ask {
			silent = append(silent, s.carrier)
		}
		if !again {
			g.unwatch(s.carrier)
		}
		return !again
	})
	if len(g.moved) > 0 && g.askEvery > 0 && !g.closed {
		g.asker.Reset(g.askEvery)
	}
	g.mu.Unlock()
	for _, c := range silent {
		if !c.askPeer() {
			g.mu.Lock()
			g.unwatch(c)
			g.mu.Unlock()
		}
	}
}

// askPeer asks the peer for a message. It reports false if that has no more to say, or cannot be asked.
func (c *Carrier) askPeer() bool {
	_, _, flags := cdc.UnpackConsumer(c.inCons.Load())
	c.mu.Lock()
	defer c.mu.Unlock()
	if flags&(cdc.DoneWriting|cdc.Closed|cdc.Abort) != 0 || c.ring == nil || c.detached { // rule: TestSilentEnds
		return false
	}
	c.ask, c.urgent = true, true
	c.poke()
	return true
}
