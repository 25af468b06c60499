package dissect

import (
	"fmt"

	"github.com/gosmc/smc/wire/cdc"
)

// progressOf takes a CDC message of a connection that is known.
//
// A message is compared with the earlier messages of its side only if the packets of that side have
// no gap since. It is compared with the messages of the other side only if the packets of that side
// have no gap either: see [mark] and [suspicion].
func (t *Tracker) progressOf(e *Event, f *flow, c *Conn, m *cdc.Message, where place) {
	out, in := c.Ring(f.dir), c.Ring(f.dir.Reverse())
	p := &t.progress
	*p = Progress{Out: out, In: in, Produced: -1, Consumed: -1, Window: -1, PeerRoom: -1}
	e.Progress = p
	older := m.Seq != out.Seq && m.IsStale(out.Seq)
	if where == placeRepeat || where == placeLate && older {
		p.Repeated = true
		p.Window, p.PeerRoom = out.Window(), in.Window()
		return
	}
	known := out.writerAt == f.mark() && where == placeNew
	if out.link != f.link {
		known = false
		t.changeLink(c, out, f.link, m.IsFailoverValidation(), p)
	}
	if m.IsFailoverValidation() {
		e.Text = fmt.Sprintf("has message %d arrived?", m.Seq)
		out.writerAt, in.readerAt = f.mark(), f.mark()
		out.pending, out.replays = 0, true
		out.ProducerKnown, in.ConsumerKnown = false, false
		return
	}
	if out.replays {
		// The sender repeats the messages that had not arrived on the other link, or sends one with
		// a higher number for all of them: RFC 7609 §4.6.
		out.replays, known = false, false // rule: TestRules: known = false, false -> known = false, known
	}
	if known {
		if older {
			e.problem(Violation, fmt.Sprintf("CDC sequence number %d after %d", m.Seq, out.Seq),
				"RFC 7609 p.127")
			p.Repeated = true
			return
		}
		if p.SeqGap = int(m.Seq - out.Seq - 1); m.Seq == out.Seq {
			p.SeqGap = 0 // the sender could not send the one before: Linux net/smc uses the number again
		}
		if p.SeqGap > 0 {
			e.problem(Violation, fmt.Sprintf("CDC sequence number %d after %d, and no packet is missing",
				m.Seq, out.Seq), "RFC 7609 p.126")
		}
	}
	if c.SMCClosed && !answersAbort(out, in, m) {
		e.problem(Violation, "a CDC message after both sides were done", "RFC 7609 p.129")
	}
	if gone := out.ConnFlags &^ m.ConnFlags; gone != 0 {
		e.problem(Violation, "connection flags are gone that were set: "+gone.String(), "RFC 7609 p.129")
	}
	if !in.writerAt.holds() {
		in.ProducerKnown = false
	}
	if !out.readerAt.holds() {
		out.ConsumerKnown = false
	}
	t.produced(e, out, m, known)
	t.consumed(e, in, m, known)
	out.writerAt, in.readerAt = f.mark(), f.mark()
	out.Messages++
	out.Seq, out.Flags, out.pending = m.Seq, m.ProducerFlags, 0
	out.ConnFlags |= m.ConnFlags
	if out.done() && in.done() && !c.SMCClosed {
		c.SMCClosed = true
		c.leaveLink()
		c.leaveBuffers() // which other connections may use from now on: RFC 7609 p.62
	}
	p.Window, p.PeerRoom = out.Window(), in.Window()
}

// answersAbort reports whether m is the first Abort of a sender whose peer has aborted. That peer
// awaits it, also of a sender that had closed already: RFC 7609 §4.8.2.
func answersAbort(out, in *Ring, m *cdc.Message) bool {
	return in.ConnFlags&m.ConnFlags&^out.ConnFlags&cdc.Abort != 0
}

// changeLink notes that the writer of out sends over another link than before. Both directions move
// on their own; the connection moves once.
//
// It is a failover if the writer says so, which it does by a validation message (RFC 7609 §4.6.1),
// or if the link that it leaves has failed; Linux net/smc has no such message for connections that
// are being closed. Else the link was left in order, to spread the load. A connection that begins
// on another link than the handshake names has not moved.
func (t *Tracker) changeLink(c *Conn, out *Ring, l *Link, validates bool, p *Progress) {
	failover := validates || out.link != nil && out.link.lost // rule: TestMoves: validates || out.link != nil && out.link.lost -> true
	begins := out.Messages == 0
	out.link = l
	p.Failover, p.Moved = failover, !failover && !begins
	switch {
	case c.Link != l && !failover && begins && c.Ring(out.Dir.Reverse()).Messages == 0:
		c.moveTo(l)
		return
	case c.Link != l:
		c.moveTo(l)
	case failover && c.moved: // the other direction came first, and did not say why
		c.moved = false
		c.Moves--
		l.Group.Moves--
		t.count.Moves--
	default:
		return
	}
	if c.moved = !failover; failover {
		c.Failovers++
		l.Failovers++
		l.Group.Failovers++
		t.count.Failovers++
	} else {
		c.Moves++
		l.Group.Moves++
		t.count.Moves++
	}
}

