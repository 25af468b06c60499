package link

import (
	"os"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire/cdc"
)

// Buffer implements [stream.Carrier].
func (c *Carrier) Buffer() []byte { return c.ring.bytes }

// PeerBuffer implements [stream.Carrier].
func (c *Carrier) PeerBuffer() int { return int(c.size) }

// Room implements [stream.Carrier].
func (c *Carrier) Room(window uint32) uint32 {
	room := c.room()
	if room < window {
		// A completion from now on wakes the writer; one that came just before is seen by looking again.
		c.short.Store(true)
		room = c.room()
	}
	return min(room, window)
}

func (c *Carrier) room() uint32 { return uint32(uint64(c.sendSize) - (c.put - c.finished.Load())) }

// Produce implements [stream.Carrier].
func (c *Carrier) Produce(to cdc.Cursor) (rang bool) {
	c.mu.Lock()
	c.put += uint64(cdc.Diff(cursor(c.put, c.size), to, c.size))
	c.oob.state = oobNone
	c.poke()
	c.mu.Unlock()
	return false
}

// Consume implements [stream.Carrier]. How far we have read is looked up when the message is made.
// The news that the writer is not blocked any more can wait for its next bytes.
func (c *Carrier) Consume(_ cdc.Cursor, prod cdc.ProducerFlags, conn cdc.ConnFlags) {
	c.mu.Lock()
	unblocked := c.prod&^prod == cdc.WriterBlocked && conn == c.conn
	c.prod, c.conn = prod, conn
	c.urgent = c.urgent || !unblocked
	if conn&cdc.Abort != 0 && c.put-c.posted > maxPost { // rule: TestAbort: maxPost -> 0
		c.dropped = true
		c.put = c.posted + maxPost
	}
	c.poke()
	c.mu.Unlock()
}

// WakeReader implements [stream.Carrier]: a message wakes by itself.
func (c *Carrier) WakeReader() (rang bool) { return false }

// WakeWriter implements [stream.Carrier].
func (c *Carrier) WakeWriter() (rang bool) { return false }

// Published implements [stream.Carrier].
func (c *Carrier) Published() cdc.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cdc.Header{
		Producer: cursor(c.put, c.size), Consumer: cursor(c.told.Load(), c.ownSize()),
		ProducerFlags: c.prod | c.oob.published(), ConnFlags: c.conn,
	}
}

// Message is the CDC message with which a header travels to the peer, or from it if own is false,
// for observers from outside. Its number is the number of the newest message there was.
func (c *Carrier) Message(h cdc.Header, own bool) cdc.Message {
	m := cdc.Message{
		AlertToken: c.token, Producer: h.Producer, Consumer: h.Consumer, ProducerFlags: h.ProducerFlags, ConnFlags: h.ConnFlags,
	}
	c.mu.Lock()
	seq, token, base := c.seq, c.peer.AlertToken, c.base
	c.mu.Unlock()
	c.in.Lock()
	defer c.in.Unlock()
	if own {
		m.Seq, m.AlertToken = seq, token
		m.Producer.Count += base
		m.Consumer.Count += c.in.base
	} else {
		m.Seq = c.in.seq
		m.Producer.Count += c.in.base
		m.Consumer.Count += base
	}
	return m
}

// cursor is the place of byte number n of a stream in a ring of a size.
func cursor(n uint64, size uint32) cdc.Cursor {
	return cdc.Cursor{Wrap: uint16(n / uint64(size)), Count: uint32(n % uint64(size))}
}

// ownSize is the size of the data in our element.
func (c *Carrier) ownSize() uint32 { return uint32(c.rmb.code.Bytes()) - c.in.base }

// last reports whether the peer was told that nothing follows. c.mu is held.
func (c *Carrier) last() bool { return c.said&(cdc.Closed|cdc.Abort) != 0 }

// SetNoDelay has small writes go out at once, and not wait for earlier messages: "the sending host
// would have to opt out of this processing if Nagle's algorithm had been disabled" (RFC 7609
// §4.5.2). They still gather where there is no place for a message.
func (c *Carrier) SetNoDelay(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noDelay = on
	c.poke()
}

