package rendezvous

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A Peer is a peering with another process. Two values that are equal are the same peering;
// [ism.Peer] is one.
type Peer interface {
	GID() wire.ISMGID
	Cred() ism.Cred

	// Send sends bytes that the other side's [Point.Signal] gets. It does not wait. An error that
	// matches [ism.ErrCongested] means that there will be room for them.
	Send(payload []byte) error

	// Leave is Send for bytes that need not wake the other side: it gets them with the next signal,
	// or when it polls.
	Leave(payload []byte) error

	// Done returns a channel that is closed when the peering has ended.
	Done() <-chan struct{}
}

// A Device makes peerings.
type Device interface {
	GID() wire.ISMGID

	// Peer returns the peering with the device that has the GID, and makes it if need be. Errors
	// are as in [ism.Device.Peer].
	Peer(ctx context.Context, gid wire.ISMGID) (Peer, error)

	// Renew makes the file again by which others find the device, if it was removed.
	Renew() error

	// Poll delivers all signals that were sent before the call.
	Poll()
}

// Config has the things that a [Point] needs of its host.
type Config struct {
	// Dir is the run directory.
	Dir string

	// Disabled means that no call asks for SMC.
	Disabled bool

	// Admit reports whether connections with processes of another user are wanted. Nil: with none.
	Admit func(uid int) bool

	// Open returns the device, opening it if need be, or the reason why there is none.
	Open func() (Device, clc.Diagnosis, error)

	// Opened returns the device if it is open, nil otherwise.
	Opened func() Device

	// Reason says why a peering did not come about, or a file could not be read.
	Reason func(error) clc.Diagnosis

	// DirFailed reports whether the run directory is known to be of no use. It is asked when no
	// announcement was found.
	DirFailed func() bool

	// CheckEvery is how often it is made sure that announcements are there; 0 means 10 s.
	CheckEvery time.Duration

	// Trace is told each message. It must not call the Point.
	Trace func(p Peer, m *Message, sent bool)

	// Logger gets the events an operator may want to see.
	Logger *slog.Logger
}

// A Point is one host's part in the rendezvous. Its methods may be called from any goroutine.
// Its host calls [Point.Signal] and [Point.PeerGone] as the device tells it.
type Point struct {
	cfg       Config
	locals    localAddrs
	owners    ownerCache
	announced announcementCache
	ends      endFinder

	mu        sync.Mutex
	closed    bool
	listeners map[*Listening]struct{}
	peers     map[Peer]*peerState // those that something is known of
	expected  map[uint64]expectation
	attempts  map[uint64]*attempt
}

// peerState is a point's state of one peering. Point.mu guards it.
type peerState struct {
	expected map[uint64]uint64 // by id the sockets that are its in Point.expected
	swept    time.Time         // when it was last looked which of them never came
	outbox   []Message         // not yet sent; while it is not empty, flush runs
}

// ErrClosed means that the point was closed.
var ErrClosed = errors.New("rendezvous: closed")

// New returns a point. It touches nothing of the system.
func New(cfg Config) *Point {
	if cfg.CheckEvery == 0 {
		cfg.CheckEvery = checkEvery
	}
	return &Point{
		cfg:       cfg,
		listeners: make(map[*Listening]struct{}),
		peers:     make(map[Peer]*peerState),
		expected:  make(map[uint64]expectation),
		attempts:  make(map[uint64]*attempt),
	}
}

// Stop lets nobody expect anything of this host any more.
func (p *Point) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// Release gives back the resources of the system that the point holds while it has nothing to do.
func (p *Point) Release() { p.ends.release() }

// IsLocal reports whether an address is one of this network namespace.
func (p *Point) IsLocal(a netip.Addr) bool { return p.locals.contains(a) }

func (p *Point) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Close stops, and gives back the resources of the system that the point holds. Listeners are the
// caller's to close.
func (p *Point) Close() {
	p.Stop()
	p.ends.close()
}

// Expected counts the connections that peers have said they are about to make, and Attempts those
// that calls have asked for.
func (p *Point) Expected() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.expected)
}

// Attempts counts the sockets for which calls have asked and are not done.
func (p *Point) Attempts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.attempts)
}

// stateLocked returns the state of a peering, nil if that has ended.
func (p *Point) stateLocked(peer Peer) *peerState {
	select {
	case <-peer.Done():
		return nil // PeerGone has come, or will come and find nothing that we add now
	default:
	}
	state := p.peers[peer]
	if state == nil {
		state = &peerState{expected: make(map[uint64]uint64)}
		p.peers[peer] = state
	}
	return state
}

// Signal takes a message of a peer. An error means that it is none; the peering is of no use then.
func (p *Point) Signal(peer Peer, payload []byte) error {
	m, err := Parse(payload)
	if err != nil {
		return err
	}
	switch m.Kind {
	case Expect:
		p.cfg.Trace(peer, &m, false)
		p.onExpect(peer, m)
	case Cancel:
		p.cfg.Trace(peer, &m, false)
		p.onCancel(peer, m.ID)
	case Accepted, Refused:
		p.onAnswer(peer, m)
	}
	return nil
}

// PeerGone forgets a peering, which has ended.
func (p *Point) PeerGone(peer Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state := p.peers[peer]; state != nil {
		for _, socket := range state.expected {
			delete(p.expected, socket)
		}
	}
	delete(p.peers, peer)
	for _, a := range p.attempts {
		a.answer(peer, answer{kind: Refused, reason: clc.DiagStale})
	}
}