// produced takes the producer cursor of a message.
func (t *Tracker) produced(e *Event, out *Ring, m *cdc.Message, known bool) {
	before, had := out.Producer, known && out.ProducerKnown
	if !out.inside(m.Producer) {
		e.problem(Violation, fmt.Sprintf("the producer cursor %v is outside the buffer of %d bytes",
			m.Producer, out.Size), "RFC 7609 p.127")
		out.ProducerKnown = false
		return
	}
	out.Producer, out.ProducerKnown = m.Producer, true
	if !had {
		return
	}
	capacity := uint32(out.Capacity)
	n, err := cdc.Check(out.at(before), out.at(m.Producer), capacity, capacity)
	if err != nil {
		e.problem(Violation, fmt.Sprintf("the producer cursor goes from %v to %v", before, m.Producer),
			"RFC 7609 p.127")
		return
	}
	e.Progress.Produced = int(n)
	out.Produced += uint64(n)
	if n > 0 && out.ConnFlags&(cdc.DoneWriting|cdc.Closed|cdc.Abort) != 0 {
		e.problem(Violation, "new data of a sender that has said to be done", "RFC 7609 p.129")
	}
	if !out.ConsumerKnown {
		return
	}
	if used := cdc.Diff(out.at(out.Consumer), out.at(before), capacity); n > capacity-min(used, capacity) {
		t.tooFar(out, out.Dir, uint64(n-(capacity-min(used, capacity))),
			fmt.Sprintf("the producer cursor %v is beyond what the reader has freed",
				m.Producer), "RFC 7609 p.127")
	}
}

// consumed takes the consumer cursor of a message.
func (t *Tracker) consumed(e *Event, in *Ring, m *cdc.Message, known bool) {
	before, had := in.Consumer, known && in.ConsumerKnown
	if !in.inside(m.Consumer) {
		e.problem(Violation, fmt.Sprintf("the consumer cursor %v is outside the buffer of %d bytes",
			m.Consumer, in.Size), "RFC 7609 p.128")
		in.ConsumerKnown = false
		return
	}
	in.Consumer, in.ConsumerKnown = m.Consumer, true
	if !had {
		return
	}
	capacity := uint32(in.Capacity)
	n, err := cdc.Check(in.at(before), in.at(m.Consumer), capacity, capacity)
	if err != nil {
		e.problem(Violation, fmt.Sprintf("the consumer cursor goes from %v to %v", before, m.Consumer),
			"RFC 7609 p.128")
		return
	}
	e.Progress.Consumed = int(n)
	in.Consumed += uint64(n)
	if !in.ProducerKnown {
		return
	}
	if unread := cdc.Diff(in.at(before), in.at(in.Producer), capacity); n > unread {
		t.tooFar(in, in.Dir.Reverse(), uint64(n-unread),
			fmt.Sprintf("the consumer cursor %v is beyond what was written", m.Consumer), "RFC 7609 p.128")
	}
}

// A suspicion is an action of one side that the other had not allowed or asked for. It is proven by
// the next packet of the other side, if that shows that the capture lacks none before it: else the
// capture may just lack the permission. A permission that comes right after is taken for one that
// came before, because captures do not have packets of both directions in their true order.
type suspicion struct {
	packet int // its number
	dir    Direction
	link   *Link
	conn   *Conn // may be nil
	text   string
	rule   string

	awaited mark // the flow of the other side

	// Of cursors and writes that went too far:
	ring    *Ring  // nil for other suspicions
	reading bool   // the reader went too far, not the writer
	excess  uint64 // by how many bytes
	allowed uint64 // how many the other side had allowed in all
}

// permitted returns how many bytes the other side has allowed in all.
func (s *suspicion) permitted() uint64 {
	if s.reading {
		return s.ring.Produced
	}
	return s.ring.Consumed
}

// tooFar notes that the sender of the current message, in direction d, went too far in a ring, unless
// there is an earlier suspicion.
func (t *Tracker) tooFar(r *Ring, d Direction, excess uint64, text, rule string) {
	s := suspicion{link: r.link, conn: r.Conn, dir: d, text: text, rule: rule, awaited: r.readerAt, ring: r,
		excess: excess}
	if s.reading = d != r.Dir; s.reading {
		s.awaited = r.writerAt
	}
	s.allowed = s.permitted()
	if !r.suspected && t.suspect(s) {
		r.suspected = true
	}
}

// suspect notes a suspicion against the sender of the current packet, and reports whether it could.
func (t *Tracker) suspect(s suspicion) bool {
	f := s.awaited.f
	if !s.awaited.holds() || len(f.suspicions) >= maxSuspicions {
		return false
	}
	s.packet = t.packet.Number
	f.suspicions = append(f.suspicions, s)
	return true
}

// settle proves or drops the suspicions that wait for the request of f that was just taken.
func (t *Tracker) settle(f *flow, where place) {
	if where != placeNew {
		return
	}
	for i := range f.suspicions {
		s := &f.suspicions[i]
		if s.ring != nil {
			s.ring.suspected = false
			if s.permitted()-s.allowed >= s.excess {
				continue
			}
		}
		if !s.awaited.holds() {
			continue
		}
		e := t.begin(Note, "violation", f.dst, f.src)
		e.Link, e.Dir, e.Conn = s.link, s.dir, s.conn
		e.Text = fmt.Sprintf("packet %d: %s", s.packet, s.text)
		e.problem(Violation, e.Text, s.rule)
		t.send(e)
	}
	clear(f.suspicions)
	f.suspicions = f.suspicions[:0]
}