// due reports whether a message is to be sent now. c.mu is held.
//
//	data            at once if the messages before have arrived, or there is much of it, or an
//	                end is near; or with SetNoDelay
//	urgent          at once: flags, window updates, that the writer is blocked
//	DoneWriting     with the last data, or after it
//	Closed          when all data has arrived: RFC 7609 p.83
//	Abort           at once, with the data that there is, as far as one post takes it
func (c *Carrier) due() bool {
	switch unsaid := c.conn &^ c.said; {
	case c.ring == nil || c.move != nil:
		return false
	case c.validate:
		return true
	case c.awaited: // rule: TestMoveTwice
		return false
	case c.last():
		return false
	case c.put != c.posted:
		if n := c.keepBack(); n > 0 {
			return c.out == 0 || n >= corkBytes || c.urgent || unsaid != 0 ||
				c.noDelay || c.answered() // rule: TestNoDelay: c.noDelay || -> false ||
		}
		return c.urgent
	case unsaid&cdc.Closed != 0 && unsaid&cdc.Abort == 0:
		return c.out == 0
	default:
		return c.urgent || unsaid != 0
	}
}

// answered reports whether the peer says that it has read all that was sent. Its device may put off the
// acknowledgement then, as there was an answer to send. c.mu is held.
func (c *Carrier) answered() bool {
	return c.consumer() == cursor(c.posted, c.size)
}

// poke posts the messages that are due, or queues for a place. c.mu is held, and let go of
// meanwhile.
func (c *Carrier) poke() {
	if c.posting || c.queued || !c.due() {
		return
	}
	if i, ok := c.link.take(c); ok {
		c.post(i)
	}
}

// prepare fills the place that c has waited for, and reports whether it has use for it. Then it is
// posting, and the caller calls postedAll.
func (c *Carrier) prepare(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued = false
	if !c.due() {
		c.link.giveBack(i)
		c.settle()
		c.drained()
		return false
	}
	c.posting = true
	c.fill(i)
	return true
}

// postedAll ends the posting that prepare has begun.
func (c *Carrier) postedAll() {
	c.mu.Lock()
	c.posting = false
	c.settle()
	c.poke()
	c.drained()
	c.mu.Unlock()
}

// post uses a place, and further ones if there are and it has use for them. c.mu is held, and let go of
// meanwhile.
func (c *Carrier) post(i int) {
	l := c.link
	c.posting = true
	for ok := true; ok; {
		c.fill(i)
		c.mu.Unlock()
		l.post(i)
		c.mu.Lock()
		if !c.due() {
			break
		}
		i, ok = l.take(c)
	}
	c.posting = false
	c.settle()
	c.drained()
}

// fill makes the work of a post. c.mu is held.
func (c *Carrier) fill(i int) {
	if c.conn&cdc.Abort != 0 && c.peerEnded() { // rule: TestAbort: c.peerEnded() -> false
		c.drop() // nobody will read it, and its element may be another connection's
	}
	p := &c.link.places[i]
	n := 0
	size := uint32(min(c.sendable(), maxPost))
	if c.validate || c.greet {
		size = 0
	}
	if size > 0 {
		at := uint32(c.posted % uint64(c.size))
		first := min(size, c.size-at)
		c.write(&p.work[0], i, at, first)
		if n = 1; first < size {
			c.write(&p.work[1], i, 0, size-first)
			n = 2
		}
	}
	c.out++
	p.end, p.count = c.posted, n+1
	var m cdc.Message
	if c.validate {
		m = c.validation()
		c.validate, c.awaited = false, true
		p.done = c.done
	} else {
		m = c.message(size)
		c.greet, c.awaited = false, c.greet
		p.done = progress{c.seq, c.said}
	}
	m.Append(c.link.message(i)[:0])
	p.work[n] = verbs.SendWR{
		// rule: TestQueuePair: Solicited: true -> Solicited: false
		ID: idCDC | uint64(i), Op: verbs.OpSend, Signaled: true, Solicited: true,
		Local: [2]verbs.SGE{{MR: c.link.mr, Addr: c.link.at + uint64(cdcAt+i*cdcLen), Len: cdc.MessageLen}},
	}
	c.link.stats.sentCDC.Add(1)
	c.link.stats.sentBytes.Add(uint64(size))
}

