package smcr

import (
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

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
	if l := g.links.get(num); l != nil && l.num == num { // rule: internal/host TestSMCRAddLinkAgain
		n.Release() // that number was asked for twice: what came first is the answer
		return
	}
	l, err := g.links.add(n, num)
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
