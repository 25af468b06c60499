package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// An smcrPath reaches a peer on another machine by RDMA.
type smcrPath struct {
	fabric *smcrFabric
	local  netip.Addr // our end of the TCP connection
	remote netip.Addr // the other one

	nets []netip.Prefix // of the TCP connection's interface, for version 1; nil if that is off
	vlan uint16         // of that interface, likewise; 0 if it is in none
	rnic *rnic.Device   // of ours; a server's is nil before it has the Proposal
	v1   *rnic.Device   // the one of version 1: with a link-local address of the same interface, or rnic; nil if there is none
	why  clc.Diagnosis  // there is none
	w    *tcpwatch.Watcher
}

// newPath returns the path for a connection between two addresses. The caller calls Close when the handshake is over.
func (f *smcrFabric) newPath(role core.Role, local, remote netip.Addr) *smcrPath {
	w := &smcrPath{fabric: f, local: local, remote: remote.Unmap()}
	var err error
	if w.w, err = f.watch.get(); err != nil {
		w.why = rnicReason(err)
		return w
	}
	if f.cfg.V1 {
		f.cfg.Namespace(func() { w.nets = rnic.NetworksOf(local.Unmap()) })
		w.vlan = f.rnics.VLAN(local)
	}
	if !f.cfg.HaveUEID && !f.cfg.V1 {
		w.why = clc.DiagNoUEID
	} else if role == core.RoleClient {
		w.open(netip.Addr{})
		w.openV1(netip.IPv6LinkLocalAllNodes())
	}
	return w
}

// open opens the device for a peer's RNIC, or finds out why there is none.
func (w *smcrPath) open(remote netip.Addr) {
	addr, err := w.fabric.rnics.Choose(w.local, remote)
	if err == nil {
		w.rnic, err = w.fabric.rnics.Acquire(addr)
	}
	if err != nil {
		w.why = rnicReason(err)
	}
}

// openV1 opens the device for version 1 that reaches a peer's, of which the family of the address is all that matters. RNICs of version 1 are
// addressed by the GID at index 0 of their port, which is link-local, with soft-RoCE and with adapters alike (Linux net/smc
// takes the first one). So that is ours, too, where the interface has such an address; a peer with an IP address in its place
// gets one of the same family.
//
// The RNIC has to be in the network that the peers have in common, the one of the TCP connection (RFC 7609 p.31), and in its VLAN: RoCE "cannot
// traverse multiple VLANs" (RFC 7609 p.89).
func (w *smcrPath) openV1(remote netip.Addr) {
	if w.rnic == nil || !w.fabric.cfg.V1 || w.v1 != nil {
		return
	}
	addr := w.rnic.Addr().WithZone("")
	inNetwork := slices.ContainsFunc(w.nets, func(p netip.Prefix) bool { return p.Contains(addr) })
	inVLAN := addr == w.local.Unmap() || w.fabric.rnics.VLAN(addr) == w.vlan // rule: TestSMCRVLANDevice: w.fabric.rnics.VLAN(addr) == w.vlan -> true
	if !inNetwork || !inVLAN {                                               // rule: TestSMCRv1Network: !inNetwork -> false
		return
	}
	if remote.IsLinkLocalUnicast() || remote.IsLinkLocalMulticast() { // rule: TestSMCRv1LinkLocal
		if local := w.fabric.rnics.LinkLocal(w.rnic.RDMA().Interface()); local.IsValid() {
			var err error
			if w.v1, err = w.fabric.rnics.Acquire(local); err == nil {
				return
			}
			w.v1 = nil
		}
		if remote.IsLinkLocalUnicast() && addr.Is4() {
			return // packets between the two families there are none
		}
	} else if remote.Is4() != addr.Is4() {
		return
	}
	w.rnic.Retain()
	w.v1 = w.rnic
}

// device returns the one of a version.
func (w *smcrPath) device(v clc.Version) *rnic.Device {
	if v == clc.V1 {
		return w.v1
	}
	return w.rnic
}

// Close ends the use of the device by the handshake. Link groups have their own.
func (w *smcrPath) Close() {
	for _, n := range [...]*rnic.Device{w.rnic, w.v1} {
		if n != nil {
			n.Release()
		}
	}
	w.rnic, w.v1 = nil, nil
}

func (w *smcrPath) Mode() core.Mode            { return core.SMCR }
func (w *smcrPath) Watcher() *tcpwatch.Watcher { return w.w }

func (w *smcrPath) Offer(caps *core.Capabilities) {
	caps.PeerID = w.fabric.cfg.PeerID
	caps.Refuse = w.why
	caps.Networks = w.nets
	if w.rnic != nil {
		caps.RoCEv1, caps.RoCEv2 = w.ends()
	}
}

// ends is our device as each version knows it. Version 1 runs over RoCEv2 here.
func (w *smcrPath) ends() (v1, v2 *core.RNIC) {
	if w.v1 != nil {
		v1 = w.v1.RNIC()
	}
	return v1, w.rnic.RNIC()
}

func (w *smcrPath) Traits() transport.PathTraits {
	return transport.PathTraits{Stranger: true, Turns: true}
}

