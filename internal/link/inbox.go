package link

import (
	"slices"

	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire/cdc"
)

// receive takes a message of the peer, and reports false for one that was overtaken. It is called on
// the device's goroutine.
func (c *Carrier) receive(l *Link, turn uint64, m *cdc.Message) bool {
	c.in.Lock()
	if m.IsFailoverValidation() && c.in.link != nil && c.in.link != l {
		// The peer repeats the data that it has sent there and of whose arrival it was not told. If
		// it is told afterwards, Linux's net/smc counts that part of its send buffer twice
		// (smc_cdc_tx_handler).
		c.in.link.qp.HoldAnswers() // rule: TestMoveHolds
	}
	if c.isEarly(l, m) {
		if c.group.putAside(c, l, turn, m) {
			c.in.Unlock()
			return true
		}
		c.in.broken = true
	}
	c.in.Unlock()
	return c.look(l, turn, m)
}

// look looks at a message of which all that it may have overtaken was looked at.
func (c *Carrier) look(l *Link, turn uint64, m *cdc.Message) bool {
	c.in.Lock()
	if !c.in.released && (c.in.link != l || m.IsFailoverValidation() || len(c.in.next) > 0) {
		if left := c.follow(l, turn, m); left != nil {
			c.in.Unlock()
			for _, x := range left {
				x.Fail(x.error(ErrMoved)) // rule: TestMoveEndsOldLink, TestMoveBeforeAttach, TestMoveLateValidation
			}
			c.in.Lock()
		}
	}
	if c.in.released {
		c.in.Unlock()
		return false
	}
	open, ok := c.in.open, false
	if open {
		ok = c.admit(m)
	} else {
		ok = c.hold(m)
	}
	c.in.Unlock()
	if ok && open {
		if m.ProducerFlags&cdc.CursorUpdateRequested != 0 {
			c.answerRequest()
		}
		c.tell()
	}
	return ok
}

// answerRequest tells the peer at once how far we have read, which it has asked for, unless it
// knows: "the consumer must send a consumer cursor update immediately ... if ... local copy of the
// consumer cursor does not match the last consumer cursor value sent" (RFC 7609 p.64). A later
// reader sees the flag, and tells how far it has read then.
func (c *Carrier) answerRequest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring != nil && !c.detached && c.read.Load() != c.told.Load() { // rule: TestRequestedUpdate
		c.urgent = true
		c.poke()
	}
}

// follow notes over which link a message comes, and returns the links that the peer has given up
// before, as their validation messages show. Bytes that it has sent there may still be on their
// way, and must not arrive after the bytes that take their place. The links are to fail before the
// message is taken: when the peer knows that we have read the bytes in a place, it puts others
// there.
//
// A validation message alone does not say that: it may itself be late, of a link that the peer has
// given up since, and nothing follows it then. So where messages go on over one link after
// validation messages over several, the peer has left the links of the earlier ones. A validation
// message that came afterwards may be late. Then there is nothing on its way over its link, as a
// peer of ours sends nothing there before it knows that the message has arrived. Or it is the newer
// one, and the message that goes on was late: the gap in the numbers comes later then. c.in is
// locked.
func (c *Carrier) follow(l *Link, turn uint64, m *cdc.Message) (left []*Link) {
	i := c.heard(l)
	switch {
	case c.isStale(m): // rule: TestMoveStale
		return nil // the peer has left that link before it was heard of, and has sent no data over it
	case m.IsFailoverValidation():
		if c.in.link == l { // it says so late, or has come back from a link that was not heard of
			left = c.depart(nil)
		} else {
			c.group.watch(c) // rule: TestSilentPeerMoved
		}
		if i < 0 {
			if len(c.in.next) >= maxHeard {
				c.in.next = slices.DeleteFunc(c.in.next, func(x heard) bool { return x.link.Err() != nil })
			}
			c.in.next = slices.Insert(c.in.next, c.before(turn), heard{l, turn}) // rule: TestFollow: c.before(turn) -> len(c.in.next)
		}
		return left
	case i >= 0:
		left = c.giveUp(i, l)
		c.in.next = slices.Delete(c.in.next, 0, 1)
	case c.before(turn) > 0 && int16(m.Seq-c.newest()) > 1: // rule: TestFollow
		// It had moved to one of those after a failure, and then on in good order.
		n := c.before(turn)
		left = c.giveUp(n-1, l)
		if n == 1 {
			c.in.next = slices.Delete(c.in.next, 0, 1)
		}
	case c.in.link != nil && c.in.link != l && c.in.left == nil:
		c.in.left = c.in.link
	}
	c.in.moved = c.in.moved || c.in.link != nil && c.in.link != l
	c.in.link = l
	return left
}

