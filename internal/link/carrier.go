package link

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// A Carrier is what one connection has of a link group: see [stream.Carrier], whose methods are for [stream.Conn]
// alone. The owner calls the others:
//
//	Group.NewCarrier   the alert token is known to the peer soon, and what it sends is kept
//	Attach             the peer's element is known: what was kept is there, and all may be sent
//	Move               its link has failed: it goes on over another one
//	Detach             nothing new is sent. What was said last still goes out
//	Release            nothing comes any more
type Carrier struct {
	group *Group
	rmb   *RMB
	token wire.AlertToken
	wake  func()
	ended func() // CarrierConfig.Done

	// Our inbox, and how far it was read: see [stream.Config].
	inProd, inCons atomic.Uint64
	read, told     atomic.Uint64

	// in guards what follows: the receiving side.
	in struct {
		sync.Mutex
		open     bool        // Attach was called
		released bool        // Release was called: the RMB must not be touched
		held     bool        // message came before Attach
		message  cdc.Message // the newest before Attach
		seq      uint16      // of the newest message
		base     uint32      // of our cursors, as the peer counts
		broken   bool        // the peer broke a rule that cursors do not show
		link     *Link       // over which the newest message came, other than a validation message
		next     []*Link     // over which validation messages have come, and nothing else yet
		moved    bool        // the peer has moved to another link, and may say again what it has said before
	}

	guard rdma.Guard // of what the peer has announced and we have not read: see announce

	finished atomic.Uint64 // bytes that have arrived at the peer
	short    atomic.Bool   // somebody may be waiting for them to be more
	put      uint64        // bytes in all; changed with the lock of the stream's writer and mu

	next *Carrier // in the link's queue, and guarded by its lock

	// mu guards what follows: the sending side.
	mu       sync.Mutex
	link     *Link
	sendSize int
	ring     *memory // nil before Attach, and when it was given back
	region   *rdma.MR
	peer     PeerRMBE
	base     uint32 // of cursors in the peer's element
	size     uint32 // of the data in it
	posted   uint64 // bytes that are on their way or there
	dropped  bool   // some were put and never posted
	out      int    // messages on their way
	seq      uint16 // of the newest message
	prod     cdc.ProducerFlags
	conn     cdc.ConnFlags
	said     cdc.ConnFlags // as in the newest message
	urgent   bool          // there is news that does not wait for more
	oob      outOfBand
	done     progress      // as of the newest message that is known to be there
	gen      atomic.Uint32 // how often it has moved; changed with mu
	move     *move         // to be done when nobody is posting
	validate bool          // the next message is the failover validation message
	greet    bool          // the next message is the first one over a link that was moved to while the old one was good
	awaited  bool          // either is on its way: nothing else is, before it is known to be there
	lost     bool          // there is no link to go on over
	queued   bool          // in the link's queue, or about to be served
	posting  bool          // a goroutine is posting, and looks again afterwards
	detached bool
	sent     chan struct{} // closed when detached and nothing is on its way any more
}

// CarrierConfig says what a carrier is made of.
type CarrierConfig struct {
	// RMB is what the peer will write to. It stays the owner's, and must not be freed before Release.
	RMB *RMB

	// Wake is called when something has arrived, or there is more room, mostly on a device's goroutine. It must not
	// block: stream.Conn.Wake, or what calls it.
	Wake func()

	// SendBuffer is the size of the send ring in bytes; 0 means 1 MiB. It is made a power of two, at least 16 KiB,
	// and at most the size of the peer's element.
	SendBuffer int

	// Done, unless nil, is called when the send ring is not used any more, or never will be: once, after Detach, on any
	// goroutine. It must not block, nor call the carrier.
	Done func()
}

// NewCarrier makes a carrier with an alert token of its own.
func (g *Group) NewCarrier(cfg CarrierConfig) (*Carrier, error) {
	size := minSendBuffer
	if cfg.Done == nil {
		cfg.Done = func() {}
	}
	if cfg.SendBuffer == 0 {
		cfg.SendBuffer = DefaultSendBuffer
	}
	for size < min(cfg.SendBuffer, maxSendBuffer) {
		size *= 2
	}
	c := &Carrier{group: g, rmb: cfg.RMB, wake: cfg.Wake, ended: cfg.Done, sendSize: size, sent: make(chan struct{})}
	if err := g.addToken(c); err != nil {
		return nil, err
	}
	return c, nil
}

// AlertToken returns the token by which the peer names this connection in its messages.
func (c *Carrier) AlertToken() wire.AlertToken { return c.token }

// A PeerRMBE is the element of the peer's RMB that a connection writes to, as the peer has told in Accept or Confirm.
type PeerRMBE struct {
	AlertToken wire.AlertToken
	RKey       wire.RKey // of the link that the connection is attached to
	Addr       uint64    // of the RMB
	Index      uint8     // from 1
	Size       wire.SizeCode
	Eyecatcher bool // the peer's CONFIRM LINK did not say that there is none: RFC 7609 p.127
}

