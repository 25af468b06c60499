package link

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// A Carrier is one connection's part of a link group: see [stream.Carrier], whose methods are for
// [stream.Conn] alone. The owner calls the others:
//
//	Group.NewCarrier   the alert token is known to the peer soon, and data that comes is kept
//	Attach             the peer's element is known: the kept data is there, and all may be sent
//	Move               its link has failed, or is left: it goes on over another one
//	Detach             nothing new is sent. A last Closed or Abort still goes out
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

	// in guards the following fields: the receiving side.
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
		// validation messages that nothing has followed over their links: the numbers go on after a
		// gap. In the order of their arrival
		next   []heard
		moved  bool   // the peer has moved to another link, and may repeat itself
		again  bool   // there was one, so that bytes may have been placed twice
		left   *Link  // that it has left and has not said so: bytes sent there may be lost
		late   bool   // message came after that, and speaks of bytes that are not there
		placed uint64 // bytes that were placed in the RMB before

		overtaken []*Link // of the messages that were put aside, one for each: see overtaken.go
	}

	silence *silence // since it has moved, nil where nobody looks; guarded by the group's mu

	guard verbs.Guard // of the bytes that the peer has announced and we have not read: see announce

	finished atomic.Uint64 // bytes that have arrived at the peer
	short    atomic.Bool   // somebody may be waiting for them to be more
	held     atomic.Bool   // bytes are kept back: see probe.go
	asked    atomic.Uint64 // bytes of them that were sent, to ask
	failed   atomic.Bool   // a link has failed over which the connection has spoken, or the peer
	resting  atomic.Bool   // it was looked at after a failure, and is not any more: see silent.go
	put      uint64        // bytes in all; changed with the lock of the stream's writer and mu

	next *Carrier // in the link's queue, and guarded by its lock

	// mu guards the following fields: the sending side.
	mu       sync.Mutex
	link     *Link
	sendSize int
	ring     *memory // nil before Attach, and when it was given back
	region   verbs.MR
	regionAt uint64 // its virtual address
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
	noDelay  bool          // nothing that is put waits for more
	oob      outOfBand
	done     progress      // as of the newest message that is known to be there
	gen      atomic.Uint32 // how often it has moved; changed with mu
	move     *move         // to be done when nobody is posting
	validate bool          // the next message is the failover validation message
	// the next message is the first one over a link that was moved to while the old one was good
	greet    bool
	awaited  bool // either is on its way: nothing else is, before it is known to be there
	ask      bool // the next message asks for one
	probe    probe
	lost     bool // there is no link to go on over
	queued   bool // in the link's queue, or about to be served
	posting  bool // a goroutine is posting, and looks again afterwards
	detached bool
	sent     chan struct{} // closed when detached and nothing is on its way any more
}

// A heard is a link over which a validation message has come, and its turn: see [verbs.Completion].
type heard struct {
	link *Link
	turn uint64
}

// CarrierConfig has the parameters of a carrier.
type CarrierConfig struct {
	// RMB is the memory that the peer will write to. It stays the owner's, and must not be freed
	// before Release.
	RMB *RMB

	// Wake is called when something has arrived, or there is more room, mostly on a device's
	// goroutine. It must not block: stream.Conn.Wake, or a function that calls it.
	Wake func()

	// SendBuffer is the size of the send ring in bytes; 0 means 1 MiB. It is made a power of two,
	// at least 16 KiB, and at most the size of the peer's element.
	SendBuffer int

	// Done, unless nil, is called when the send ring is not used any more, or never will be: once,
	// after Detach, on any goroutine. It must not block, nor call the carrier.
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
	c := &Carrier{group: g, rmb: cfg.RMB, wake: cfg.Wake, ended: cfg.Done, sendSize: size,
		sent: make(chan struct{})}
	c.in.placed, _ = g.placed(cfg.RMB.mem)
	if err := g.addToken(c); err != nil {
		return nil, err
	}
	return c, nil
}

// AlertToken returns the token by which the peer names this connection in its messages.
func (c *Carrier) AlertToken() wire.AlertToken { return c.token }

