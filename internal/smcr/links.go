package smcr

import (
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has the links of a group: over which devices, and what happens when one comes or goes. Which connection writes over which is in
// spread.go.

// A groupLink is one link of a group. The group's mu guards it, but for what never changes.
type groupLink struct {
	group *group
	rnic  *rnic.Device
	net   *link.Link

	num   llc.LinkNum   // 0: the first one of a client, before the server has told it
	peer  netip.Addr    // its other end, once that is known
	mtu   atomic.Uint32 // wire.MTU of the path, 0 before it is known
	heard uint64        // messages, when core was told last
	up    bool          // connections may use it
	ended bool          // they must not use it any more, and the peer is to be told, or has not answered
	moved int           // connections, when it was about to end
	left  bool          // they have left it in time

	peerQPN wire.QPN // the queue pair at the other end, known with peer

	counts atomic.Bool // in upLinks: it is up, and its RNIC not known to be down

	seen struct { // by the stallDetector when it looked last
		received, timeouts uint64
		stalls             int    // timeouts, of those that a look tells apart, without anything received since
		since, heard       uint64 // looks: that of the first of those, and the last one at which something had come
	}
}

// Critical implements [rnic.User].
func (l *groupLink) Critical() bool { return l.group.upLinks.Load() < 2 }

// RNICEvent implements [rnic.User]. An interface that is down, or has lost its address, is given a moment to come back where there
// is no other link: TCP survives that, and so do connections whose packets are sent again.
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

// spare takes a link out of those that count, and reports whether there is another one. The last one goes on to count: of two interfaces that go down at
// once one is waited for.
func (l *groupLink) spare() bool {
	up := &l.group.upLinks
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
		l.group.upLinks.Add(-1)
	}
}

var (
	errLinkEnded = errors.New("the link was deleted")
	errStalled   = errors.New("nothing arrives over the link, but over others")
	errOneLink   = errors.New("the peer has one RNIC, and so have we")
)

// addLink makes our end of a link on a device that the caller has acquired, and that is the group's from now on, also
// after an error. g.mu is held, or nobody else knows the group.
func (g *group) addLink(n *rnic.Device, num llc.LinkNum) (*groupLink, error) {
	l := &groupLink{group: g, rnic: n, num: num}
	var err error
	if l.net, err = g.net.NewLink(n.RDMA()); err == nil {
		if err = n.AddUser(l); err != nil {
			l.net.Close()
		}
	}
	if err != nil {
		n.Release()
		return nil, err
	}
	g.links = append(g.links, l)
	return l, nil
}

// dropLink takes away a link. g.mu is held.
func (g *group) dropLink(l *groupLink) {
	g.links = slices.DeleteFunc(g.links, func(x *groupLink) bool { return x == l })
	l.rnic.RemoveUser(l)
	l.net.Close()
	l.rnic.Release()
}

// linkOf returns the link with a number: 0 is that of the first contact, nil if there is none. g.mu is held.
func (g *group) linkOf(num llc.LinkNum) *groupLink {
	for _, l := range g.links {
		if l.num == num || num == 0 || l.num == 0 {
			return l
		}
	}
	return nil
}

// main returns the link that is named to peers: the first one that connections may use, or that is left. g.mu is held.
func (g *group) main() *groupLink {
	for _, l := range g.links {
		if l.up && !g.leaves(l) { // rule: TestLeavingUnused: !g.leaves(l) -> true
			return l
		}
	}
	for _, l := range g.links {
		if l.up {
			return l
		}
	}
	return g.links[0]
}

// named returns the link that a later contact's message of ours names. A client names the one that the server's has named, if it can: Linux net/smc
// takes the RKey of a Confirm for one of that link, whatever else the Confirm says.
//
// A server that has lost links names the newest one. Linux net/smc looks whether the memory of a connection is registered on the link that is named, and if so
// registers it on no other, which may have been made since it was used first; but it tells the keys of all. A write with such a key ends the link
// group. Where the newest link is named the memory is registered on all of them.
func (g *group) named(server *clc.ParamsR) *groupLink {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.toName(server)
}

