package rendezvous

import (
	"net/netip"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/user"
	"github.com/gosmc/smc/wire/clc"
)

// The server's side of the rendezvous: which TCP connections peers have said that they are
// about to make.

// An expectation is noted under the cookie of the client's socket.
type expectation struct {
	peer  Peer
	id    uint64
	netns uint64 // of the socket, as the peer says
	dest  netip.AddrPort
	iface uint32 // that the socket is bound to, as the peer says; 0 for none
	at    time.Time
}

// onExpect notes a connection that peer is about to make, or refuses it.
func (p *Point) onExpect(peer Peer, m Message) {
	reason, rival := p.expect(peer, m)
	if reason != clc.DiagNone {
		p.send(peer, Message{Kind: Refused, ID: m.ID, Dest: m.Dest, Reason: uint32(reason)})
	}
	if rival.peer != nil {
		p.send(rival.peer, Message{Kind: Refused, ID: rival.id, Reason: uint32(reason)})
	}
}

// expect notes a connection, or returns why not. If another peer has said that it is its own,
// that is forgotten too, and returned: one of the two lies, and which one cannot be seen.
func (p *Point) expect(peer Peer, m Message) (why clc.Diagnosis, rival expectation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.stateLocked(peer)
	if p.closed || state == nil {
		return clc.DiagClosing, rival
	}
	if !p.listensLocked(m.Netns, m.Dest) { // rule: TestExpectRefused
		return clc.DiagNoListener, rival
	}
	// rule: TestExpectRefused
	if uid := peer.Cred().UID; !user.Ours(uid) && (p.cfg.Admit == nil || !p.cfg.Admit(uid)) {
		return clc.DiagOtherUser, rival
	}
	if len(state.expected) >= MaxExpected {
		p.dropStaleLocked(state)
		if len(state.expected) >= MaxExpected { // rule: TestExpectRefused
			return clc.DiagBusy, rival
		}
	}
	if _, twice := state.expected[m.ID]; twice { // rule: TestExpectRefused
		return clc.DiagRefused, rival
	}
	if old, ok := p.expected[m.Socket]; ok { // rule: TestExpectRefused, internal/host TestContestedSocket
		p.unexpectLocked(m.Socket, old)
		return clc.DiagRefused, old
	}
	p.expected[m.Socket] = expectation{peer: peer, id: m.ID, netns: m.Netns, dest: m.Dest, iface: m.Iface,
		at: time.Now()}
	state.expected[m.ID] = m.Socket
	return clc.DiagNone, rival
}

// unexpectLocked removes an entry.
func (p *Point) unexpectLocked(socket uint64, e expectation) {
	delete(p.expected, socket)
	if state := p.peers[e.peer]; state != nil {
		delete(state.expected, e.id)
	}
}

// dropStaleLocked forgets connections of a peer that never came. It looks at all that are expected,
// and so does that only now and then: the goroutine that accepts waits for it.
func (p *Point) dropStaleLocked(state *peerState) {
	if time.Since(state.swept) < sweepPause {
		return
	}
	state.swept = time.Now()
	for _, socket := range state.expected {
		if e := p.expected[socket]; time.Since(e.at) > expectAge {
			p.unexpectLocked(socket, e)
		}
	}
}

func (p *Point) listensLocked(netns uint64, dest netip.AddrPort) bool {
	for l := range p.listeners {
		if l.listensAt(netns, dest) {
			return true
		}
	}
	return false
}

// unexpectLeftLocked forgets the connections that are expected of a listener that has gone, unless
// another one listens there, and returns them.
func (p *Point) unexpectLeftLocked(gone *Listening) (forgotten []expectation) {
	for socket, e := range p.expected {
		if gone.listensAt(e.netns, e.dest) && !p.listensLocked(e.netns, e.dest) {
			p.unexpectLocked(socket, e)
			forgotten = append(forgotten, e)
		}
	}
	return forgotten
}

// onCancel forgets peer's message with id, and says so unless the connection was accepted.
func (p *Point) onCancel(peer Peer, id uint64) {
	p.mu.Lock()
	found := false
	if state := p.peers[peer]; state != nil {
		var socket uint64
		if socket, found = state.expected[id]; found {
			p.unexpectLocked(socket, p.expected[socket])
		}
	}
	p.mu.Unlock()
	if found {
		p.send(peer, Message{Kind: Refused, ID: id, Reason: uint32(clc.DiagNotAccepted)})
	}
}

// expects reports whether any connection is expected.
func (p *Point) expects() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.expected) > 0
}

// takeExpected takes the expectation for a socket, if it comes from a process of the socket's user,
// or of root: nobody can make a server read CLC from somebody else's connection.
func (p *Point) takeExpected(s endSocket) (expectation, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.expected[s.cookie]
	if !ok {
		return e, false
	}
	if uid := e.peer.Cred().UID; uid != 0 && (uid != int(s.uid) || !user.Known(uid)) { // rule: TestTakeExpected
		return e, false
	}
	p.unexpectLocked(s.cookie, e)
	return e, true
}

// expectedIfaces returns the interfaces that expected sockets are bound to, at most maxIfaces.
func (p *Point) expectedIfaces() (ifaces []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.expected {
		if e.iface != 0 && !slices.Contains(ifaces, e.iface) {
			if ifaces = append(ifaces, e.iface); len(ifaces) == maxIfaces {
				break
			}
		}
	}
	return ifaces
}
