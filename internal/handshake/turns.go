package handshake

import (
	"net/netip"
	"sync"
	"time"
)

// How long a server waits for the Confirm of a client that may have to wait for its turn.
//
// Linux's net/smc has its connections take turns between Accept and Confirm
// (smc_client_lgr_pending): of two hundred that dial at once the last one confirms after many
// seconds, and is not to blame. So the time for a Confirm begins when the client's turn can have
// come: anew with each Confirm of another connection of the same peer, and while the first contact
// of one is under way. A client that was named a link group which it has a link of must not be
// reset at all: Linux does not notice when its turn comes. Its send of the Confirm fails, the
// socket's error has been fetched by then, and the connection counts as established
// (smc_clc_send_confirm returns 0). So such a client has as long as its link group lives, and the
// Confirm is answered whenever it comes. A stranger of which nothing comes has no more time than
// before.

// turns are the handshakes of a host, as a server of SMC-R, that have got a Proposal, by peer.
type turns struct {
	mu    sync.Mutex
	peers map[netip.Addr]*peerTurns
}

type peerTurns struct {
	open int       // handshakes
	busy int       // handshakes among them in a first contact
	last time.Time // of the newest Confirm, or the end of a first contact; zero: none
}

// A turn is one handshake's part. Its handshake's goroutine uses it.
type turn struct {
	turns *turns
	peer  netip.Addr
	since time.Time // of the Accept
	known bool      // that names a link group which there was before
	busy  bool
	over  bool
}

// enter adds a handshake that has got its Proposal. The caller calls leave. It returns nil if the
// peer has as many as it may: it must not take all places of a listener.
func (t *turns) enter(peer netip.Addr) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers == nil {
		t.peers = make(map[netip.Addr]*peerTurns)
	}
	p := t.peers[peer]
	switch {
	case p == nil:
		p = new(peerTurns)
		t.peers[peer] = p
	case p.open >= maxAcceptsOfPeer: // rule: TestTurns, TestTurnsFull: p.open >= maxAcceptsOfPeer -> false
		return nil
	}
	p.open++
	return &turn{turns: t, peer: peer}
}

// accepted takes note that the Accept is sent. known says that it names a link group which there was before.
func (x *turn) accepted(now time.Time, known bool) { x.since, x.known = now, known }

// confirmed takes note that the Confirm has come: the next client's turn begins, or, with a first
// contact, does when that is over.
func (x *turn) confirmed(now time.Time, firstContact bool) {
	x.turns.mu.Lock()
	defer x.turns.mu.Unlock()
	p := x.turns.peers[x.peer]
	p.last = now
	if firstContact && !x.busy {
		x.busy = true
		p.busy++
	}
}

// leave ends the part of a handshake that is over, however it ended. The next client has its turn. A
// handshake without a turn has a nil one.
func (x *turn) leave(now time.Time) {
	if x == nil {
		return
	}
	x.turns.mu.Lock()
	defer x.turns.mu.Unlock()
	if x.over {
		return
	}
	x.over = true
	p := x.turns.peers[x.peer]
	if x.busy {
		p.busy--
		p.last = now
	}
	if p.open--; p.open == 0 {
		delete(x.turns.peers, x.peer)
	}
}

// mayWait reports whether the time of a client that has not confirmed begins anew, since its turn
// may not have come.
func (x *turn) mayWait(now time.Time) bool {
	x.turns.mu.Lock()
	defer x.turns.mu.Unlock()
	p := x.turns.peers[x.peer]
	moves := p.busy > 0 || now.Sub(p.last) < CLCTimeout // rule: TestTurns, internal/host TestSMCRRush: p.busy > 0 || now.Sub(p.last) < CLCTimeout -> p == nil
	limit := maxConfirmWait
	if x.known { // rule: TestTurns, internal/host TestSMCRRush
		moves, limit = true, lateConfirmWait
	}
	return moves && now.Sub(x.since) < limit // rule: TestTurns: now.Sub(x.since) < limit -> limit > 0
}