// toName is named with g.mu held.
func (g *group) toName(server *clc.ParamsR) *groupLink {
	if server != nil && g.ctl != nil {
		for _, x := range g.ctl.Links() {
			if x.Peer.GID != server.GID || x.Peer.QPN != server.QPN {
				continue
			}
			if l := g.linkOf(x.Num); l != nil && l.up {
				return l // rule: TestNamedLink: return l -> return g.main()
			}
		}
	}
	best := g.main()
	if g.failovers > 0 {
		for _, l := range g.links {
			if l.up && l.num > best.num && !g.leaves(l) { // rule: TestLeavingUnused: !g.leaves(l) -> true
				best = l // rule: internal/host TestSMCRNamedNewest: best = l -> _ = l
			}
		}
	}
	return best
}

// fail makes all links fail.
func (g *group) fail(reason error) {
	g.mu.Lock()
	links := slices.Clone(g.links)
	g.mu.Unlock()
	for _, l := range links {
		l.net.Fail(reason)
	}
}

// local is our end of a link.
func (l *groupLink) local() core.LinkEnd {
	us := l.rnic.RNIC()
	return core.LinkEnd{GID: us.GID, MAC: us.MAC, QPN: l.net.QPN(), PSN: l.net.PSN(), MTU: l.net.MTU()}
}

// routesNamed returns how we get to the RNICs that a message about another link names, nil if it is none, or another one has just come: nobody is to
// have us ask the kernel all the time. It is called on the group's goroutine alone.
func (g *group) routesNamed(ev link.Event) []core.PairRoute {
	if ev.Kind != link.EventLLC || g.lg.Key.Version != clc.V2 || time.Since(g.routesAsked) < routesPause {
		return nil
	}
	var gids []wire.GID
	switch m, _ := llc.Parse(ev.Message); m := m.(type) {
	case llc.AddLink:
		if !m.Rejected {
			gids = []wire.GID{m.GID}
		}
	case llc.RequestAddLink:
		gids = m.GIDs
	}
	if len(gids) == 0 {
		return nil
	}
	g.routesAsked = time.Now()
	return g.fabric.rnics.RoutesTo(g.fabric.rnics.Alternatives(g.rnic, clc.V2), gids)
}

// openLink makes our end of another link, at once where the device is open, else on a goroutine. g.mu is held.
func (g *group) openLink(o core.OpenLink) {
	if g.oneEach && o.GID == g.rnic.RDMA().GID() && g.ctl.State() == core.ControlAdding { // rule: internal/host TestSMCRNewAdapter: g.ctl.State() == core.ControlAdding -> true
		g.queue = g.ctl.LinkOpened(time.Now(), o.Link, g.openSpare(g.rnic), nil, g.queue)
		return
	}
	for _, n := range g.devices {
		if o.GID == n.RDMA().GID() {
			n.Retain()
			g.opened(n, o.Link)
			return
		}
	}
	g.openers.Go(func() {
		n, err := g.fabric.rnics.Acquire(g.fabric.rnics.Zoned(o.GID.Addr(), g.rnic))
		if err == nil {
			g.watchDevice(n)
		}
		g.do(func(now time.Time, out []core.Output) []core.Output {
			if err != nil || g.gone {
				if err == nil {
					n.Release()
				}
				if g.gone {
					return out
				}
				return g.ctl.LinkOpened(now, o.Link, core.LinkEnd{}, nil, out)
			}
			g.queue = out
			g.opened(n, o.Link)
			return g.queue
		})
	})
}

// opened answers OpenLink. g.mu is held.
func (g *group) opened(n *rnic.Device, num llc.LinkNum) {
	if l := g.linkOf(num); l != nil && l.num == num { // rule: internal/host TestSMCRAddLinkAgain
		n.Release() // that number was asked for twice: what came first is the answer
		return
	}
	l, err := g.addLink(n, num)
	if err != nil {
		g.fabric.cfg.Logger.Warn("no further link", "device", n.RDMA().Addr(), "err", err)
		g.queue = g.ctl.LinkOpened(time.Now(), num, core.LinkEnd{}, nil, g.queue)
		return
	}
	tokens := make(map[core.RMBID]llc.RToken, len(g.rmbs.every))
	for id, m := range g.rmbs.every {
		if t, ok := m.rmb.Token(l.net); ok {
			tokens[id] = llc.RToken{RKey: t.RKey, VA: t.Addr}
		}
	}
	g.queue = g.ctl.LinkOpened(time.Now(), num, l.local(), tokens, g.queue)
}