func (w *smcrPath) Alive() bool { return true } // as far as anybody knows

// Examine opens the device that reaches the client's.
func (w *smcrPath) Examine(p *clc.Proposal, h *core.Handshake, admitted bool) {
	if w.why == clc.DiagNone && !admitted {
		w.why = clc.DiagBusy
	}
	if w.rnic == nil && w.why == clc.DiagNone {
		switch {
		case p.Ext != nil && p.V2.HasR():
			w.open(p.Ext.GID.Addr())
		case p.V1.HasR() && w.fabric.cfg.V1:
			w.open(p.GID.Addr())
		}
	}
	if w.rnic == nil {
		h.SetRNIC(nil, nil, w.why)
		return
	}
	if p.V1.HasR() {
		w.openV1(p.GID.Addr())
	}
	v1, v2 := w.ends()
	h.SetRNIC(v1, v2, clc.DiagNone)
}

// LinkMissing takes no note of what failed at once: that was not for want of packets.
func (w *smcrPath) LinkMissing(waited time.Duration) {
	if waited >= filteredAfter {
		w.fabric.filtered.note(w.remote, time.Now()) // rule: TestSMCRFiltered
	}
}

func (w *smcrPath) Prepare(ctx context.Context, q transport.Request) (transport.Binding, core.Resources, error) {
	if w.device(q.Choice.Version) == nil {
		return nil, core.Resources{}, rnic.ErrNone
	}
	for {
		c := &smcrBinding{fabric: w.fabric, remote: w.remote, lost: q.Lost}
		var err error
		if c.lg, c.first, err = w.join(ctx, q); err != nil {
			return nil, core.Resources{}, err
		}
		r, err := c.prepare(ctx, w, q)
		if err == nil {
			return c, r, nil
		}
		c.Detach(false)
		c.Release(false)
		c.Leave()
		// A server that finds the group dead, or the peer silent, makes another one. What a client joins its server has said.
		if q.Choice.R != nil || c.first || ctx.Err() != nil || c.group != nil && !c.group.isOver() && !c.group.late() {
			return nil, r, err
		}
	}
}

// An smcrBinding is the binding of SMC-R: an RMB of ours, an element of one of the peer's, and a link between.
type smcrBinding struct {
	fabric   *smcrFabric
	lg       *core.LinkGroup
	group    *smcrGroup    // lg at work
	first    bool          // our connection made the group
	remote   netip.Addr    // the other end of the TCP connection
	rmb      *smcrRMB      // nil once released
	link     *link.Carrier // nil before prepare
	owner    core.Owner    // of the peer's element
	closing  atomic.Uint32 // the owner, from its last word until nothing is on its way
	detached bool          // nothing new is sent; guarded by the group's mu
	ring     atomic.Int64  // bytes of the send ring that count in the host's budget
	element  *core.Element // nil before it is known
	named    *smcrLink     // by the handshake; nil before prepare
	awaits   bool          // said its last word, and is not released
	quiet    time.Duration // how long its link may be silent, 0: as the host likes; guarded by the group's mu
	lost     func()        // the peer has given the element to another connection
}