// eyecatcher is at the beginning of an RMB element, in the form of RFC 7609 §4.4.1: "SMCR" in EBCDIC.
const eyecatcher = "\xe2\xd4\xc3\xd9"

// Attach tells where the connection writes, and over which link, which must be ready to send. With ownEyecatcher the
// peer expects our element in the form of RFC 7609: an eyecatcher, and cursors that begin after it. What the
// peer has said before is taken now. It is called once.
func (c *Carrier) Attach(l *Link, to PeerRMBE, ownEyecatcher bool) error {
	if to.Index == 0 || to.Size > wire.MaxSizeCode {
		return l.error(fmt.Errorf("%w: RMB element %d of size %v", ErrArgument, to.Index, to.Size))
	}
	l.mu.Lock()
	ready := l.ready && !l.gone
	l.mu.Unlock()
	if !ready {
		c.openInbox(ownEyecatcher) // what the peer wrote before it left is there
		return l.error(ErrNotReady)
	}
	size := min(c.sendSize, to.Size.Bytes()) // more would never be filled
	ring, err := c.group.getRing(size)
	if err != nil {
		return l.error(err)
	}
	region := c.group.region(ring, l)
	if region == nil {
		c.group.putRing(ring)
		return l.error(ErrNotReady)
	}
	c.mu.Lock()
	c.link, c.ring, c.region, c.peer, c.sendSize = l, ring, region, to, size
	c.peer.Addr += uint64(to.Size.Bytes()) * uint64(to.Index-1) // modulo 1<<64: any number may be an address there
	c.size = uint32(to.Size.Bytes())
	if to.Eyecatcher {
		c.base = uint32(len(eyecatcher))
		c.size -= c.base
	}
	c.mu.Unlock()
	c.group.attach(c)
	c.openInbox(ownEyecatcher)
	return nil
}

// openInbox takes what has come before.
func (c *Carrier) openInbox(ownEyecatcher bool) {
	c.in.Lock()
	defer c.in.Unlock()
	if ownEyecatcher {
		c.in.base = uint32(copy(c.rmb.Bytes(), eyecatcher))
	}
	c.in.open = true
	if !c.in.released {
		c.guard.Base, c.guard.Read = int(c.in.base), &c.read
		c.rmb.setGuard(&c.guard) // rule: TestGuardReplay, TestSimMove
	}
	if c.in.held {
		c.take(&c.in.message)
	}
}

// Stream returns what [stream.New] has to know of the carrier. Before Attach, and where that has failed, what is written
// goes nowhere. Spin is better left zero: who waits has the device look for packets.
func (c *Carrier) Stream() stream.Config {
	cfg := stream.Config{
		In:   stream.Inbox{Data: c.rmb.Bytes()[c.in.base:], Producer: &c.inProd, Consumer: &c.inCons},
		Read: &c.read,
	}
	if c.ring == nil {
		cfg.Out = stream.NoMemory()
		return cfg
	}
	cfg.Out, cfg.Told = c, &c.told
	cfg.Doorbell = c.link.dev
	return cfg
}

// Detach ends the use of the peer's element, after [stream.Conn.SendLast] or [stream.Conn.Detach]. If Closed or Abort
// was said last that still goes out, and before Closed all data; otherwise what has not been posted is dropped. Calls
// after the first do nothing.
func (c *Carrier) Detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.detached {
		return
	}
	c.detached = true
	if c.ring == nil { // never attached
		close(c.sent)
		c.ended()
		return
	}
	if c.conn&(cdc.Closed|cdc.Abort) == 0 {
		c.lost = true // nothing of it is worth another link
		c.drop()
		c.urgent, c.conn = false, c.said
	}
	c.drained()
}

// Sent returns a channel that is closed, after Detach, when everything has arrived at the peer's device that is to go
// out, or never will as the link has failed. Before that it must not end with its process: nobody else sends it.
func (c *Carrier) Sent() <-chan struct{} { return c.sent }

// Arrived returns how many bytes have arrived at the peer's device.
func (c *Carrier) Arrived() uint64 { return c.finished.Load() }

// Release ends the use of our RMB, which is the owner's again: its memory is not touched by this package any more, but by
// the peer it may be. Messages that come later are dropped. Calls after the first do nothing.
func (c *Carrier) Release() {
	c.group.dropToken(c)
	c.in.Lock()
	if !c.in.released {
		c.in.released = true
		c.rmb.setGuard(nil) // rule: TestGuardReleased
		c.rmb.touched = c.touched()
	}
	c.in.Unlock()
}