// heard returns where the validation message that came over a link is among those that nothing has
// followed, -1 if it is not. c.in is locked.
func (c *Carrier) heard(l *Link) int {
	return slices.IndexFunc(c.in.next, func(x heard) bool { return x.link == l })
}

// before returns how many of those have arrived before a message. c.in is locked.
func (c *Carrier) before(turn uint64) (n int) {
	for n < len(c.in.next) && c.in.next[n].turn <= turn {
		n++
	}
	return n
}

// giveUp returns the link of the newest message, unless it is l, and the first n of those over
// which validation messages have come, which it forgets. c.in is locked.
func (c *Carrier) giveUp(n int, l *Link) (left []*Link) {
	for _, x := range c.in.next[:n] {
		left = append(left, x.link)
	}
	c.in.next = slices.Delete(c.in.next, 0, n)
	if c.in.link != nil && c.in.link != l {
		left = append(left, c.in.link)
	}
	return c.depart(left)
}

// newest is the number of the newest message; 0 where there was none. c.in is locked.
func (c *Carrier) newest() uint16 {
	if c.in.open {
		return c.in.seq
	}
	return c.in.message.Seq
}

// depart adds the link that the peer had left, and not said so, to those that it has given up. c.in
// is locked.
func (c *Carrier) depart(left []*Link) []*Link {
	if c.in.left != nil {
		left = append(left, c.in.left)
	}
	c.in.left, c.in.late = nil, false
	return left
}

// isStale reports whether a message that is no validation message was overtaken. c.in is locked.
func (c *Carrier) isStale(m *cdc.Message) bool {
	if m.IsFailoverValidation() {
		return false
	}
	return c.in.open && m.IsStale(c.in.seq) || !c.in.open && c.in.held && m.IsStale(c.in.message.Seq)
}

// hold keeps the newest message for Attach. c.in is locked.
func (c *Carrier) hold(m *cdc.Message) bool {
	fresh := !c.in.held || !m.IsStale(c.in.message.Seq)
	if m.IsFailoverValidation() {
		c.in.moved, c.in.again = true, true
		c.in.broken = c.in.broken || int16(c.in.message.Seq-m.Seq) < 0 // nothing was held: 0
	} else if fresh {
		if c.in.held && c.in.message.Producer == m.Producer {
			m.ProducerFlags |= c.in.message.ProducerFlags & cdc.UrgentPresent // rule: TestUrgentBeforeAttach
		}
		c.in.held, c.in.message = true, *m
	}
	return fresh
}

// admit takes a message, unless it speaks of bytes that are not there.
//
// "The sender must first send a CDC message with the F-bit" when it goes on over another link after
// a failure, and send again all that is not known to have arrived (RFC 7609 §4.6). Linux does
// neither for a connection one half of which has ended (net/smc, smc_switch_conns: any state but
// ACTIVE). Bytes on their way over the link that failed are lost, and the next bytes are written
// after the gap. So where the numbers of messages have a gap, and the peer has moved and not said
// so, all bytes up to the producer cursor have to have been placed. Otherwise the message waits for
// those that are missing, as long as the link that the peer has left may bring them; when that has
// failed the connection ends. c.in is locked.
func (c *Carrier) admit(m *cdc.Message) bool {
	switch {
	case c.in.left == nil: // nearly always
	case m.IsFailoverValidation(): // see follow
	case m.IsStale(c.in.seq):
		return false
	case m.Seq-c.in.seq <= 1: // rule: TestMoveUnsaid: m.Seq-c.in.seq <= 1 -> true
		ok := c.take(m)
		if c.in.late {
			c.in.late = false
			c.admit(&c.in.message)
		} else {
			c.in.left = nil
		}
		return ok
	case c.isThere(m.Producer):
		c.in.left, c.in.late = nil, false
	case c.in.left.over.Load(): // rule: TestMoveUnsaid
		c.in.broken = true
	default:
		if c.in.late && m.IsStale(c.in.message.Seq) {
			return false
		}
		if c.in.late && c.in.message.Producer == m.Producer {
			m.ProducerFlags |= c.in.message.ProducerFlags & cdc.UrgentPresent
		}
		c.in.late, c.in.message = true, *m
		return true
	}
	return c.take(m)
}

