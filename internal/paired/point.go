package paired

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/wire/clc"
)

// Config has the things that a [Point] needs of its host.
type Config struct {
	Kernel Kernel
	Users  introduce.Users // with whom memory is shared

	// Open returns the device, opening it if need be, or the reason why there is none.
	Open func() (*ism.Device, clc.Diagnosis, error)

	// Opened returns the device if it is open, nil otherwise.
	Opened func() *ism.Device

	// Enlist makes the host know a peering that a client has made. It reports false for one that has ended.
	Enlist func(*ism.Peer) bool

	// Reason says why a peering did not come about.
	Reason func(error) clc.Diagnosis

	// Trace is told each message. It must not call the Point.
	Trace func(p *ism.Peer, m *Message, sent bool)

	Logger *slog.Logger
}

// A Point is one host's part. Its methods may be called from any goroutine. Its host calls
// [Point.PeerUp], [Point.Signal] and [Point.PeerGone] as the device tells it.
type Point struct {
	cfg     Config
	bureau  bureau.Bureau
	known   known
	retries atomic.Int32
	ids     atomic.Uint64

	mu       sync.Mutex
	closed   bool
	calls    map[uint64]*call
	peers    map[*ism.Peer]map[uint64]Name // what each peer expects, by id
	expected map[Name][]expectation
	waiting  map[Name]*Candidate
	decided  decided
}

// New returns a point. It touches nothing of the system.
func New(cfg Config) *Point {
	return &Point{
		cfg:      cfg,
		calls:    make(map[uint64]*call),
		peers:    make(map[*ism.Peer]map[uint64]Name),
		expected: make(map[Name][]expectation),
		waiting:  make(map[Name]*Candidate),
	}
}

// Ask asks for tokens on a socket that is neither connected nor listening, and reports whether it may
// get them. dest is where it connects to, the zero value for a socket that is to listen.
func (p *Point) Ask(c syscall.RawConn, dest netip.AddrPort) bool { return p.cfg.Kernel.Ask(c, dest) }

// CanAsk reports whether sockets of this process can have tokens: by asking on one, which is not used.
func (p *Point) CanAsk() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	raw, err := f.SyscallConn()
	return err == nil && p.Ask(raw, netip.AddrPort{})
}

// BootID returns the kernel's boot ID, for a process that cannot read it. ok is false if no agent was
// asked.
func (p *Point) BootID() (id [16]byte, ok bool) { return p.bureau.BootID() }

// Release gives back the resources of the system that the point holds while it has nothing to do.
func (p *Point) Release() { p.bureau.Release() }

// Close lets nobody expect anything of this host any more, and gives back the resources of the system.
func (p *Point) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.bureau.Close()
}

// Signal takes a message of a peer. An error means that it is none, or that the peer was not
// introduced; the peering is of no use then.
func (p *Point) Signal(peer *ism.Peer, payload []byte) error {
	m, err := Parse(payload)
	if err != nil {
		return err
	}
	secret, ok := peer.Secret()
	if !ok { // rule: TestStrangers
		return errMessage
	}
	p.cfg.Trace(peer, &m, false)
	switch m.Kind {
	case Expect:
		p.onExpect(peer, m, secret)
	case Cancel:
		p.onCancel(peer, m.ID)
	case Accepted, Refused:
		p.onAnswer(peer, m)
	}
	return nil
}

// PeerUp notes an introduced process that has begun a peering, and may connect.
func (p *Point) PeerUp(peer *ism.Peer) {
	if _, introduced := peer.Secret(); !introduced {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.peers[peer] == nil && peer.Err() == nil {
		p.peers[peer] = make(map[uint64]Name)
	}
}

// PeerGone forgets a peering, which has ended.
func (p *Point) PeerGone(peer *ism.Peer) {
	p.known.forget(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, name := range p.peers[peer] {
		p.unexpectLocked(peer, id, name)
	}
	delete(p.peers, peer)
	for _, c := range p.calls {
		c.answer(peer, Message{Kind: Refused, Reason: uint32(clc.DiagStale)})
	}
}

// send sends a message. If the peer does not read it is sent again for a while, and then the peering
// ends. It reports false if the peering has ended.
func (p *Point) send(peer *ism.Peer, m Message) bool {
	p.cfg.Trace(peer, &m, true)
	b := m.Append(nil)
	err := peer.Send(b)
	if err == nil {
		return true
	}
	if !isCongested(err) || p.retries.Add(1) > maxRetries {
		if isCongested(err) {
			p.retries.Add(-1)
			peer.Close()
		}
		return false
	}
	go func() {
		defer p.retries.Add(-1)
		for end := time.Now().Add(retryTime); time.Now().Before(end); time.Sleep(retryPause) {
			if err := peer.Send(b); !isCongested(err) {
				return
			}
		}
		peer.Close()
	}()
	return true
}

// remoteOf returns the address of the other end, zero if the connection has ended.
func remoteOf(tcp *net.TCPConn) netip.AddrPort {
	a, ok := tcp.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
}