// write makes a WRITE of the next size bytes, which go to offset at of the data in the peer's element.
func (c *Carrier) write(w *verbs.SendWR, i int, at, size uint32) {
	ring := uint64(c.sendSize)
	from := c.posted % ring
	first := min(uint64(size), ring-from)
	*w = verbs.SendWR{
		ID: idCDC | uint64(i), Op: verbs.OpWrite,
		Local: [2]verbs.SGE{
			{MR: c.region, Addr: c.regionAt + from, Len: uint32(first)},
			{MR: c.region, Addr: c.regionAt, Len: size - uint32(first)},
		},
		Remote: c.peer.Addr + uint64(c.base) + uint64(at), RKey: c.peer.RKey,
	}
	c.posted += uint64(size)
}

// message is the CDC message of a post of size bytes. c.mu is held.
func (c *Carrier) message(size uint32) cdc.Message {
	held := c.keepBack() == 0 && c.put != c.posted
	if c.put == c.posted || held {
		c.urgent, c.said = false, c.conn
		if c.conn&cdc.Abort == 0 && (size > 0 || c.out > 1) {
			c.said &^= cdc.Closed // not before all has arrived
		}
	}
	c.seq++
	read := c.read.Load()
	c.told.Store(read) // before the peer can use the room
	m := cdc.Message{
		Seq: c.seq, AlertToken: c.peer.AlertToken,
		Producer: cursor(c.posted, c.size), Consumer: cursor(read, c.ownSize()),
		ProducerFlags: c.prod | c.oob.flags(c.posted, size), ConnFlags: c.said,
	}
	if held {
		m.ProducerFlags |= cdc.WriterBlocked // rule: TestProbeWithoutWriter
	}
	if c.ask || c.probing() { // rule: TestProbeFlagStays: c.ask || c.probing() -> c.ask
		c.ask = false
		m.ProducerFlags |= cdc.CursorUpdateRequested
	}
	m.Producer.Count += c.base
	m.Consumer.Count += c.in.base
	return m
}

// completed takes that a message and the bytes that were written before it have arrived, or never
// will.
func (c *Carrier) completed(gen uint32, end uint64, done progress, ok bool) {
	c.mu.Lock()
	if gen != c.gen.Load() { // it was sent again over another link
		c.mu.Unlock()
		return
	}
	c.out--
	if ok {
		c.finished.Store(end)
		c.done = done
		c.awaited = false
	}
	c.settle()
	if ok {
		c.poke()
	}
	c.drained()
	detached := c.detached
	c.mu.Unlock()
	if !detached && c.short.Load() && c.short.Swap(false) {
		c.wake()
	}
}

// abandon takes that the link has failed while c waited for a place.
func (c *Carrier) abandon() {
	c.mu.Lock()
	c.queued = false
	c.settle()
	c.drained()
	c.mu.Unlock()
}

// peerEnded reports whether the peer has said that it has no part in the connection any more.
func (c *Carrier) peerEnded() bool {
	_, _, flags := cdc.UnpackConsumer(c.inCons.Load())
	return flags&(cdc.Closed|cdc.Abort) != 0
}

// drop drops the bytes that were put and are not on their way. c.mu is held.
func (c *Carrier) drop() {
	c.dropped = c.dropped || c.put != c.posted
	c.put = c.posted
}

// unfinished reports whether the peer is not known to have all that was put and said. c.mu is held.
func (c *Carrier) unfinished() bool { return c.finished.Load() != c.put || c.done.said != c.conn }

// drained gives the send ring back if nothing is or will be on its way any more. c.mu is held.
func (c *Carrier) drained() {
	switch {
	case !c.detached || c.ring == nil || c.out > 0 || c.posting || c.move != nil && !c.lost:
		return
	case c.link.Err() == nil:
		if c.due() {
			return
		}
	case c.unfinished() && !c.lost && c.group.survives(c.link):
		return // it is going to be moved
	}
	ring := c.ring
	c.ring, c.region, c.move = nil, nil, nil
	c.link.unused() // rule: TestLeaveUsers
	c.group.forget(c)
	close(c.sent)
	if c.dropped || c.posted > keptBytes {
		// the error is that they stay a while longer
		ring.giveBack(0, roundUp(len(ring.bytes), os.Getpagesize()))
	}
	c.group.putRing(ring)
	c.ended()
}
