package broker

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/wire/clc"
)

// A Broker has listeners, and offers of clients for connections to these, until they are claimed.
// Only one goroutine serves it, which has the lock but while it waits.
type Broker struct {
	Offers
	Mu       sync.Mutex
	Path     string // of the socket
	Socket   int
	Talks    map[int]*Talk // by descriptor
	lastTalk int           // talks have descriptors below this
	Quit     int           // an eventfd: readable when the loop has to end
	done     chan struct{} // closed when serve has returned
}

// A Key is a TCP connection, as the client sees it.
type Key struct{ Client, Server netip.AddrPort }

// An Owner is a supervisor of other programs that accept. Its methods are called with the lock.
type Owner interface {
	// Offered tells of an offer of process pid, 0 if it is not known, and of the reason why it was
	// refused; DiagNone if it was not.
	Offered(m proto.Message, pid int, reason clc.Diagnosis)
	// Waiting tells how many offers wait that did not come by letter.
	Waiting(n int)
	// Relaying tells that an offer is about to be joined to TCP.
	Relaying(o *Offer)
	// Relayed tells that a relay has ended. It is called without the lock.
	Relayed()
	// Answer carries out a message that is no part of an offer. Descriptors that came with it are the
	// owner's. It reports whether another message may follow.
	Answer(t *Talk, m proto.Message, fds []int) (more bool)
}

// New returns a broker that has opened nothing. The policy says which connections of servers
// may leave TCP.
func New(policy func() *config.Policy, owner Owner) *Broker {
	return &Broker{
		Offers: Offers{
			ByKey: make(map[Key]*Offer), Held: make(map[int]*Offer), Room: MaxOffers, Relays: make(chan struct{}, MaxRelays),
			Patience: FirstLook, Policy: policy, owner: owner,
		},
		Socket: -1, Quit: -1, Talks: make(map[int]*Talk), lastTalk: math.MaxInt,
	}
}

// Limit bounds the offers and relays that there may be, and the descriptors of talks.
func (b *Broker) Limit(offers, relays, talks int) {
	b.Room, b.Relays, b.lastTalk = offers, make(chan struct{}, relays), talks
}

// Listen opens the socket in a directory. programs returns processes whose listeners are no
// strangers.
func (b *Broker) Listen(dir, socketName string, programs func() []int) error {
	path := filepath.Join(dir, socketName)
	early := filepath.Join(dir, ".new-"+socketName)
	if len(path) >= len(unix.RawSockaddrUnix{}.Path) || len(early) >= len(unix.RawSockaddrUnix{}.Path) {
		return fmt.Errorf("the name of the run directory is too long for sockets: %s", dir)
	}
	var err error
	if b.Poll, err = NewPoller(); err != nil {
		return err
	}
	if b.Socket, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(b.Socket, &unix.SockaddrUnix{Name: early}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	b.Path = early
	if err := rundir.Chmod(unix.AT_FDCWD, early, unix.S_IFSOCK, unix.S_ISVTX|0o600); err != nil {
		return err
	}
	if err := unix.Listen(b.Socket, unix.SOMAXCONN); err != nil {
		return os.NewSyscallError("listen", err)
	}
	if err := os.Rename(early, path); err != nil {
		return err
	}
	b.Path = path
	if b.Quit, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if err := b.Poll.Add(b.Quit, unix.EPOLLIN); err != nil {
		return err
	}
	netns, err := proto.OwnNetNS()
	if err != nil {
		return err
	}
	b.Listeners = NewListeners(dir, socketName, netns)
	b.Listeners.ask, b.Listeners.Programs = true, programs
	return b.Poll.Add(b.Socket, unix.EPOLLIN)
}

// serve answers clients until stop is called.
func (b *Broker) serve() error {
	events := make([]unix.EpollEvent, MaxEvents)
	b.Mu.Lock()
	defer b.Mu.Unlock()
	for {
		n, err := b.Wait(events, b.Due())
		if err != nil {
			return err
		}
		for _, e := range events[:n] {
			switch {
			case !b.Poll.Current(e): // of a descriptor that the events before have closed
			case int(e.Fd) == b.Quit:
				return nil
			default:
				b.Handle(int(e.Fd))
			}
		}
		b.Look(time.Now())
	}
}

// Wait waits for events until next, for ever if that is zero. The caller has the lock, which others
// can have meanwhile.
func (b *Broker) Wait(events []unix.EpollEvent, next time.Time) (n int, err error) {
	timeout := time.Duration(-1)
	if !next.IsZero() {
		timeout = max(0, time.Until(next))
	}
	b.Mu.Unlock()
	n, err = b.Poll.wait(events, timeout)
	b.Mu.Lock()
	if errors.Is(err, unix.EINTR) {
		err = nil
	}
	return n, err
}

// Stop lets the loop end. Any goroutine may call it.
func (b *Broker) Stop() error {
	_, err := unix.Write(b.Quit, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return err
}

// Handle takes an event. It reports false if the descriptor is not one of the broker's.
func (b *Broker) Handle(fd int) bool {
	switch {
	case fd == b.Socket:
		b.accept()
	case b.Talks[fd] != nil:
		b.hear(b.Talks[fd])
	case b.Held[fd] != nil:
		b.Relay(b.Held[fd]) // the server speaks, or ends the connection: it is not one of ours
	default:
		return false
	}
	return true
}

// End drops what is offered and removes the socket. Connections that both programs have go on.
func (b *Broker) End() {
	for _, t := range b.Talks {
		b.hangUp(t)
	}
	for _, o := range b.ByKey {
		b.Drop(o)
	}
	if b.Listeners != nil {
		b.Listeners.Close()
	}
	if b.Path != "" {
		os.Remove(b.Path)
	}
	dispose.Close(b.Socket) // something may wait in talks that were not accepted
	proto.CloseAll([]int{b.Quit})
	if b.Poll != nil {
		b.Poll.Close()
	}
}

// Earliest returns the earliest of these times but for zero ones.
func Earliest(list ...time.Time) (first time.Time) {
	for _, t := range list {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}
