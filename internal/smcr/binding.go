package smcr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// A binding is a connection over SMC-R: an RMB of ours, an element of one of the peer's, and a link between.
type binding struct {
	fabric   *Fabric
	lg       *core.LinkGroup
	group    *group        // lg at work
	first    bool          // our connection made the group
	remote   netip.Addr    // the other end of the TCP connection
	rmb      *ownRMB       // nil once released
	link     *link.Carrier // nil before prepare
	owner    core.Owner    // of the peer's element
	closing  atomic.Uint32 // the owner, from its last word until nothing is on its way
	detached bool          // nothing new is sent; guarded by the group's mu
	ring     atomic.Int64  // bytes of the send ring that count in the host's budget
	element  *core.Element // nil before it is known
	named    *groupLink    // by the handshake; nil before prepare
	awaits   bool          // said its last word, and is not released
	quiet    time.Duration // how long its link may be silent, 0: as the host likes; guarded by the group's mu
	lost     func()        // the peer has given the element to another connection
}

// prepare makes our RMB known to the peer, unless the CLC messages do, and on the client readies our end of the link.
func (c *binding) prepare(ctx context.Context, w *Path, q transport.Request) (r core.Resources, err error) {
	if c.first {
		c.group, err = w.fabric.newGroup(c.lg, w.device(q.Choice.Version))
	} else {
		c.group, err = w.fabric.group(c.lg)
	}
	if err != nil {
		return r, err
	}
	g := c.group
	size := wire.SizeCodeFor(q.Buffer)
	if !c.takesLarge(q.Choice) {
		size = min(size, wire.MaxRFCSizeCode) // rule: internal/host TestSMCRBufferSize: min(size, wire.MaxRFCSizeCode) -> size
	}
	if c.rmb, err = g.rmbs.take(ctx, size); err != nil {
		return r, err
	}
	ring := c.ringSize(q.Choice)
	err = w.fabric.takeMemory(&w.fabric.ringBytes, ring)
	for errors.Is(err, errBudget) && w.fabric.shed(ctx) {
		err = w.fabric.takeMemory(&w.fabric.ringBytes, ring)
	}
	if err != nil { // rule: internal/host TestSMCRBudget
		return r, err
	}
	c.ring.Store(ring)
	c.link, err = g.net.NewCarrier(link.CarrierConfig{
		RMB: c.rmb.rmb, Wake: q.Wake, SendBuffer: int(ring),
		Done: func() {
			g.fabric.ringBytes.Add(-c.ring.Swap(0))
			g.conns.freed.add(core.Owner(c.closing.Swap(0)))
			g.room.checkLater()
		},
	})
	if err != nil {
		g.fabric.ringBytes.Add(-c.ring.Swap(0))
		return r, err
	}
	var direct bool
	if c.first {
		if direct, err = c.checkRoute(q.Choice); err != nil {
			return r, err
		}
	}
	if server := q.Choice.R; server != nil { // we are the client
		if c.first {
			err = g.links.all[0].net.ReadyToReceive(peerOf(server))
		} else {
			err = c.takeElement(server)
		}
		if err != nil {
			return r, err
		}
	}
	l := g.links.named(q.Choice.R)
	c.named = l
	token, ok := c.rmb.rmb.Token(l.net)
	if !ok {
		return r, transport.ErrGone
	}
	us := l.rnic.RNIC()
	gids := []wire.GID{us.GID}
	if c.first {
		list := w.fabric.rnics.Alternatives(g.rnic, q.Choice.Version)
		if q.Choice.Version == clc.V2 && len(list) > 1 {
			list = w.fabric.rnics.Eligible(list, q.Choice.GID)
		}
		gids = gidsOf(list)
	}
	return core.Resources{
		FirstContact: c.first,
		Direct:       direct,
		ClientGIDs:   gids,
		R: &clc.ParamsR{
			GID: us.GID, MAC: us.MAC, QPN: l.net.QPN(), PSN: l.net.PSN(), MTU: l.net.MTU(),
			RKey: token.RKey, RMBAddr: token.Addr, RMBEIndex: 1, RMBESize: c.rmb.rmb.Size(), AlertToken: c.link.AlertToken(),
		},
	}, nil
}

