package smcr

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// A groupLink is one link of a group. The group's mu guards it, but for atomic fields and those
// that never change. An RNIC reports its events without the lock.
type groupLink struct {
	group *group
	rnic  *rnic.Device
	net   *link.Link

	num   llc.LinkNum   // 0: the first one of a client, before the server has told it
	peer  netip.Addr    // its other end, once that is known
	mtu   atomic.Uint32 // wire.MTU of the path, 0 before it is known
	heard uint64        // messages, when llcflow was told last
	up    bool          // connections may use it
	ended bool          // they must not use it any more, and the peer is to be told, or has not answered
	moved int           // connections, when it was about to end
	left  bool          // they have left it in time

	peerQPN wire.QPN // the queue pair at the other end, known with peer

	counts atomic.Bool // in groupLinks.upCount: it is up, and its RNIC not known to be down

	seen struct { // by the stallDetector when it looked last
		received, timeouts uint64
		// timeouts, of those that a look tells apart, without anything received since
		stalls int
		// looks: the first one of those, and the last one at which something had come
		since, heard uint64
	}
}

var (
	errLinkEnded = errors.New("the link was deleted")
	errStalled   = errors.New("nothing arrives over the link, but over others")
	errOneLink   = errors.New("the peer has one RNIC, and so have we")
)

// Critical implements [rnic.User].
func (l *groupLink) Critical() bool { return l.group.links.upCount.Load() < 2 }

// RNICEvent implements [rnic.User]. An interface that is down, or has lost its address, is given a
// moment to come back where there is no other link: TCP survives that, and so do connections whose
// packets are sent again.
func (l *groupLink) RNICEvent(mtu wire.MTU, reason error) {
	switch {
	case mtu == 0 && !l.spare():
		outage := l.rnic.Outages()
		l.group.fabric.rnicPatience(func() {
			if l.rnic.DownSince(outage) {
				l.net.Fail(reason)
			}
		})
	case mtu == 0, uint32(mtu) < l.mtu.Load():
		l.net.Fail(reason)
	}
}

// spare takes a link out of those that count, and reports whether there is another one. The last
// one goes on to count: of two interfaces that go down at once one is waited for.
func (l *groupLink) spare() bool {
	up := &l.group.links.upCount
	for {
		n := up.Load()
		switch {
		case !l.counts.Load():
			return n > 0
		case n < 2: // rule: TestAllDown
			return false
		case up.CompareAndSwap(n, n-1):
			if !l.counts.Swap(false) { // rule: TestCountedOnce
				up.Add(1) // countOut was here meanwhile
			}
			return true
		}
	}
}

// countOut takes a link that is lost out of those that count, unless spare has.
func (l *groupLink) countOut() {
	if l.counts.Swap(false) { // rule: TestCountedOnce: l.counts.Swap(false) -> true
		l.group.links.upCount.Add(-1)
	}
}

// local is our end of the link.
func (l *groupLink) local() core.LinkEnd {
	us := l.rnic.RNIC()
	return core.LinkEnd{GID: us.GID, MAC: us.MAC, QPN: l.net.QPN(), PSN: l.net.PSN(), MTU: l.net.MTU()}
}

// reach takes the peer's end of the link: packets go there, of the size that both ends can take.
// g.mu is held.
func (l *groupLink) reach(peer link.Peer) error {
	if err := l.net.ReadyToReceive(peer); err != nil {
		return err
	}
	l.know(peer)
	return nil
}

// know takes the peer's end of a link whose queue pair has been told of it. g.mu is held.
func (l *groupLink) know(peer link.Peer) {
	l.mtu.Store(uint32(min(peer.MTU, l.net.MTU())))
	l.peer, l.peerQPN = peer.GID.Addr(), peer.QPN
}

// trace traces an LLC message, or the bytes that came in place of one. It belongs to the link, and
// to no connection.
func (l *groupLink) trace(b []byte, sent bool) {
	l.group.fabric.cfg.Owner.TraceLLC(l.group.lg, l.rnic.Addr(), l.peer, b, sent)
}