// A PeerRMBE is the element of the peer's RMB that a connection writes to, as the peer has told in
// Accept or Confirm.
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

// Attach tells where the connection writes, and over which link, which must be ready to send. With
// ownEyecatcher the peer expects our element in the form of RFC 7609: an eyecatcher, and cursors
// that begin after it. The message that the peer has sent before is taken now. It is called once.
func (c *Carrier) Attach(l *Link, to PeerRMBE, ownEyecatcher bool) error {
	if to.Index == 0 || to.Size > wire.MaxSizeCode {
		return l.error(fmt.Errorf("%w: RMB element %d of size %v", ErrArgument, to.Index, to.Size))
	}
	l.mu.Lock()
	ready := l.ready && !l.gone
	l.mu.Unlock()
	if !ready {
		c.openInbox(ownEyecatcher) // the bytes that the peer wrote before it left are there
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
	l.users.Add(1)
	c.link, c.ring, c.region, c.regionAt, c.peer, c.sendSize = l, ring, region, region.Addr(), to, size
	// modulo 1<<64: any number may be an address there
	c.peer.Addr += uint64(to.Size.Bytes()) * uint64(to.Index-1)
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

// openInbox opens the inbox, and takes the message that came before.
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
		c.admit(&c.in.message)
	}
}

// Stream returns the carrier's configuration for [stream.New]. Before Attach, and where that has
// failed, written bytes go nowhere. Spin is better left zero: a goroutine that waits has the device
// look for packets.
func (c *Carrier) Stream() stream.Config {
	cfg := stream.Config{
		In:   stream.Inbox{Data: c.rmb.Bytes()[c.in.base:], Producer: &c.inProd, Consumer: &c.inCons},
		Read: &c.read,
	}
	c.mu.Lock() // the connection may move to another link meanwhile
	defer c.mu.Unlock()
	if c.ring == nil {
		cfg.Out = stream.NoMemory()
		return cfg
	}
	cfg.Out, cfg.Told = c, &c.told
	if bell, ok := c.link.dev.(stream.Doorbell); ok {
		cfg.Doorbell = bell
	}
	return cfg
}

// Detach ends the use of the peer's element, after [stream.Conn.SendLast] or [stream.Conn.Detach].
// If Closed or Abort was said last that still goes out, and before Closed all data; otherwise bytes
// that have not been posted are dropped. Calls after the first do nothing.
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
		// Nothing of it is worth another link.
		c.lost, c.move = true, nil // rule: TestDetachDropsMove: c.lost, c.move = true, nil -> c.lost = true
		c.drop()
		c.urgent, c.conn = false, c.said
	}
	c.drained()
}

// Sent returns a channel that is closed, after Detach, when everything has arrived at the peer's
// device that is to go out, or never will as the link has failed. Before that it must not end with
// its process: nobody else sends it.
func (c *Carrier) Sent() <-chan struct{} { return c.sent }

// Arrived returns how many bytes have arrived at the peer's device.
func (c *Carrier) Arrived() uint64 { return c.finished.Load() }

// Release ends the use of our RMB, which is the owner's again: its memory is not touched by this
// package any more, but by the peer it may be. Messages that come later are dropped. Calls after
// the first do nothing.
func (c *Carrier) Release() {
	c.group.dropToken(c)
	c.in.Lock()
	if !c.in.released {
		c.in.released = true
		c.rmb.setGuard(nil) // rule: TestGuardReleased
		c.rmb.touched = c.touched()
	}
	c.in.Unlock()
	c.group.mu.Lock()
	c.group.unwatch(c)
	c.group.mu.Unlock()
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

// ReturnPages gives pages of the send ring back, as [stream.Conn.ReturnPages] asks. It counts from
// the beginning of an element with a header, which a ring has not.
func (c *Carrier) ReturnPages(from, to int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return nil
	}
	page := os.Getpagesize()
	err := c.ring.giveBack(roundUp(max(from-cdc.HeaderLen, 0), page), (to-cdc.HeaderLen)/page*page)
	if errors.Is(err, errHeld) {
		return nil
	}
	return err
}
