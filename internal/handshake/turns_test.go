package handshake

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/clc"
)

// TestTurns has clients of a peer wait for their turns: as long as the peer moves, and no longer; and others do not wait for it.
func TestTurns(t *testing.T) {
	var all turns
	start := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	peer, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	enter := func(peer netip.Addr, known bool) *turn {
		x := all.enter(peer)
		x.accepted(start, known)
		return x
	}
	first, second, last := enter(peer, false), enter(peer, false), enter(peer, false)
	alone := enter(other, false)

	if last.mayWait(at(CLCTimeout)) {
		t.Error("a client waits for its turn, and nobody has one")
	}
	first.confirmed(at(time.Second), true)
	if !last.mayWait(at(time.Minute)) {
		t.Error("a client cannot wait while the first contact of another is under way")
	}
	first.leave(at(20 * time.Second))
	first.leave(at(time.Hour)) // only once
	if !last.mayWait(at(20*time.Second + CLCTimeout - 1)) {
		t.Error("a client cannot wait after a first contact")
	}
	if last.mayWait(at(20*time.Second + CLCTimeout)) {
		t.Error("a client waits, and nobody else has had a turn")
	}
	second.confirmed(at(30*time.Second), false)
	if !last.mayWait(at(30*time.Second+CLCTimeout-1)) || last.mayWait(at(30*time.Second+CLCTimeout)) {
		t.Error("a Confirm is another time for those behind")
	}
	if alone.mayWait(at(30 * time.Second)) {
		t.Error("a client waits for those of another peer")
	}
	second.confirmed(at(maxConfirmWait-time.Second), false)
	if !last.mayWait(at(maxConfirmWait-1)) || last.mayWait(at(maxConfirmWait)) {
		t.Errorf("a client waits, and for %v at most", maxConfirmWait)
	}
	for _, x := range []*turn{second, last, alone} {
		x.leave(at(maxConfirmWait))
	}
	if len(all.peers) != 0 {
		t.Errorf("%d peers are kept", len(all.peers))
	}

	late := enter(peer, true)
	if !late.mayWait(at(lateConfirmWait-1)) || late.mayWait(at(lateConfirmWait)) {
		t.Errorf("a client that has a link with us may be late, by %v", lateConfirmWait)
	}
	late.leave(start)

	var open []*turn
	for x := all.enter(peer); x != nil; x = all.enter(peer) {
		if open = append(open, x); len(open) >= MaxOfListener {
			t.Fatal("a peer can have all places of a listener")
		}
	}
	if len(open) < 500 || all.enter(other) == nil {
		t.Errorf("full after %d, want at least 500, and room for others", len(open))
	}
	open[0].leave(start)
	if all.enter(peer) == nil {
		t.Error("no room after one has ended")
	}
}

// TestTurnsFull has a peer connect, and have as many Proposals as it may before the Proposal of the
// connection comes: its paths do not admit it.
func TestTurnsFull(t *testing.T) {
	for _, full := range []bool{true, false} {
		d := newTestDriver()
		path := newFakePath(t)
		path.turns = true
		r := startRig(t, d, path, core.RoleServer)
		for range maxAcceptsOfPeer {
			x := d.turns.enter(PeerAddr(r.ours))
			if !full {
				x.leave(time.Now())
			}
		}
		r.do(r.peer.Start(time.Now(), nil))
		m := r.read()
		if d, ok := m.(clc.Decline); ok != full || ok && d.Diagnosis != clc.DiagBusy.WireCode() {
			t.Errorf("full: %t: the server answered %v", full, m)
		}
	}
}
