package ism

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// A Cred says which process is at the other end of a peering, as the kernel has recorded it when the
// peering was made.
type Cred struct {
	PID int // zero if the process is in a PID namespace that this one cannot see
	UID int
	GID int // of the user, nothing to do with an ISM device
}

// A Peer is one end of a peering: a connection between two devices, over which DMBs change hands.
// Its methods may be called from any goroutine.
//
// A Peer ends when the other device ends or breaks the rules, or with [Peer.Close] or [Device.Close].
// Buffers and windows that are in use stay mapped until they are released.
type Peer struct {
	dev        *Device
	gid        wire.ISMGID
	cred       Cred
	accepted   bool
	conn       *conn
	introduced *Introduction // nil if the devices have found each other
	key        wire.ISMGID   // names the peer in Device.dialed
	bell       *bell         // ours: the peer rings, we call
	ringer     ringer        // the peer's

	// refs counts the users of the bells: both goroutines, every DMB and every Window in use.
	refs atomic.Int64

	failOnce sync.Once
	err      error         // set before done is closed
	done     chan struct{} // closed when the peering has ended

	trays    bool            // the peer leaves letters, and counts its signals
	taken    uint32          // letters so far; this and the next two with conn.recvMu held
	received uint32          // signals by socket so far
	letter   [maxLetter]byte // the one that is being delivered

	// attaching has an element for each Attach that awaits its answer.
	attaching chan struct{}

	mu          sync.Mutex
	gone        bool // the tables below are empty and stay so
	segments    map[wire.Token]*segment
	unattached  int // segments that the peer does not have yet
	idle        idleCache
	evicting    bool // evictTimer runs
	evictTimer  *time.Timer
	retired     []wire.Token // ring of maxRetired
	retiredNext int
	badTokens   int
	remotes     map[wire.Token]*remote
	idleWindows int // remotes that are not busy
	requests    map[wire.Token]*request
}

// GID returns the GID of the other device; of one that has dialled, the GID that it says it has.
func (p *Peer) GID() wire.ISMGID { return p.gid }

// Cred returns the process at the other end.
func (p *Peer) Cred() Cred { return p.cred }

// Accepted reports whether the other device has dialled.
func (p *Peer) Accepted() bool { return p.accepted }

// Done returns a channel that is closed when the peering has ended.
func (p *Peer) Done() <-chan struct{} { return p.done }

// Err returns why the peering has ended: io.EOF if the other process closed it or died,
// net.ErrClosed if we closed it, an error that matches ErrProtocol if the peer broke the rules; nil
// as long as the peering stands.
func (p *Peer) Err() error {
	if p.closing() {
		return p.err
	}
	return nil
}

// closing reports whether the peering has ended.
func (p *Peer) closing() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Send sends bytes to the other side's Handler.Signal, at most [MaxSignal]. It does not wait;
// signals arrive in the order in which they were sent. Errors match ErrSize, ErrCongested or
// ErrPeerGone, or are the kernel's.
func (p *Peer) Send(payload []byte) error {
	if len(payload) > MaxSignal {
		return fmt.Errorf("%w: signal of %d bytes, at most %d", ErrSize, len(payload), MaxSignal)
	}
	return p.conn.sendSignal(payload)
}

// Parked counts the goroutines that wait to be woken by ring functions of this peer's DMBs and that
// were not woken yet. The users of [Peer.Lead] keep it.
func (p *Peer) Parked() *atomic.Int32 { return &p.bell.parked }

// Lead is for a goroutine that waits to be woken by a ring function of a DMB in use, and has
// raised Parked. It calls ring functions as the peer rings, until until returns true, or the peer
// is gone, or at once if another goroutine does so already. until is asked again after each ring
// and after Interrupt.
//
// Once Lead was called, rings are passed on only while Parked is not zero.
func (p *Peer) Lead(until func() bool) { p.bell.leadUntil(until) }

// Interrupt makes the goroutine in Lead ask again whether it may return. It does not block.
func (p *Peer) Interrupt() { p.bell.interrupt() }

