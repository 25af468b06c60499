package rendezvous

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/wire/clc"
)

// A Listening is a listener as the rendezvous knows it: where it listens, and its announcement.
type Listening struct {
	point *Point
	addr  netip.AddrPort
	on    listenOn
	netns uint64

	reason atomic.Uint32 // why it is not announced, a Diagnosis

	mu     sync.Mutex
	closed bool
	said   *Announcement // nil if it is not announced
	pause  time.Duration // until check looks again
}

// Listen makes a listener known to the clients of this machine. The error says why it is not
// announced yet, and matches [ErrClosed] if the point was closed; in any other case the Listening can
// be used, and is to be closed.
//
// As long as it is not closed, it is made sure now and then that the announcement is there.
func (p *Point) Listen(tcp *net.TCPListener) (*Listening, error) {
	l, err := p.newListening(tcp)
	// The listener is in the table before it is announced: a client that finds the announcement may
	// ask at once.
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	p.listeners[l] = struct{}{}
	p.mu.Unlock()
	if err != nil {
		return l, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err = l.announceLocked()
	if !p.cfg.Disabled {
		l.pause = p.cfg.CheckEvery
		time.AfterFunc(l.pause, l.check)
	}
	return l, err
}

// Unannounced returns a listener that the clients of this machine do not know of: none may expect
// anything of it, and nothing of the system is taken for it.
func (p *Point) Unannounced(tcp *net.TCPListener) *Listening {
	l, _ := p.newListening(tcp) // a caller that has it announced learns of the error
	l.closed = true
	return l
}

// newListening returns a listener that nobody knows of. If there is an error, it cannot be announced.
func (p *Point) newListening(tcp *net.TCPListener) (*Listening, error) {
	l := &Listening{point: p, addr: AddrPort(tcp.Addr())}
	raw, err := tcp.SyscallConn()
	if err == nil {
		l.netns, err = SocketNetns(raw)
	}
	l.on.addr = l.addr.Addr()
	if err == nil && l.addr.Addr().IsUnspecified() && l.addr.Addr().Is6() {
		raw.Control(func(fd uintptr) {
			only, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
			l.on.any = err == nil && only == 0
		})
	}
	return l, err
}

// announceLocked makes the announcement, and notes why not. l.mu is held.
func (l *Listening) announceLocked() error {
	p := l.point
	d, reason, err := p.cfg.Open()
	if err == nil {
		// A listener that is announced costs each client a wait if it cannot tell the client's
		// connection from others.
		if err = p.checkDiag(l.addr); err != nil {
			reason = p.diagReason(err)
		} else if l.said, err = l.announceBy(d); err != nil {
			reason = clc.DiagNoRunDir
		}
	}
	if err == nil {
		reason = clc.DiagNone
	}
	l.reason.Store(uint32(reason))
	return err
}

// announceBy makes the announcement, and the run directory if somebody has removed that since the
// device was opened.
func (l *Listening) announceBy(d Device) (*Announcement, error) {
	dir := l.point.cfg.Dir
	said, err := Announce(dir, l.netns, d.GID(), l.addr, l.on.any)
	if !errors.Is(err, fs.ErrNotExist) || rundir.Prepare(dir) != nil || d.Renew() != nil {
		return said, err
	}
	return Announce(dir, l.netns, d.GID(), l.addr, l.on.any)
}

// check makes sure that the announcement is there, and the device that it names. Files in /tmp are
// removed by age and those under $XDG_RUNTIME_DIR at logout; and an obstacle to an announcement may
// be over, such as a full directory.
//
// Each listener has a timer of its own, and nobody ever stops one: in a bubble of package synctest only
// those inside may.
func (l *Listening) check() {
	p := l.point
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || p.isClosed() {
		return
	}
	if err := l.checkLocked(); err != nil {
		p.cfg.Logger.Debug("listener is not announced", "addr", l.addr, "err", err)
		l.pause = min(2*l.pause, max(maxCheckPause, p.cfg.CheckEvery))
	} else {
		l.pause = p.cfg.CheckEvery
	}
	time.AfterFunc(l.pause, l.check)
}

func (l *Listening) checkLocked() error {
	p := l.point
	if l.said != nil {
		d := p.cfg.Opened()
		if d == nil {
			return errors.New("there is no device") // the host is closing
		}
		if err := d.Renew(); err != nil {
			return err
		}
		if l.said.isThere() {
			return nil
		}
	}
	if err := rundir.Prepare(p.cfg.Dir); err != nil {
		return err
	}
	if err := l.announceLocked(); err != nil {
		return err
	}
	p.cfg.Logger.Info("listener is announced again", "addr", l.addr)
	return nil
}

// checkDiag makes sure that the kernel can be asked for the owners of sockets, as clients of a
// listener ask for its owner, and as we do for theirs.
func (p *Point) checkDiag(addr netip.AddrPort) error {
	if _, err := listenerOwner(addr); errors.Is(err, errDiag) {
		return err
	}
	return p.ends.ready()
}

// Usable returns why no listener of this process is announced, or asked, at all; DiagNone if nothing is
// known against it.
func (p *Point) Usable() clc.Diagnosis {
	if err := p.checkDiag(netip.AddrPortFrom(netip.IPv6Loopback(), 1)); err != nil {
		return p.diagReason(err)
	}
	return clc.DiagNone
}

// Poll looks at messages that peers have sent and nobody has seen yet. A goroutine that accepts
// does so anyway.
func (p *Point) Poll() {
	if d := p.cfg.Opened(); d != nil {
		d.Poll()
	}
}

// listensAt reports whether a connection to dest, in a network namespace, may be the listener's.
func (l *Listening) listensAt(netns uint64, dest netip.AddrPort) bool {
	return l.netns == netns && l.addr.Port() == dest.Port() && l.on.covers(dest.Addr())
}

// Netns returns the network namespace of the listener.
func (l *Listening) Netns() uint64 { return l.netns }

// Reason returns why no client of this machine will ask for SMC; DiagNone if they can.
func (l *Listening) Reason() clc.Diagnosis { return clc.Diagnosis(l.reason.Load()) }

// Withdraw removes the announcement, so that no new client asks.
func (l *Listening) Withdraw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.said.Withdraw()
}

