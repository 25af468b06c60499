package smcr

import (
	"sync"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// A linkOpener makes our ends of further links of a group. The group's mu guards spare and oneEach.
type linkOpener struct {
	group   *group
	opening sync.WaitGroup // goroutines that open devices
	spare   spareQP        // offered by ADD LINK where there will be no link; zero if there is none
	oneEach bool           // of a server: both sides had one RNIC at first

	routesAsked time.Time // see routesNamed; of the group's goroutine
}

// A spareQP is a queue pair of which only the number is of use.
type spareQP struct {
	pd verbs.PD
	cq verbs.CQ
	qp verbs.QP
}

// routesNamed returns how we get to the RNICs that a message about another link names, nil if it is
// none, or another one has just come: nobody is to have us ask the kernel all the time. It is
// called on the group's goroutine alone.
func (o *linkOpener) routesNamed(ev link.Event) []core.PairRoute {
	g := o.group
	if ev.Kind != link.EventLLC || g.lg.Key.Version != clc.V2 || time.Since(o.routesAsked) < routesPause {
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
	o.routesAsked = time.Now()
	return g.fabric.rnics.RoutesTo(g.fabric.rnics.Alternatives(g.rnic, clc.V2), gids)
}

// open makes our end of another link, at once where the device is open, else on a goroutine. g.mu is held.
func (o *linkOpener) open(out llcflow.OpenLink) {
	g := o.group
	if o.oneEach && out.GID == g.rnic.Verbs().GID() && g.ctl.State() == llcflow.StateAdding { // rule: internal/host TestSMCRNewAdapter: g.ctl.State() == llcflow.StateAdding -> true
		o.answer(out.Link, o.openSpare(g.rnic), nil)
		return
	}
	if n := g.devices.at(out.GID); n != nil {
		n.Retain()
		o.addLink(n, out.Link)
		return
	}
	o.opening.Go(func() {
		n, err := g.fabric.rnics.Acquire(g.fabric.rnics.Zoned(out.GID.Addr(), g.rnic))
		if err == nil {
			g.devices.watch(n)
		}
		o.acquired(n, err, out.Link)
	})
}

// acquired takes the device for a link, or the error for which there is none.
func (o *linkOpener) acquired(n *rnic.Device, err error, num llc.LinkNum) {
	g := o.group
	g.do(func(_ time.Time, out []llcflow.Output) []llcflow.Output {
		g.queue = out
		switch {
		case err == nil && g.end.gone:
			n.Release()
		case g.end.gone:
		case err != nil:
			o.answer(num, core.LinkEnd{}, nil)
		default:
			o.addLink(n, num)
		}
		return g.queue
	})
}

// addLink makes our end of a link on a device, which is the link's from now on. g.mu is held.
func (o *linkOpener) addLink(n *rnic.Device, num llc.LinkNum) {
	g := o.group
	if l := g.links.get(num); l != nil && l.num == num { // rule: internal/host TestSMCRAddLinkAgain
		n.Release() // that number was asked for twice: the first link is the answer
		return
	}
	l, err := g.links.add(n, num)
	if err != nil {
		g.fabric.cfg.Logger.Warn("no further link", "device", n.Verbs().Addr(), "err", err)
		o.answer(num, core.LinkEnd{}, nil)
		return
	}
	o.answer(num, l.local(), g.rmbs.tokens(l))
}

// answer tells llcflow our end of a link, a zero one if there is none, and where our RMBs are on it.
// g.mu is held.
func (o *linkOpener) answer(num llc.LinkNum, end core.LinkEnd, tokens map[llcflow.RMBID]llc.RToken) {
	g := o.group
	g.queue = g.ctl.LinkOpened(time.Now(), num, end, tokens, g.queue)
}

// openSpare makes the queue pair that a server offers as the end of a second link where both have
// one adapter, so that there will be none (RFC 7609 p.35): only its number is of use. g.mu is held.
func (o *linkOpener) openSpare(n *rnic.Device) core.LinkEnd {
	if o.group.lg.Key.Role == core.RoleClient {
		return core.LinkEnd{}
	}
	pd, err := n.Verbs().NewPD()
	if err != nil {
		return core.LinkEnd{}
	}
	o.dropSpare()
	o.spare.pd = pd
	cq, err := n.Verbs().NewCQ(2, nil)
	if err != nil {
		o.dropSpare()
		return core.LinkEnd{}
	}
	o.spare.cq = cq
	if o.spare.qp, err = pd.NewQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1}); err != nil {
		o.dropSpare()
		return core.LinkEnd{}
	}
	us := n.RNIC()
	return core.LinkEnd{
		GID: us.GID, MAC: us.MAC, QPN: o.spare.qp.QPN(), PSN: verbs.RandomPSN(), MTU: n.Verbs().MTU(),
	}
}

// dropSpare takes the spare queue pair away. g.mu is held.
func (o *linkOpener) dropSpare() {
	s := o.spare
	o.spare = spareQP{}
	// The errors are of a device that is gone.
	if s.qp != nil {
		s.qp.Close()
	}
	if s.cq != nil {
		s.cq.Close()
	}
	if s.pd != nil {
		s.pd.Close()
	}
}