// touched is how many bytes at the beginning of our RMB may have been written. c.in is locked.
func (c *Carrier) touched() int {
	all := len(c.rmb.Bytes())
	_, _, flags := cdc.UnpackConsumer(c.inCons.Load())
	if !c.in.open || c.in.broken || flags&cdc.Closed == 0 || flags&cdc.Abort != 0 {
		return all // the peer may have written more than it has said
	}
	to := cdc.UnpackProducer(c.inProd.Load())
	if to.Wrap != 0 || c.read.Load() >= uint64(c.ownSize()) { // the wrap itself may have come back to 0
		return all
	}
	return int(min(uint64(c.in.base)+uint64(to.Count), uint64(all)))
}

// ReturnPages gives pages of the send ring back, as [stream.Conn.ReturnPages] asks. It counts from the beginning of
// an element with a header, which a ring has not.
func (c *Carrier) ReturnPages(from, to int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return nil
	}
	page := os.Getpagesize()
	return c.ring.giveBack(roundUp(max(from-cdc.HeaderLen, 0), page), (to-cdc.HeaderLen)/page*page)
}

// receive takes a message of the peer, and reports false for one that was overtaken. It is called on
// the device's goroutine.
func (c *Carrier) receive(l *Link, m *cdc.Message) bool {
	c.in.Lock()
	if !c.in.released && c.in.link != l {
		if left := c.follow(l, m); left != nil {
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
		ok = c.take(m)
	} else {
		ok = c.hold(m)
	}
	c.in.Unlock()
	if ok && open {
		c.wake()
	}
	return ok
}

// follow notes over which link a message comes, and returns the links that the peer has given up before, as their validation messages show: what
// it has sent there may still be on its way, and must not arrive after what takes its place. They are to fail before the message is taken,
// since the peer puts something else in that place when it knows that we have read what was there.
//
// A validation message alone does not say that: it may itself be late, of a link that the peer has given up since, and nothing follows
// it then. c.in is locked.
func (c *Carrier) follow(l *Link, m *cdc.Message) (left []*Link) {
	i := slices.Index(c.in.next, l)
	switch {
	case c.isStale(m): // rule: TestMoveStale
		return nil // the peer has left that link before it was heard of, and has sent no data over it
	case m.IsFailoverValidation():
		if i < 0 {
			c.in.next = append(slices.DeleteFunc(c.in.next, func(x *Link) bool { return x.Err() != nil }), l)
		}
		return nil
	case i >= 0:
		left = slices.Delete(c.in.next, i, i+1)
		c.in.next = nil
		if c.in.link != nil && c.in.link != l {
			left = append(left, c.in.link)
		}
	}
	c.in.moved = c.in.moved || c.in.link != nil && c.in.link != l
	c.in.link = l
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
		c.in.moved = true
		c.in.broken = c.in.broken || int16(c.in.message.Seq-m.Seq) < 0 // nothing was held: 0
	} else if fresh {
		if c.in.held && c.in.message.Producer == m.Producer {
			m.ProducerFlags |= c.in.message.ProducerFlags & cdc.UrgentPresent // rule: TestUrgentBeforeAttach
		}
		c.in.held, c.in.message = true, *m
	}
	return fresh
}

// impossible is a cursor that is outside any buffer, so that whoever looks at it ends the connection.
var impossible = cdc.PackProducer(cdc.Cursor{Count: 1<<32 - 1})

// take puts a message into the inbox. c.in is locked.
func (c *Carrier) take(m *cdc.Message) bool {
	if m.IsFailoverValidation() {
		// It asks whether the message of that number has come: RFC 7609 §4.6.1.
		c.in.moved = true
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
	// A count below the base becomes one that is outside the buffer. The cursor comes before the flags: what was
	// written before the end is not missed.
	m.Producer.Count -= c.in.base
	m.Consumer.Count -= c.base
	if !c.in.moved || !c.isBehind(m.Producer) {
		// Else it is what we have already, written once more.
		c.announce(m.Producer)
		c.inProd.Store(stream.ProducerWord(c.inProd.Load(), m.Producer, m.ProducerFlags, cursor(c.read.Load(), c.ownSize())))
	}
	c.inCons.Store(cdc.PackConsumer(m.Consumer, m.ProducerFlags, m.ConnFlags))
	return true
}

// announce takes note of what the peer says to have written: until we have read it, it is not written again. Nobody has to but
// in the replay after a move (RFC 7609 §4.6), and those are the bytes that we have. Linux's net/smc has been seen to replay
// others, which its program had written later into the same place of the send buffer: a completion of the old link gives that
// place away after the move. This goes for all WRITEs and not from a move on, as those of a replay may be placed before the message that
// tells of it is looked at, and for a connection that is being closed Linux tells of none. c.in is locked.
func (c *Carrier) announce(to cdc.Cursor) {
	size, total := c.ownSize(), c.guard.Written.Load()
	if n, err := cdc.Check(cursor(total, size), to, size-uint32(total-c.read.Load()), size); err == nil { // else who reads it ends the connection
		c.guard.Written.Store(total + uint64(n))
	}
}

// isBehind reports whether a cursor of the peer's is at a place that it has passed: no further back than our buffer is
// long. c.in is locked.
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