// Close withdraws, and lets nobody expect anything of the listener any more. Clients that do are told: their
// connections, which somebody else may accept, are plain TCP.
func (l *Listening) Close() {
	l.Withdraw()
	l.point.mu.Lock()
	_, known := l.point.listeners[l]
	delete(l.point.listeners, l)
	left := l.point.unexpectLeftLocked(l)
	l.point.mu.Unlock()
	if known {
		// A message that nobody has looked at yet is refused, too.
		// rule: TestCloseRefuses
		l.point.Poll()
	}
	for _, e := range left { // rule: TestCloseRefuses: range left -> range left[:0]
		l.point.send(e.peer, Message{Kind: Refused, ID: e.id, Dest: e.dest,
			Reason: uint32(clc.DiagNoListener)})
	}
}

// A Claim is a connection on which a client expects SMC.
type Claim struct {
	point *Point
	peer  Peer
	id    uint64
	dest  netip.AddrPort
}

// Peer returns the peering with the client.
func (c *Claim) Peer() Peer { return c.peer }

// Accept tells the client that CLC will be read from the connection. If it reports false the
// client is gone, and the connection is of no use.
func (c *Claim) Accept() bool {
	return c.point.send(c.peer, Message{Kind: Accepted, ID: c.id, Dest: c.dest})
}

// Refuse tells the client that the connection is plain TCP, and why.
func (c *Claim) Refuse(reason clc.Diagnosis) {
	c.point.send(c.peer, Message{Kind: Refused, ID: c.id, Dest: c.dest, Reason: uint32(reason)})
}

// Claim returns the claim of the peer that expects SMC on a connection that was just accepted, or
// nil and the reason why nobody does. It is called once for each connection, from the goroutine
// that accepts; the client waits until the claim is accepted or refused.
func (l *Listening) Claim(tcp *net.TCPConn) (*Claim, clc.Diagnosis) {
	p := l.point
	local, remote := AddrPort(tcp.LocalAddr()), AddrPort(tcp.RemoteAddr())
	if remote.Addr() != local.Addr() && !p.locals.contains(remote.Addr()) {
		return nil, clc.DiagNotLocal
	}
	e, reason := l.claim(local, remote)
	if e.peer != nil {
		return &Claim{point: p, peer: e.peer, id: e.id, dest: local}, clc.DiagNone
	}
	if why := l.Reason(); why != clc.DiagNone {
		reason = why
	}
	return nil, reason
}

func (l *Listening) claim(local, remote netip.AddrPort) (expectation, clc.Diagnosis) {
	p := l.point
	d := p.cfg.Opened()
	if d == nil {
		return expectation{}, clc.DiagPeerNoSMC
	}
	// The Expect was sent before the connection was made, so it has arrived; but perhaps
	// nobody has read it yet.
	polled := false
	if !p.expects() {
		if d.Poll(); !p.expects() {
			return expectation{}, clc.DiagPeerNoSMC
		}
		polled = true
	}
	s, err := p.ends.find(l.netns, remote, local)
	if errors.Is(err, errNoSocket) { // it may be bound to an interface
		if !polled {
			d.Poll()
			polled = true
		}
		s, err = p.ends.find(l.netns, remote, local, p.expectedIfaces()...)
	}
	if err != nil {
		p.cfg.Logger.Debug("no socket found for a connection", "peer", remote, "err", err)
		if errors.Is(err, errDiag) {
			return expectation{}, clc.DiagNoSockDiag
		}
		return expectation{}, clc.DiagPeerNoSMC
	}
	e, ok := p.takeExpected(s)
	if !ok && !polled {
		d.Poll()
		e, ok = p.takeExpected(s)
	}
	if !ok {
		return expectation{}, clc.DiagPeerNoSMC
	}
	return e, clc.DiagNone
}
