package link

import (
	"github.com/gosmc/smc/wire/cdc"
)

// progress has values of a message, for the time when the message is known to be there.
type progress struct {
	seq  uint16
	said cdc.ConnFlags
}

// A move is to another link.
type move struct {
	link *Link
	to   RMBToken
}

// Move has the connection go on over another link of the group, which must be ready to send. to is
// where the peer's RMB element is there.
//
// After a failure, [Link.Fail] first if the link has not failed by itself, "the sender must first
// send a CDC message with the F-bit", then everything that is not known to have arrived, in order,
// and then newer bytes (RFC 7609 §4.6). These are new messages, which may have more in them than
// the old ones had. They follow when the message with the F-bit is known to be there, so that a
// peer knows of each link over which data may come late, and ends it when we move on. From a link
// that is good nothing new is sent until all has arrived. The first message over the other one has
// no data, and more follows when it is known to be there, for the same reason. Each side moves its
// own direction, when it likes.
//
// A peer that is told of the end of our direction before the move is asked for a message: Linux has
// lost then the messages on their way, and may have nothing else to say: see [Carrier.admit].
//
// Moves that have to wait are carried out later; the last one counts. One for a connection that has
// nothing more to say does nothing. The error is [ErrNotReady] for a link that cannot send, or does
// not know our send ring. One that has failed since the caller has looked is such a link, and
// [Link.Err] says so then: the caller has to find another one, as the event of that failure is
// about those on it.
func (c *Carrier) Move(l *Link, to RMBToken) error {
	l.mu.Lock()
	ready, gone := l.ready && !l.gone, l.gone
	l.mu.Unlock()
	if gone {
		<-l.failed // which follows without waiting for anybody
	}
	if !ready {
		return l.error(ErrNotReady)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return nil
	}
	if c.link == l {
		c.move = nil // rule: TestMoveBack, TestSimMove
		c.poke()
		return nil
	}
	if c.group.region(c.ring, l) == nil {
		return l.error(ErrNotReady)
	}
	c.move = &move{l, to}
	c.settle()
	return nil
}

// Leave asks for an [EventLeft] as soon as no connection writes over the link, nor has anything on
// its way over it: when those that do were told to move, or have ended. It comes once for a call,
// and at once where there are none. A link that has failed is left too.
func (l *Link) Leave() {
	l.leaving.Store(true)
	l.checkLeft()
}

// unused takes note that a connection does not write over the link any more. Its mu may be held.
func (l *Link) unused() {
	l.users.Add(-1)
	l.checkLeft()
}

func (l *Link) checkLeft() {
	// rule: TestLeave: l.users.Load() == 0 -> true
	if l.users.Load() == 0 && l.leaving.CompareAndSwap(true, false) {
		l.group.tell(Event{Kind: EventLeft, Link: l})
	}
}

// Link returns the link that the connection writes over, nil before Attach.
func (c *Carrier) Link() *Link {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.move != nil {
		return c.move.link
	}
	return c.link
}

// Delivered returns how many bytes have arrived at the peer.
func (c *Carrier) Delivered() uint64 { return c.finished.Load() }

// Failed reports whether a link has failed over which the peer has spoken, or may have: the last
// messages of Linux's net/smc there may be lost.
func (c *Carrier) Failed() bool { return c.failed.Load() }

// GiveUp says that there is no link to move to: all that is left to send stays unsent.
func (c *Carrier) GiveUp() {
	c.mu.Lock()
	c.lost = true
	c.drained()
	c.mu.Unlock()
}

// settle carries out a move, unless somebody is posting or about to. c.mu is held, and let go of meanwhile.
func (c *Carrier) settle() {
	if c.move == nil || c.posting || c.queued || c.ring == nil {
		return
	}
	failed := c.link.Err() != nil
	if !failed && c.out > 0 { // rule: TestMoveGood
		return
	}
	m := c.move
	c.move = nil
	region := c.group.region(c.ring, m.link)
	if region == nil { // it was closed meanwhile
		return
	}
	c.gen.Add(1) // completions of the old link count no more
	m.link.users.Add(1)
	c.link.unused()
	c.link, c.region, c.regionAt = m.link, region, region.Addr()
	c.peer.RKey, c.peer.Addr = m.to.RKey, m.to.Addr
	if failed {
		c.posted = c.finished.Load()
		c.out = 0
		c.said = c.done.said
		if c.conn&cdc.Abort != 0 {
			c.put = c.posted // nobody will read it
		}
		c.validate, c.greet, c.awaited, c.urgent = true, false, false, true
		c.ask = c.conn&cdc.DoneWriting != 0 // rule: TestMoveAsks: c.conn&cdc.DoneWriting != 0 -> false
		c.oob.again = c.oob.said
		c.group.watch(c) // rule: TestSilentMoved
	} else {
		c.greet = true // rule: TestMoveUnheard
	}
	c.poke()
	c.drained()
}

// validation is the failover validation message: it has the number of the last message that is
// known to be there.
func (c *Carrier) validation() cdc.Message {
	return cdc.NewFailoverValidation(c.done.seq, c.peer.AlertToken)
}