// takesLarge reports whether the peer is known to take elements of RMBs above 512 KiB, "largest size supported by this architecture" (RFC 7609
// p.100): every Linux does, and so do we, who say that we are Linux. Each side says so in its first message of a first contact in version 2; a server does not
// know it yet when it sends its Accept, but Linux kernels alone offer version 2 without a peer ID.
func (c *binding) takesLarge(choice core.Choice) bool {
	switch {
	case choice.Version == clc.V1:
		return false
	case !c.first:
		c.fabric.mu.Lock()
		defer c.fabric.mu.Unlock()
		return c.lg.Result.PeerOS == clc.OSLinux
	case choice.R != nil: // we are the client
		return choice.PeerOS == clc.OSLinux
	}
	return choice.PeerID == wire.PeerID{}
}

// checkRoute reports whether no router is between our RNIC and the peer's. A client compares it with what the server says in version 2, which
// decides by it whose MAC packets go to: Linux net/smc does not take "indirect" for a path without a router, and looks no
// further where the server says "direct". Neither do we.
//
// Behind a router packets are no larger than Ethernet has room for, since an RNIC does not learn what the networks there can take.
func (c *binding) checkRoute(choice core.Choice) (direct bool, err error) {
	route := c.group.rnic.Route(choice.GID.Addr())
	if choice.R != nil && choice.Version == clc.V2 && !choice.Direct {
		switch route {
		case rnic.RouteNone:
			return false, &transport.DeclinedError{Why: clc.DiagNoRoute}
		case rnic.RouteDirect:
			return false, &transport.DeclinedError{Why: clc.DiagIndirect} // rule: internal/host TestSMCRIndirect: clc.DiagIndirect -> clc.DiagNoRoute
		}
	}
	if route != rnic.RouteDirect { // rule: internal/host TestSMCRRoutedMTU: route != rnic.RouteDirect -> false
		c.group.net.LimitMTU(wire.MTU1024)
	}
	return route == rnic.RouteDirect, nil
}

// ringSize is how large a send ring is asked for. It is no larger than the receive buffer that a connection has unless something is
// said, which is small where memory is; and no larger than the peer's element, as far as that is known.
func (c *binding) ringSize(choice core.Choice) int64 {
	size := min(link.DefaultSendBuffer, c.fabric.cfg.ReadBuffer)
	if choice.R != nil {
		size = min(size, choice.R.RMBESize.Bytes())
	}
	return int64(size)
}

// peerOf is the peer's end of a link as it has told it.
func peerOf(r *clc.ParamsR) link.Peer {
	return link.Peer{GID: r.GID, QPN: r.QPN, PSN: r.PSN, MTU: r.MTU}
}

// takeElement makes the element of the peer's RMB that a message of a later contact names ours.
func (c *binding) takeElement(p *clc.ParamsR) error {
	var why clc.Diagnosis
	c.group.do(func(now time.Time, out []core.Output) []core.Output {
		c.owner = c.group.conns.add(c)
		var e core.Element
		e, why, out = c.group.ctl.TakeElement(p, c.owner, out)
		if why == clc.DiagNone {
			c.element = &e
		}
		return out
	})
	if why != clc.DiagNone {
		return &transport.DeclinedError{Why: why}
	}
	return nil
}

// StartLink implements [transport.Binding].
func (c *binding) StartLink(r core.Result, tell func(core.LinkStep)) error {
	return c.group.start(c, r, tell)
}

// Attach implements [transport.Binding].
func (c *binding) Attach(_ context.Context, r core.Result) error {
	g := c.group
	if c.first {
		c.fabric.filtered.forget(c.remote) // rule: internal/host TestSMCRImpatient
	}
	if c.first {
		g.end.confirmed()
	} else if c.element == nil {
		if err := g.checkConfirm(r); err != nil {
			return err
		}
		if err := c.takeElement(r.R); err != nil {
			return err
		}
	}
	g.room.note()
	if surplus := c.ring.Load() - int64(r.R.RMBESize.Bytes()); surplus > 0 {
		c.ring.Add(-surplus)
		g.fabric.ringBytes.Add(-surplus)
	}
	if c.first {
		g.mu.Lock()
		e := g.ctl.FirstElement()
		g.mu.Unlock()
		c.element = &e
	}
	err := g.attach(c, r)
	if err != nil && g.end.isOver() {
		return fmt.Errorf("%w: %w", transport.ErrGone, err)
	}
	return err
}

// attach has a connection write over one of the links. With the lock none of them goes down meanwhile.
func (g *group) attach(c *binding, r core.Result) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	// A peer that does not say "no eyecatcher" keeps to RFC 7609, which has one in all elements: it expects it in ours too.
	eyecatcher := g.ctl.PeerEyecatcher()
	return g.links.begin(c, func(l *groupLink, el core.Element) error {
		return c.link.Attach(l.net, link.PeerRMBE{
			AlertToken: r.R.AlertToken, RKey: el.RKey, Addr: el.VA, Index: 1, Size: r.R.RMBESize, Eyecatcher: eyecatcher,
		}, eyecatcher) // rule: internal/host TestSMCREyecatcher: }, eyecatcher) -> }, false)
	})
}

