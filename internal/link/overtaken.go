package link

import (
	"cmp"
	"slices"
	"sync"

	"github.com/gosmc/smc/wire/cdc"
)

// This file handles messages that are looked at too early.
//
// Messages of a connection that moves come over two links, and so on two goroutines. A message that
// the peer knows to have arrived over the one may still wait for a goroutine to look at it when the
// peer's next message comes over the other. A validation message then names a message of which we
// know nothing: the connection would be reset without need (RFC 7609 §4.6.1). Or it is another
// validation message that waits, and the link over which that came would not be known for one that
// the peer has left, see [Carrier.follow].
//
// So such a message is put aside, until all that has come over any link was looked at.

// overtaken is where such messages of a group are. The zero value is empty.
type overtaken struct {
	mu   sync.Mutex
	list []overtaker  // in the order of their coming
	runs bool         // somebody looks at them
	run  func(func()) // in place of a goroutine, in tests
}

// An overtaker is a message that came too early.
type overtaker struct {
	carrier *Carrier
	link    *Link
	turn    uint64
	first   uint16 // number of the first message of which this one has taken the place
	message cdc.Message
}

// isEarly reports whether messages that come before m may not have been looked at: the one that a
// validation message names; other validation messages, before the first that follows one over its
// link; the predecessor of another message; or a message that came over the same link and is put
// aside. c.in is locked.
func (c *Carrier) isEarly(l *Link, m *cdc.Message) bool {
	seq := c.newest()
	switch {
	case c.in.released, c.in.broken:
		return false
	case slices.Contains(c.in.overtaken, l): // nearly always there are none
		return true
	case m.IsFailoverValidation():
		return int16(seq-m.Seq) < 0 // rule: TestOvertaken: int16(seq-m.Seq) < 0 -> false
	case c.heard(l) >= 0:
		return true // rule: TestFollow: true -> false
	}
	return c.in.link != nil && int16(m.Seq-seq) > 1 // rule: TestOvertaken: int16(m.Seq-seq) > 1 -> false
}

// putAside keeps a message, and has it looked at soon. It reports false if there are too many. c.in
// is locked.
func (g *Group) putAside(c *Carrier, l *Link, turn uint64, m *cdc.Message) bool {
	o := &g.overtaken
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.replace(c, l, m) {
		return true
	}
	if len(o.list) >= maxOvertaken {
		return false
	}
	o.list = append(o.list, overtaker{c, l, turn, m.Seq, *m})
	c.in.overtaken = append(c.in.overtaken, l)
	if o.runs {
		return true
	}
	o.runs = true
	g.spawn(g.lookAtOvertaken) // a completion handler must not wait for another one
	return true
}

// spawn has a goroutine run f.
func (g *Group) spawn(f func()) {
	if g.overtaken.run != nil {
		g.overtaken.run(f)
		return
	}
	go f()
}

// replace has a message take the place of the one before it, where those two and the one before
// have numbers that follow each other: it says all that the other did. One after a gap stays, as
// its number tells that, and nothing has come over another link in between. o.mu and c.in are
// locked.
func (o *overtaken) replace(c *Carrier, l *Link, m *cdc.Message) bool {
	if m.IsFailoverValidation() {
		return false
	}
	var last *overtaker
	for i := len(o.list) - 1; i >= 0; i-- {
		x := &o.list[i]
		switch {
		case x.carrier != c || x.link != l:
		case x.message.IsFailoverValidation():
			return false
		case last == nil && m.Seq != x.message.Seq+1:
			return false
		case last == nil:
			last = x
		case last.first != x.message.Seq+1: // rule: TestFollow
			return false
		default:
			if last.message.Producer == m.Producer {
				m.ProducerFlags |= last.message.ProducerFlags & cdc.UrgentPresent
			}
			last.message = *m
			return true
		}
	}
	return false
}

// lookAtOvertaken has all messages looked at that have come, and then those that were put aside,
// until none is.
func (g *Group) lookAtOvertaken() {
	o := &g.overtaken
	for {
		o.mu.Lock()
		list := o.list
		o.list = nil
		o.runs = len(list) > 0
		o.mu.Unlock()
		if len(list) == 0 {
			return
		}
		last := slices.MaxFunc(list, compareTurns).turn
		g.mu.Lock()
		links := slices.Clone(g.links)
		g.mu.Unlock()
		for _, l := range links {
			l.qp.Drain(drainTime)
		}
		o.mu.Lock()
		for _, x := range o.list { // all that arrived before the last one is here now, or was looked at
			if x.turn <= last {
				list = append(list, x)
			}
		}
		o.list = slices.DeleteFunc(o.list, func(x overtaker) bool { return x.turn <= last })
		o.mu.Unlock()
		slices.SortStableFunc(list, compareTurns) // rule: TestFollow
		for i := range list {
			list[i].look()
		}
	}
}

func compareTurns(a, b overtaker) int { return cmp.Compare(a.turn, b.turn) }

func (o *overtaker) look() {
	c := o.carrier
	if !c.look(o.link, o.turn, &o.message) {
		o.link.stats.stale.Add(1)
	}
	c.in.Lock() // now, so that the next message over the link stays behind it
	i := slices.Index(c.in.overtaken, o.link)
	c.in.overtaken = slices.Delete(c.in.overtaken, i, i+1)
	c.in.Unlock()
}