// prepare makes our RMB known to the peer, unless the CLC messages do, and on the client readies our end of the link.
func (c *smcrBinding) prepare(ctx context.Context, w *smcrPath, q transport.Request) (r core.Resources, err error) {
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
		size = min(size, wire.MaxRFCSizeCode) // rule: TestSMCRBufferSize: min(size, wire.MaxRFCSizeCode) -> size
	}
	if c.rmb, err = g.takeRMB(ctx, size); err != nil {
		return r, err
	}
	ring := c.ringSize(q.Choice)
	err = w.fabric.takeMemory(&w.fabric.ringBytes, ring)
	for errors.Is(err, errBudget) && w.fabric.shed(ctx) {
		err = w.fabric.takeMemory(&w.fabric.ringBytes, ring)
	}
	if err != nil { // rule: TestSMCRBudget
		return r, err
	}
	c.ring.Store(ring)
	c.link, err = g.net.NewCarrier(link.CarrierConfig{
		RMB: c.rmb.rmb, Wake: q.Wake, SendBuffer: int(ring),
		Done: func() {
			g.fabric.ringBytes.Add(-c.ring.Swap(0))
			g.freed.add(core.Owner(c.closing.Swap(0)))
			if g.full.Load() {
				g.wake()
			}
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
			err = g.links[0].net.ReadyToReceive(peerOf(server))
		} else {
			err = c.takeElement(server)
		}
		if err != nil {
			return r, err
		}
	}
	l := g.named(q.Choice.R)
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
func (c *smcrBinding) takesLarge(choice core.Choice) bool {
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
func (c *smcrBinding) checkRoute(choice core.Choice) (direct bool, err error) {
	route := c.group.rnic.Route(choice.GID.Addr())
	if choice.R != nil && choice.Version == clc.V2 && !choice.Direct {
		switch route {
		case rnic.RouteNone:
			return false, &transport.DeclinedError{Why: clc.DiagNoRoute}
		case rnic.RouteDirect:
			return false, &transport.DeclinedError{Why: clc.DiagIndirect} // rule: TestSMCRIndirect: clc.DiagIndirect -> clc.DiagNoRoute
		}
	}
	if route != rnic.RouteDirect { // rule: TestSMCRRoutedMTU: route != rnic.RouteDirect -> false
		c.group.net.LimitMTU(wire.MTU1024)
	}
	return route == rnic.RouteDirect, nil
}

// ringSize is how large a send ring is asked for. It is no larger than the receive buffer that a connection has unless something is
// said, which is small where memory is; and no larger than the peer's element, as far as that is known.
func (c *smcrBinding) ringSize(choice core.Choice) int64 {
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
func (c *smcrBinding) takeElement(p *clc.ParamsR) error {
	var why clc.Diagnosis
	c.group.do(func(now time.Time, out []core.Output) []core.Output {
		c.owner = c.group.newOwner(c)
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

func (c *smcrBinding) StartLink(r core.Result, tell func(core.LinkStep)) error {
	return c.group.start(c, r, tell)
}

func (c *smcrBinding) Attach(_ context.Context, r core.Result) error {
	g := c.group
	if c.first {
		c.fabric.filtered.forget(c.remote)
	}
	if c.first {
		g.confirmed()
	} else if c.element == nil {
		if err := g.checkConfirm(r); err != nil {
			return err
		}
		if err := c.takeElement(r.R); err != nil {
			return err
		}
	}
	g.noteRoom()
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
	if err != nil && g.isOver() {
		return fmt.Errorf("%w: %w", transport.ErrGone, err)
	}
	return err
}

// attach has a connection write over one of the links. With the lock none of them goes down meanwhile.
func (g *smcrGroup) attach(c *smcrBinding, r core.Result) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	// A peer that does not say "no eyecatcher" keeps to RFC 7609, which has one in all elements: it expects it in ours too.
	eyecatcher := g.ctl.PeerEyecatcher()
	return g.begin(c, func(l *smcrLink, el core.Element) error {
		return c.link.Attach(l.net, link.PeerRMBE{
			AlertToken: r.R.AlertToken, RKey: el.RKey, Addr: el.VA, Index: 1, Size: r.R.RMBESize, Eyecatcher: eyecatcher,
		}, eyecatcher) // rule: TestSMCREyecatcher: }, eyecatcher) -> }, false)
	})
}

func (c *smcrBinding) Stream() stream.Config { return c.link.Stream() }

func (c *smcrBinding) AppendHeader(b []byte, h cdc.Header, own bool) []byte {
	return c.link.Message(h, own).Append(b)
}

func (c *smcrBinding) Detach(clean bool) {
	if clean && !c.awaits {
		c.awaits = true
		c.group.awaits(+1)
	}
	g := c.group
	if g != nil {
		g.mu.Lock()
		c.detached = true
		if c.quiet > 0 {
			c.quiet = 0 // who has closed asks no more
			g.afterwards(func() { g.do(g.updateTests) })
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
		g.releaseElement(owner)
	}
}

func (c *smcrBinding) Release(clean bool) {
	if c.awaits {
		c.awaits = false
		c.group.awaits(-1)
	}
	if c.link != nil {
		c.link.Release()
	}
	if c.group == nil {
		return
	}
	if c.rmb != nil {
		c.group.releaseRMB(c.rmb, clean)
		c.rmb = nil
	}
	if c.first && !clean {
		c.group.abandon() // unless its first contact was confirmed
	}
}

func (c *smcrBinding) Confirm(r core.Result) transport.Membership {
	if r.FirstContact {
		c.fabric.confirm(c.group, r)
	}
	c.fabric.mu.Lock()
	defer c.fabric.mu.Unlock()
	return transport.MembershipOf(c.lg.ID, &c.lg.Result)
}

func (c *smcrBinding) OutOfSync() { c.fabric.doubt(c.lg) }

func (c *smcrBinding) Declined() {
	if g, err := c.fabric.group(c.lg); err == nil {
		g.declined()
	}
}

func (c *smcrBinding) Leave() { c.fabric.leave(c.lg) }

func (c *smcrBinding) ReturnPages(from, to int) error { return c.link.ReturnPages(from, to) }

func (c *smcrBinding) Association() transport.Association { return c.group }

// Flush waits for the acknowledgement of our Closed, behind all data. With TCP the kernel would see to it that a peer
// gets all that, though the process ends the next moment. RFC 7609 p.83, 3A; Linux net/smc waits 2 seconds as well, and not
// for longer, since its kernel goes on. We wait as long as something arrives.
func (c *smcrBinding) Flush() {
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
		case <-c.group.stopped:
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

func (c *smcrBinding) Suspect() { c.group.suspect() }

func (c *smcrBinding) MayMiss() bool { return c.link.Failed() }

func (c *smcrBinding) SetNoDelay(on bool) { c.link.SetNoDelay(on) }

func (c *smcrBinding) LinkNumber() uint8 { return c.group.numberOf(c) }

func (c *smcrBinding) Traits() transport.Traits {
	return transport.Traits{KeepAlive: true, Tests: true, Overtaken: true}
}
