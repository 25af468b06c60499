package smcr

import (
	"context"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A preparation gives a binding its part in a link group, before the first message that tells the
// peer of it. One goroutine runs it; it takes the locks of group and fabric as the methods do that
// it calls, and holds none of them while it waits.
type preparation struct {
	*binding
	path   *Path
	choice core.Choice
	size   wire.SizeCode // of our RMB
	wake   func()
}

// prepare makes our RMB known to the peer, unless the CLC messages do, and on the client readies
// our end of the link.
func (c *binding) prepare(ctx context.Context, w *Path, q transport.Request) (core.Resources, error) {
	p := &preparation{binding: c, path: w, choice: q.Choice, size: wire.SizeCodeFor(q.Buffer), wake: q.Wake}
	if err := p.joinGroup(); err != nil {
		return core.Resources{}, err
	}
	if err := p.takeBuffers(ctx); err != nil {
		return core.Resources{}, err
	}
	var direct bool
	if c.first {
		var err error
		if direct, err = p.checkRoute(); err != nil {
			return core.Resources{}, err
		}
	}
	if q.Choice.R != nil { // we are the client
		if err := p.takeServer(q.Choice.R); err != nil {
			return core.Resources{}, err
		}
	}
	return p.resources(direct)
}

// joinGroup finds the group at work, or makes it if the connection is its first.
func (p *preparation) joinGroup() (err error) {
	if p.first {
		p.group, err = newGroup(p.fabric, p.lg, p.path.device(p.choice.Version))
	} else {
		p.group, err = p.fabric.group(p.lg)
	}
	return err
}

// takeBuffers takes an RMB, and a send ring.
func (p *preparation) takeBuffers(ctx context.Context) (err error) {
	g := p.group
	if !p.takesLarge() {
		p.size = min(p.size, wire.MaxRFCSizeCode) // rule: internal/host TestSMCRBufferSize: min(p.size, wire.MaxRFCSizeCode) -> p.size
	}
	if p.rmb, err = g.rmbs.take(ctx, p.size); err != nil {
		return err
	}
	n := p.ringSize()
	err = p.ring.take(ctx, p.fabric, n)
	if err != nil { // rule: internal/host TestSMCRBudget
		return err
	}
	c := p.binding // the preparation is not to live as long
	p.link, err = g.net.NewCarrier(link.CarrierConfig{
		RMB: p.rmb.rmb, Wake: p.wake, SendBuffer: int(n),
		Done: func() {
			c.ring.release()
			g.conns.freed.add(llcflow.Owner(c.closing.Swap(0)))
			g.room.checkLater()
		},
	})
	if err != nil {
		p.ring.release()
	}
	return err
}

// takesLarge reports whether the peer is known to take elements of RMBs above 512 KiB, "largest
// size supported by this architecture" (RFC 7609 p.100): every Linux does, and so do we, since we
// say that we are Linux. Each side says so in its first message of a first contact in version 2; a
// server does not know it yet when it sends its Accept, but Linux kernels alone offer version 2
// without a peer ID.
func (p *preparation) takesLarge() bool {
	switch {
	case p.choice.Version == clc.V1:
		return false
	case !p.first:
		p.fabric.mu.Lock()
		defer p.fabric.mu.Unlock()
		return p.lg.Result.PeerOS == clc.OSLinux
	case p.choice.R != nil: // we are the client
		return p.choice.PeerOS == clc.OSLinux
	}
	return p.choice.PeerID == wire.PeerID{}
}

// ringSize is how large a send ring is asked for. It is no larger than the receive buffer that a
// connection has unless something is said, which is small where memory is; and no larger than the
// peer's element, as far as that is known.
func (p *preparation) ringSize() int64 {
	size := min(link.DefaultSendBuffer, p.fabric.cfg.ReadBuffer)
	if p.choice.R != nil {
		size = min(size, p.choice.R.RMBESize.Bytes())
	}
	return int64(size)
}

// checkRoute reports whether no router is between our RNIC and the peer's. A client compares it
// with the statement of the server in version 2, which decides by it whose MAC packets go to: Linux
// net/smc does not take "indirect" for a path without a router, and looks no further where the
// server says "direct". Neither do we.
//
// Behind a router packets are no larger than Ethernet has room for, since an RNIC does not learn
// which sizes the networks there can take.
func (p *preparation) checkRoute() (direct bool, err error) {
	route := p.group.rnic.Route(p.choice.GID.Addr())
	if p.choice.R != nil && p.choice.Version == clc.V2 && !p.choice.Direct {
		switch route {
		case rnic.RouteNone:
			return false, &transport.DeclinedError{Why: clc.DiagNoRoute}
		case rnic.RouteDirect:
			return false, &transport.DeclinedError{Why: clc.DiagIndirect} // rule: internal/host TestSMCRIndirect: clc.DiagIndirect -> clc.DiagNoRoute
		}
	}
	if route != rnic.RouteDirect { // rule: internal/host TestSMCRRoutedMTU: route != rnic.RouteDirect -> false
		p.group.net.LimitMTU(wire.MTU1024)
	}
	return route == rnic.RouteDirect, nil
}

// takeServer takes a server's end of the link, or its element where there is a link already.
func (p *preparation) takeServer(server *clc.ParamsR) error {
	if p.first {
		return p.group.links.all[0].net.ReadyToReceive(peerOf(server))
	}
	return p.takeElement(server)
}

// resources returns the values that the peer is told: the link that we name, and our RMB on it.
func (p *preparation) resources(direct bool) (core.Resources, error) {
	l := p.group.links.named(p.choice.R)
	p.named = l
	token, ok := p.rmb.rmb.Token(l.net)
	if !ok {
		return core.Resources{}, transport.ErrGone
	}
	us := l.rnic.RNIC()
	return core.Resources{
		FirstContact: p.first,
		Direct:       direct,
		ClientGIDs:   p.clientGIDs(us.GID),
		R: &clc.ParamsR{
			GID: us.GID, MAC: us.MAC, QPN: l.net.QPN(), PSN: l.net.PSN(), MTU: l.net.MTU(),
			RKey: token.RKey, RMBAddr: token.Addr, RMBEIndex: 1, RMBESize: p.rmb.rmb.Size(), AlertToken: p.link.AlertToken(),
		},
	}, nil
}

// clientGIDs are the addresses of our RNICs that links of the group may be on; us is the address of
// the named link.
func (p *preparation) clientGIDs(us wire.GID) []wire.GID {
	if !p.first {
		return []wire.GID{us}
	}
	rnics := p.fabric.rnics
	list := rnics.Alternatives(p.group.rnic, p.choice.Version)
	if p.choice.Version == clc.V2 && len(list) > 1 {
		list = rnics.Eligible(list, p.choice.GID)
	}
	return gidsOf(list)
}

// peerOf is the peer's end of a link as it has told it.
func peerOf(r *clc.ParamsR) link.Peer {
	return link.Peer{GID: r.GID, QPN: r.QPN, PSN: r.PSN, MTU: r.MTU}
}