// Stream implements [transport.Binding].
func (c *binding) Stream() stream.Config { return c.link.Stream() }

// AppendHeader implements [transport.Binding].
func (c *binding) AppendHeader(b []byte, h cdc.Header, own bool) []byte {
	return c.link.Message(h, own).Append(b)
}

// Detach implements [transport.Binding].
func (c *binding) Detach(clean bool) {
	if clean && !c.awaits {
		c.awaits = true
		c.group.peer.awaits(+1)
	}
	g := c.group
	if g != nil {
		g.mu.Lock()
		c.detached = true
		if c.quiet > 0 {
			c.quiet = 0 // who has closed asks no more
			g.loop.afterwards(func() { g.do(g.conns.updateTests) })
		}
		g.mu.Unlock()
	}
	owner := c.owner
	c.owner = 0
	if clean && c.link != nil {
		c.closing.Store(uint32(owner)) // what it has said last may have to go over another link
		owner = 0
	}
	if c.link != nil {
		c.link.Detach()
		select {
		case <-c.link.Sent():
			owner = max(owner, core.Owner(c.closing.Swap(0)))
		default:
		}
	}
	if owner != 0 {
		g.conns.release(owner)
	}
}

// Release implements [transport.Binding].
func (c *binding) Release(clean bool) {
	if c.awaits {
		c.awaits = false
		c.group.peer.awaits(-1)
	}
	if c.link != nil {
		c.link.Release()
	}
	if c.group == nil {
		return
	}
	if c.rmb != nil {
		c.group.rmbs.release(c.rmb, clean)
		c.rmb = nil
	}
	if c.first && !clean {
		c.group.end.abandon() // unless its first contact was confirmed
	}
}

// Confirm implements [transport.Binding].
func (c *binding) Confirm(r core.Result) transport.Membership {
	if r.FirstContact {
		c.fabric.confirm(c.group, r)
	}
	c.fabric.mu.Lock()
	defer c.fabric.mu.Unlock()
	return transport.MembershipOf(c.lg.ID, &c.lg.Result)
}

// OutOfSync implements [transport.Binding].
func (c *binding) OutOfSync() { c.fabric.doubt(c.lg) }

// Declined implements [transport.Binding].
func (c *binding) Declined() {
	if g, err := c.fabric.group(c.lg); err == nil {
		g.room.declined()
	}
}

// Leave implements [transport.Binding].
func (c *binding) Leave() { c.fabric.leave(c.lg) }

// ReturnPages implements [transport.Binding].
func (c *binding) ReturnPages(from, to int) error { return c.link.ReturnPages(from, to) }

// Association implements [transport.Binding].
func (c *binding) Association() transport.Association { return c.group }

// Flush implements [transport.Binding]: it waits for the acknowledgement of our Closed, behind all data. With TCP the kernel would see to it that a peer
// gets all that, though the process ends the next moment. RFC 7609 p.83, 3A; Linux net/smc waits 2 seconds as well, and not
// for longer, since its kernel goes on. We wait as long as something arrives.
func (c *binding) Flush() {
	select {
	case <-c.link.Sent():
		return
	default:
	}
	end := time.Now().Add(lastBytesTime)
	quiet := time.NewTimer(pendingCloseTime)
	defer quiet.Stop()
	for before := c.link.Arrived(); ; {
		select {
		case <-c.link.Sent():
			return
		case <-c.group.loop.stopped:
			return
		case now := <-quiet.C:
			arrived := c.link.Arrived()
			if arrived == before || now.After(end) {
				return
			}
			before = arrived
			quiet.Reset(pendingCloseTime)
		}
	}
}

// Suspect implements [transport.Binding].
func (c *binding) Suspect() { c.group.peer.suspect() }

// MayMiss implements [transport.Binding].
func (c *binding) MayMiss() bool { return c.link.Failed() }

// SetNoDelay implements [transport.Binding].
func (c *binding) SetNoDelay(on bool) { c.link.SetNoDelay(on) }

// LinkNumber implements [transport.Binding].
func (c *binding) LinkNumber() uint8 { return c.group.links.numberOf(c) }

// Traits implements [transport.Binding].
func (c *binding) Traits() transport.Traits {
	return transport.Traits{KeepAlive: true, Tests: true, Overtaken: true}
}
