package host

import (
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/wire/clc"
)

// The server's side of the rendezvous: which TCP connections peers have said that they are
// about to make.

// expectKey names a connection from this host before it is there: its source address is
// not known yet, but a source port leads to a given destination once at a time.
type expectKey struct {
	source uint16
	dest   netip.AddrPort // unmapped, without zone
}

type expectation struct {
	peer *ism.Peer
	id   uint64
	at   time.Time
}

// onExpect notes a connection that p is about to make, or refuses it.
func (h *Host) onExpect(p *ism.Peer, m rendezvous) {
	if reason := h.expect(p, m); reason != clc.DiagNone {
		h.sendRendezvous(p, rendezvous{kind: rvRefused, id: m.id, reason: uint32(reason)})
	}
}

func (h *Host) expect(p *ism.Peer, m rendezvous) clc.Diagnosis {
	h.mu.Lock()
	defer h.mu.Unlock()
	state := h.peers[p]
	if h.closing || state == nil {
		return clc.DiagClosing
	}
	if !h.listensLocked(m.netns, m.dest) {
		return clc.DiagNoListener
	}
	if state.expected >= maxExpected {
		h.dropStaleLocked()
		if state.expected >= maxExpected {
			return clc.DiagBusy
		}
	}
	key := expectKey{m.source, m.dest}
	if old, ok := h.expected[key]; ok {
		h.unexpectLocked(key, old)
	}
	h.expected[key] = expectation{peer: p, id: m.id, at: time.Now()}
	state.expected++
	return clc.DiagNone
}

// unexpectLocked removes an entry.
func (h *Host) unexpectLocked(key expectKey, e expectation) {
	delete(h.expected, key)
	if state := h.peers[e.peer]; state != nil {
		state.expected--
	}
}

// dropStaleLocked forgets connections that never came.
func (h *Host) dropStaleLocked() {
	for key, e := range h.expected {
		if time.Since(e.at) > expectAge {
			h.unexpectLocked(key, e)
		}
	}
}

func (h *Host) listensLocked(netns uint64, dest netip.AddrPort) bool {
	for l := range h.listeners {
		if l.netns == netns && l.addr.Port() == dest.Port() && l.on.covers(dest.Addr()) {
			return true
		}
	}
	return false
}

// onCancel forgets what p said with id, and says so unless the connection was accepted.
func (h *Host) onCancel(p *ism.Peer, id uint64) {
	h.mu.Lock()
	found := false
	for key, e := range h.expected {
		if e.peer == p && e.id == id {
			h.unexpectLocked(key, e)
			found = true
			break
		}
	}
	h.mu.Unlock()
	if found {
		h.sendRendezvous(p, rendezvous{kind: rvRefused, id: id, reason: uint32(clc.DiagNotAccepted)})
	}
}

// claim returns the expectation that a connection just accepted fulfils, or the reason
// why there is none. It is called once per connection, from the goroutine that accepts.
func (h *Host) claim(tcp *net.TCPConn) (expectation, clc.Diagnosis) {
	local, remote := addrPort(tcp.LocalAddr()), addrPort(tcp.RemoteAddr())
	if remote.Addr() != local.Addr() && !h.locals.contains(remote.Addr()) {
		return expectation{}, clc.DiagNotLocal
	}
	key := expectKey{remote.Port(), local}
	if e, ok := h.takeExpected(key); ok {
		return e, clc.DiagNone
	}
	// The Expect was sent before the connection was made, so it has arrived; but perhaps
	// nobody has read it yet.
	h.fabricMu.Lock()
	f := h.fabric
	h.fabricMu.Unlock()
	if f == nil {
		return expectation{}, clc.DiagPeerNoSMC
	}
	f.device.Poll()
	if e, ok := h.takeExpected(key); ok {
		return e, clc.DiagNone
	}
	return expectation{}, clc.DiagPeerNoSMC
}

func (h *Host) takeExpected(key expectKey) (expectation, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, ok := h.expected[key]
	if ok {
		h.unexpectLocked(key, e)
	}
	return e, ok
}

// sendRendezvous sends a message; if that is impossible the peering is of no more use.
func (h *Host) sendRendezvous(p *ism.Peer, m rendezvous) bool {
	var buf [rvExpectLen]byte
	if err := p.Send(m.append(buf[:0])); err != nil {
		h.cfg.Logger.Debug("rendezvous message not sent", "peer", p.GID(), "err", err)
		return false
	}
	return true
}

// addrPort converts an address of package net; the result is unmapped, without zone.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// socketError takes the pending error of a socket, nil if there is none.
func socketError(tcp *net.TCPConn) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var errno int
	if cerr := raw.Control(func(fd uintptr) {
		errno, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	}); cerr != nil {
		return cerr
	}
	if err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}

// hasBytes reports whether there is something to read, without reading it.
func hasBytes(tcp *net.TCPConn) bool {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return err == nil && n > 0
}