// tokens is where an RMB is on each link. g.mu is held.
func (g *group) tokens(m *ownRMB) map[llc.LinkNum]llc.RToken {
	tokens := make(map[llc.LinkNum]llc.RToken, len(g.links))
	for _, l := range g.links {
		if t, ok := m.rmb.Token(l.net); ok {
			tokens[l.num] = llc.RToken{RKey: t.RKey, VA: t.Addr}
		}
	}
	return tokens
}

// openSpare makes the queue pair that a server offers as the end of a second link where both have one adapter, so that
// there will be none (RFC 7609 p.35): only its number is of use. g.mu is held.
func (g *group) openSpare(n *rnic.Device) core.LinkEnd {
	if g.lg.Key.Role == core.RoleClient {
		return core.LinkEnd{}
	}
	pd, err := n.RDMA().NewPD()
	if err != nil {
		return core.LinkEnd{}
	}
	cq, err := n.RDMA().NewCQ(2, nil)
	if err != nil {
		return core.LinkEnd{}
	}
	if g.spare, err = pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1}); err != nil {
		return core.LinkEnd{}
	}
	us := n.RNIC()
	return core.LinkEnd{GID: us.GID, MAC: us.MAC, QPN: g.spare.QPN(), PSN: rdma.RandomPSN(), MTU: n.RDMA().MTU()}
}

// dropSpare takes it away. g.mu is held.
func (g *group) dropSpare() {
	if g.spare != nil {
		g.spare.Close()
		g.spare = nil
	}
}

// connectLink joins a link with its other end. g.mu is held.
func (g *group) connectLink(o core.ConnectLink) error {
	l := g.linkOf(o.Link)
	if l == nil || l.num != o.Link {
		return errOneLink
	}
	p := o.Peer
	if err := l.net.ReadyToReceive(link.Peer{GID: p.GID, QPN: p.QPN, PSN: p.PSN, MTU: p.MTU}); err != nil {
		return err
	}
	l.mtu.Store(uint32(min(p.MTU, l.net.MTU())))
	l.peer, l.peerQPN = p.GID.Addr(), p.QPN
	if g.lg.Key.Role == core.RoleServer {
		return l.net.ReadyToSend()
	}
	return nil
}

// linkUp takes a link into use. g.mu is held.
func (g *group) linkUp(num llc.LinkNum) {
	l := g.linkOf(num)
	l.up = true
	l.counts.Store(true)
	g.upLinks.Add(1)
	g.fabric.cfg.Logger.Info("link added", "group", g.lg.ID, "link", num, "local", l.rnic.Addr(), "peer", l.peer, "redundancy", g.ctl.Redundancy())
	g.linksChanged()
	g.balance()
	g.stalls.start()
}

// linkDown takes a link out of use, and moves its connections. g.mu is held.
func (g *group) linkDown(o core.LinkDown) {
	l := g.linkOf(o.Link)
	l.up, l.ended = false, true
	l.countOut()
	if !o.Orderly { // rule: TestLeaving: !o.Orderly -> true
		l.net.Fail(errLinkEnded) // the error is why it failed before, if it did
	}
	moved, stuck := g.moveAll(l)
	for _, c := range stuck {
		c.link.GiveUp()
		if !c.detached {
			g.afterwards(c.lost)
		}
	}
	moved += l.moved
	g.failovers++
	g.moved += uint64(moved)
	g.fabric.cfg.Owner.Ended(endOfLink, groupEndReason(o.Why)) // rule: internal/host TestSMCRFailover
	g.fabric.cfg.Logger.Warn("link ended, connections go on over others",
		"group", g.lg.ID, "link", o.Link, "local", l.rnic.Addr(), "peer", l.peer, "why", o.Why.String(), "connections", moved, "left", l.left, "redundancy", g.ctl.Redundancy())
	g.linksChanged()
}

// linksChanged tells the table, by which later connections find the group.
func (g *group) linksChanged() {
	links := g.ctl.Links()
	g.afterwards(func() {
		g.fabric.mu.Lock()
		g.fabric.groups.SetLinks(g.lg, links)
		g.fabric.mu.Unlock()
	})
}

// numberOf returns the number of the link that a connection writes over, 0 if there is none.
func (g *group) numberOf(c *binding) uint8 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.link == nil {
		return 0
	}
	over := c.link.Link()
	for _, l := range g.links {
		if l.net == over {
			return uint8(l.num)
		}
	}
	return 0
}
