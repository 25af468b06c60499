package verbs

import (
	"net/netip"
	"time"

	"github.com/gosmc/smc/wire"
)

// A Device is one port of an RNIC with one of its addresses. Its methods may be called by several
// goroutines.
type Device interface {
	// Addr returns the IP address, with the zone of a link-local one.
	Addr() netip.Addr

	// GID returns the address as a GID.
	GID() wire.GID

	// MAC returns the Ethernet address of the network interface, zero if it has none.
	MAC() wire.MAC

	// Interface returns the name of the network interface.
	Interface() string

	// Type returns the words by which tools name the kind of the device, such as "RoCEv2".
	Type() string

	// MTU returns the largest path MTU now.
	MTU() wire.MTU

	// NewPD makes a protection domain.
	NewPD() (PD, error)

	// NewCQ makes a completion queue for depth completions, which is at least the sum of the queues
	// of its queue pairs. handler is called after completions were put in, never twice at a time. It
	// takes out all of them with [CQ.Poll]. It may post work and must not block. With a nil handler
	// nobody is told.
	NewCQ(depth int, handler func(CQ)) (CQ, error)

	// WholePages reports whether regions are made of whole pages of mappings, whose pages the device
	// holds: never of Go's heap. Pages of such a region must not be given back to the system, as the
	// device would go on to use the old ones.
	WholePages() bool

	// Events returns a channel that has a value if something has happened since the last one was
	// taken out of it. Take the value, then call PollEvents until there is nothing.
	Events() <-chan struct{}

	// PollEvents moves up to len(dst) events to dst and returns how many.
	PollEvents(dst []Event) int

	// Stats returns the counters that the device has. Others are zero.
	Stats() DeviceStats

	// Close closes the device: its queue pairs fail. A handler must not call it.
	Close() error
}

// A PD is a protection domain: its queue pairs can use its memory regions, and no others.
type PD interface {
	// RegisterMR makes a region of memory of the caller, which stays mapped until
	// [MR.Deregister]. See [Device.WholePages].
	RegisterMR(mem []byte, access Access) (MR, error)

	// NewQP makes a queue pair in [StateReset].
	NewQP(cfg QPConfig) (QP, error)

	// Close ends the domain. It fails while it has queue pairs or regions.
	Close() error
}

// Access is the set of operations that are allowed on a memory region, or to a peer on a queue
// pair.
type Access uint8

// All kinds of access. Reading and writing by the owner's SENDs and WRITEs needs no permission.
const (
	LocalWrite  Access = 1 << iota // receives may be placed here
	RemoteWrite                    // the peer may WRITE here; needs LocalWrite
)

// An MR is a memory region: memory that work requests may name, and a peer too if it may write. A
// provider takes regions of its own only.
type MR interface {
	// Addr returns the virtual address of the first byte, as work requests and peers name it. It is
	// random, and tells a peer nothing about this process.
	Addr() uint64

	// RKey returns the key with which a peer names the region.
	RKey() wire.RKey

	// Deregister ends the region: nothing reads or writes the memory any more when it has returned.
	Deregister() error
}

// Guarded is implemented by regions of software RoCE.
type Guarded interface {
	// SetGuard has all WRITEs to the region that are placed from now on obey g, nil for none.
	SetGuard(g *Guard)
}

// Counted is implemented by regions of software RoCE.
type Counted interface {
	// Placed returns how many bytes of the peer's WRITEs were placed in the region, of WRITEs that
	// have come as a whole. Bytes that came twice count twice. It may be used after Deregister.
	Placed() uint64
}

// A CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(dst) completions to dst, oldest first, and returns how many.
	Poll(dst []Completion) int

	// Close ends the queue. Its queue pairs were closed before.
	Close() error
}

// QPConfig has the completion queues and the queue sizes of a queue pair.
type QPConfig struct {
	SendCQ, RecvCQ   CQ  // may be one; of the same device
	MaxSend, MaxRecv int // work requests that may be posted and not yet taken out as completions
}

// A QP is a queue pair, one end of a reliable connection (RC).
type QP interface {
	// Init moves from RESET to INIT: access is the set of operations that the peer may do.
	Init(access Access) error

	// ReadyToReceive moves from INIT to RTR. Receives are best posted before.
	ReadyToReceive(a RTR) error

	// ReadyToSend moves from RTR to RTS.
	ReadyToSend(a RTS) error

	// PostSend adds work to the send queue. After an error some of the work may have been posted.
	PostSend(wrs ...SendWR) error

	// PostRecv adds room for messages.
	PostRecv(wrs ...RecvWR) error

	// Fail moves to [StateError]: posted work is flushed.
	Fail() error

	// Drain has the handler of receives called for all messages that the peer may know to have
	// arrived. It waits for a handler that runs elsewhere, at most for limit, and reports whether it
	// was called. It may be called from another queue's handler, but not with a lock that the
	// handler takes.
	Drain(limit time.Duration) bool

	// AnswerFirst asks to have everything that the peer has sent acknowledged before anything else
	// is sent to the peer from now on. Hardware does not know the request.
	AnswerFirst()

	// HoldAnswers asks to put off acknowledgements for a while, as the peer may have gone on
	// elsewhere. Hardware does not know the request.
	HoldAnswers()

	// QPN returns the number of the queue pair.
	QPN() wire.QPN

	// Stats returns the counters that the provider has. Others are zero.
	Stats() QPStats

	// Close ends the queue pair. Completions that nobody has taken out are gone.
	Close() error
}