// Close ends the peering. It does not wait: Handler.PeerGone is called soon after, with
// net.ErrClosed.
func (p *Peer) Close() { p.fail(net.ErrClosed) }

// fail ends the peering; only the first reason counts. It may be called with any lock held.
func (p *Peer) fail(err error) {
	p.failOnce.Do(func() {
		p.err = err
		close(p.done)
		if errors.Is(err, ErrProtocol) {
			p.dev.stats.violation.Add(1)
			p.dev.log.Warn("ism peering ended", "peer", p.gid, "pid", p.cred.PID, "err", err)
		}
		p.conn.shutdown() // wakes the receiver, which does the rest
	})
}

// control sends a message other than a Signal, and a descriptor that it takes over if there is no
// error. It may be called with p.mu held. An error that matches ErrProtocol has ended the
// peering.
func (p *Peer) control(m *message, fd int) error {
	err := p.conn.sendControl(m, fd)
	if errors.Is(err, ErrProtocol) {
		p.fail(err)
	}
	return err
}

// run is the receiver's goroutine.
func (p *Peer) run() {
	readable := func(uintptr) bool { return p.receive() }
	for !p.closing() {
		if err := p.conn.raw.Read(readable); err != nil {
			p.fail(err)
		}
	}
	p.finish()
}

// receive handles the messages that have arrived, at most maxBatch of them, and reports whether
// there may be more or the peering has ended.
func (p *Peer) receive() bool {
	p.conn.recvMu.Lock()
	defer p.conn.recvMu.Unlock()
	for range maxBatch {
		if p.closing() {
			return true
		}
		lent := len(p.attaching) > 0 // an answer may come, with a descriptor
		if lent {
			p.dev.spares.lend()
		}
		m, short, err := p.conn.receive()
		if err == nil {
			err = p.emptyTray() // letters that were left there may be older
		}
		if err == nil {
			err = p.handle(&m, short)
		}
		if lent {
			p.dev.spares.back()
		}
		if err == errAgain {
			return false
		}
		if err != nil {
			p.fail(err)
			return true
		}
	}
	return true
}

// handle takes one message. It runs with conn.recvMu held.
func (p *Peer) handle(m *message, short bool) error {
	switch m.kind {
	case kindAttach:
		return p.handleAttach(m)
	case kindAttachReply:
		return p.handleAttachReply(m, &p.conn.in, short)
	case kindRevoke:
		p.handleRevoke(m)
		return nil
	case kindDrop:
		return p.handleDrop(m)
	case kindSignal:
		p.received++
		p.dev.handler.Signal(p, m.payload)
		return nil
	case kindHello, kindRefuse:
		return violation("%v on a peering that stands", m.kind)
	}
	panic("ism: impossible message kind")
}

// finish clears up after the end of the peering. Nothing is received after conn.close.
func (p *Peer) finish() {
	p.conn.close()
	p.dev.remove(p)

	p.mu.Lock()
	p.gone = true
	var dead []*segment
	for _, list := range &p.idle.bySize {
		dead = append(dead, list...)
	}
	p.dev.stats.cached.Add(-int64(len(dead)))
	p.idle = idleCache{}
	if p.evictTimer != nil {
		p.evictTimer.Stop()
	}
	for _, seg := range p.segments {
		if seg.fd >= 0 { // nobody will attach it any more
			unix.Close(int(seg.fd))
			seg.fd = -1
		}
	}
	var idle []*remote
	for _, rem := range p.remotes {
		if !rem.busy {
			idle = append(idle, rem)
		}
	}
	for _, r := range p.requests { // nobody will answer them any more
		p.dev.mapped.Add(-int64(r.size))
	}
	p.segments, p.remotes, p.requests, p.retired = nil, nil, nil, nil
	p.mu.Unlock()

	p.dev.handler.PeerGone(p, p.err)

	p.destroy(dead)
	for _, rem := range idle {
		p.dev.unmapRemote(rem)
	}
	p.bell.close()
	p.unref()
}

// unref gives back a reference; the last one takes the bells away.
func (p *Peer) unref() {
	if p.refs.Add(-1) == 0 {
		p.bell.unmap()
		p.ringer.close()
	}
}