// isThere reports whether all bytes up to a cursor of the peer's were placed in our element. c.in is locked.
func (c *Carrier) isThere(to cdc.Cursor) bool {
	to.Count -= c.in.base
	if cdc.UnpackProducer(c.inProd.Load()) == to {
		return true
	}
	if c.in.again { // bytes were placed twice, so that their number says nothing
		return false
	}
	size := uint64(c.ownSize())
	round := size << 16
	announced := (uint64(to.Wrap)*size + uint64(to.Count)) % round
	placed, known := c.group.placed(c.rmb.mem)
	missing := (announced - (placed-c.in.placed)%round + round) % round
	return known && (missing == 0 || missing > size) // rule: TestMoveUncounted: known && -> (known || true) &&
}

// endedOver tells that nothing more comes over a link.
func (c *Carrier) endedOver(l *Link) {
	c.in.Lock()
	if c.in.link == l && !c.in.released {
		c.group.watch(c) // rule: TestSilentHeardOver
	}
	news := c.in.late && c.in.left == l && !c.in.released
	if news {
		c.in.late = false
		c.admit(&c.in.message)
	}
	c.in.Unlock()
	if news {
		c.tell()
	}
}

// impossible is a cursor that is outside any buffer, so that its reader ends the connection.
var impossible = cdc.PackProducer(cdc.Cursor{Count: 1<<32 - 1})

// take puts a message into the inbox. c.in is locked.
func (c *Carrier) take(m *cdc.Message) bool {
	if m.IsFailoverValidation() {
		// It asks whether the message of that number has come: RFC 7609 §4.6.1.
		c.in.moved, c.in.again = true, true
		if int16(c.in.seq-m.Seq) >= 0 { // rule: TestMoveLost
			return true
		}
		c.in.broken = true
	} else if m.IsStale(c.in.seq) {
		return false
	} else {
		c.in.seq = m.Seq
	}
	if c.in.base > 0 && string(c.rmb.Bytes()[:len(eyecatcher)]) != eyecatcher {
		c.in.broken = true // somebody has written where nobody may: RFC 7609 §4.4.1
	}
	if c.in.broken {
		c.inProd.Store(impossible)
		return true
	}
	// A count below the base becomes one that is outside the buffer. The cursor comes before the
	// flags: bytes that were written before the end are not missed.
	m.Producer.Count -= c.in.base
	m.Consumer.Count -= c.base
	if !c.in.moved || !c.isBehind(m.Producer) {
		// Else the bytes are here already, and were written once more.
		c.announce(m.Producer)
		c.inProd.Store(stream.ProducerWord(c.inProd.Load(), m.Producer, m.ProducerFlags,
			cursor(c.read.Load(), c.ownSize())))
	}
	c.inCons.Store(cdc.PackConsumer(m.Consumer, m.ProducerFlags, m.ConnFlags))
	return true
}

// announce takes note of the bytes that the peer says to have written: until we have read them,
// they are not written again. Nobody has to but in the replay after a move (RFC 7609 §4.6), and
// those are the bytes that we have. Linux's net/smc has been seen to replay others, which its
// program had written later into the same place of the send buffer: a completion of the old link
// gives that place away after the move. This goes for all WRITEs and not from a move on: WRITEs of
// a replay may be placed before the message that tells of it is looked at. For a connection that is
// being closed Linux tells of none. c.in is locked.
func (c *Carrier) announce(to cdc.Cursor) {
	size, total := c.ownSize(), c.guard.Written.Load()
	// Where the check fails the reader of the cursor ends the connection.
	if n, err := cdc.Check(cursor(total, size), to, size-uint32(total-c.read.Load()), size); err == nil {
		c.guard.Written.Store(total + uint64(n))
	}
}

// isBehind reports whether a cursor of the peer's is at a place that it has passed: no further back
// than our buffer is long. c.in is locked.
func (c *Carrier) isBehind(to cdc.Cursor) bool {
	size := uint64(c.ownSize())
	if uint64(to.Count) >= size {
		return false // impossible, and seen as such
	}
	round := size << 16
	at := cdc.UnpackProducer(c.inProd.Load())
	back := (uint64(at.Wrap)*size + uint64(at.Count) + round - uint64(to.Wrap)*size - uint64(to.Count)) % round
	return back > 0 && back <= size
}
