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

// An expectation is noted under the cookie of the client's socket.
type expectation struct {
	peer *ism.Peer
	id   uint64
	at   time.Time
}

// onExpect notes a connection that p is about to make, or refuses it.
func (h *Host) onExpect(p *ism.Peer, m rendezvous) {
	reason, rival := h.expect(p, m)
	if reason != clc.DiagNone {
		h.sendRendezvous(p, rendezvous{kind: rvRefused, id: m.id, dest: m.dest, reason: uint32(reason)})
	}
	if rival.peer != nil {
		h.sendRendezvous(rival.peer, rendezvous{kind: rvRefused, id: rival.id, reason: uint32(reason)})
	}
}

// expect notes a connection, or returns why not. If another peer has said that it is its own,
// that is forgotten too, and returned: one of the two lies, and which one cannot be seen.
func (h *Host) expect(p *ism.Peer, m rendezvous) (why clc.Diagnosis, rival expectation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	state := h.peers[p]
	if h.closing || state == nil {
		return clc.DiagClosing, rival
	}
	if !h.listensLocked(m.netns, m.dest) {
		return clc.DiagNoListener, rival
	}
	if state.expected >= maxExpected {
		h.dropStaleLocked()
		if state.expected >= maxExpected {
			return clc.DiagBusy, rival
		}
	}
	if old, ok := h.expected[m.socket]; ok {
		h.unexpectLocked(m.socket, old)
		return clc.DiagRefused, old
	}
	h.expected[m.socket] = expectation{peer: p, id: m.id, at: time.Now()}
	state.expected++
	return clc.DiagNone, rival
}

// unexpectLocked removes an entry.
func (h *Host) unexpectLocked(socket uint64, e expectation) {
	delete(h.expected, socket)
	if state := h.peers[e.peer]; state != nil {
		state.expected--
	}
}

// dropStaleLocked forgets connections that never came.
func (h *Host) dropStaleLocked() {
	for socket, e := range h.expected {
		if time.Since(e.at) > expectAge {
			h.unexpectLocked(socket, e)
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
	for socket, e := range h.expected {
		if e.peer == p && e.id == id {
			h.unexpectLocked(socket, e)
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
func (h *Host) claim(netns uint64, tcp *net.TCPConn) (expectation, clc.Diagnosis) {
	local, remote := addrPort(tcp.LocalAddr()), addrPort(tcp.RemoteAddr())
	if remote.Addr() != local.Addr() && !h.locals.contains(remote.Addr()) {
		return expectation{}, clc.DiagNotLocal
	}
	f := h.openFabricOrNil()
	if f == nil {
		return expectation{}, clc.DiagPeerNoSMC
	}
	// The Expect was sent before the connection was made, so it has arrived; but perhaps
	// nobody has read it yet.
	polled := false
	if !h.expects() {
		if f.device.Poll(); !h.expects() {
			return expectation{}, clc.DiagPeerNoSMC
		}
		polled = true
	}
	s, err := h.ends.find(netns, remote, local)
	if err != nil {
		h.cfg.Logger.Debug("no socket found for a connection", "peer", remote, "err", err)
		return expectation{}, clc.DiagPeerNoSMC
	}
	e, ok := h.takeExpected(s)
	if !ok && !polled {
		f.device.Poll()
		e, ok = h.takeExpected(s)
	}
	if !ok {
		return expectation{}, clc.DiagPeerNoSMC
	}
	return e, clc.DiagNone
}

// openFabricOrNil returns the fabric if it is open.
func (h *Host) openFabricOrNil() *fabric {
	h.fabricMu.Lock()
	defer h.fabricMu.Unlock()
	return h.fabric
}

// expects reports whether any connection is expected.
func (h *Host) expects() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.expected) > 0
}

// takeExpected takes the expectation for a socket, if it comes from a process of the user whose
// socket that is, or of root: nobody can make a server read CLC from somebody else's connection.
func (h *Host) takeExpected(s endSocket) (expectation, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, ok := h.expected[s.cookie]
	if !ok {
		return e, false
	}
	if uid := e.peer.Cred().UID; uid != int(s.uid) && uid != 0 {
		return e, false
	}
	h.unexpectLocked(s.cookie, e)
	return e, true
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
