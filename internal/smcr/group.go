package smcr

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// A group is a link group at work: what core decides, done with links and memory. Links are in links.go.
//
// Once its first contact begins it has a goroutine, which hands LLC messages to core, and tells connections what
// befalls the group. Others call core too, with mu held; what would need a lock of a connection they leave to the
// goroutine. mu comes before the fabric's.
type group struct {
	fabric *Fabric
	lg     *core.LinkGroup
	rnic   *rnic.Device // of the first link
	net    *link.Group
	done   chan struct{} // closed when its connections must end

	kick    chan struct{} // there is something in later
	stopped chan struct{} // closed when the goroutine has ended

	linksLost func() // tells the connections that it had when it ended; of the goroutine

	links   groupLinks
	devices groupDevices
	opener  linkOpener
	conns   groupConns
	rmbs    rmbPool
	room    groupRoom
	stalls  stallDetector
	peer    peerCheck

	mu    sync.Mutex
	ctl   *core.LinkControl   // nil before the first contact begins
	tell  func(core.LinkStep) // to the handshake of the first contact
	timer *time.Timer
	inUse bool               // the first contact was confirmed
	fate  core.ConnEventKind // what connections are told at the end
	over  bool               // GroupEnding
	gone  bool               // GroupEnded: links and memory are
	queue []core.Output
	later []func() // for the goroutine
}

// Done implements [transport.Association].
func (g *group) Done() <-chan struct{} { return g.done }

// newGroup makes what a new link group consists of: a link whose queue pair the peer may be told.
func (f *Fabric) newGroup(lg *core.LinkGroup, n *rnic.Device) (*group, error) {
	g := &group{
		fabric: f, lg: lg, rnic: n, net: link.NewGroup(), done: make(chan struct{}),
		kick: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	g.rmbs.init(g)
	g.links.group, g.devices.group, g.opener.group = g, g, g
	g.conns.group, g.conns.all = g, make(map[core.Owner]*binding)
	g.room.group, g.stalls.group, g.peer.group = g, g, g
	n.Retain()
	l, err := g.links.add(n, 0)
	if err != nil {
		g.net.Close()
		return nil, err
	}
	l.up = true
	l.counts.Store(true)
	g.links.upCount.Store(1)
	g.devices.watch(n)
	f.mu.Lock()
	f.running[lg] = g
	f.mu.Unlock()
	f.cfg.Owner.GroupMade(g)
	return g, nil
}

// start begins the first contact: r has the peer's end of the link.
func (g *group) start(c *binding, r core.Result, tell func(core.LinkStep)) error {
	l, err := g.links.beginFirst(r)
	if err != nil {
		return err
	}
	cfg := core.ControlConfig{Result: r, Local: l.local(), GroupID: g.lg.ID, RMB: c.rmb.id, MaxLinks: uint8(g.fabric.cfg.MaxLinks), TestInterval: g.fabric.cfg.KeepAlive}
	if token, ok := c.rmb.rmb.Token(l.net); ok {
		cfg.Token = llc.RToken{RKey: token.RKey, VA: token.Addr}
	}
	cfg.RNICs = g.fabric.rnics.Alternatives(g.rnic, r.Version)
	g.opener.oneEach = r.Role == core.RoleServer && len(cfg.RNICs) < 2 && r.Version == clc.V2 && len(r.PeerGIDs) < 2 // rule: internal/host TestSMCRSecondLinkUnasked: r.Role == core.RoleServer -> true
	var routes []core.PairRoute
	if len(r.PeerGIDs) > 1 { // the first one is that of the link
		routes = g.fabric.rnics.RoutesTo(cfg.RNICs, r.PeerGIDs[1:]) // rule: internal/host TestSMCRUnreachableGID
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c.rmb.known = true
	c.owner = g.conns.add(c)
	cfg.Owner = c.owner
	g.ctl = core.NewLinkControl(cfg)
	g.ctl.SetRoutes(routes)
	g.tell = tell
	go g.run()
	g.doLocked(g.ctl.Start)
	return nil
}

// do has core decide something, and carries it out. Not before the first contact has begun.
func (g *group) do(f func(now time.Time, out []core.Output) []core.Output) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.doLocked(f)
}

func (g *group) doLocked(f func(now time.Time, out []core.Output) []core.Output) {
	g.queue = f(time.Now(), g.queue)
	for len(g.queue) > 0 {
		out := g.queue[0]
		g.queue = g.queue[1:]
		g.carryOut(out)
	}
	g.queue = nil
}

// carryOut does one thing that core decided. g.mu is held.
func (g *group) carryOut(out core.Output) {
	switch out := out.(type) {
	case core.ReadyToSend:
		g.links.readyToSend(out)
	case core.OpenLink:
		g.opener.open(out)
	case core.ConnectLink:
		g.links.connectLink(out)
	case core.LinkUp:
		g.links.linkUp(out)
	case core.LinkLeaving:
		g.links.linkLeaving(out)
	case core.LinkDown:
		g.links.linkDown(out)
	case core.CloseLink:
		g.links.closeLink(out)
	case core.SendLLC:
		g.links.sendLLC(out)
	case core.LinkStep:
		g.tell(out)
	case core.RMBConfirmed:
		g.rmbs.answer(out.ID, clc.DiagNone)
	case core.RMBRefused:
		g.rmbs.answer(out.ID, out.Why)
	case core.RMBDeleted:
		g.rmbs.deleted(out.ID)
	case core.ElementLost:
		g.conns.elementLost(out)
	case core.GroupEnding:
		g.ending(out)
	case core.GroupEnded:
		g.gone = true
		g.stalls.stop()
		g.peer.stop()
		g.opener.dropSpare()
		g.stopTimer()
		g.afterwards(func() {})
	case core.SetTimer:
		wait := time.Until(out.At)
		if g.timer == nil {
			g.timer = time.AfterFunc(wait, g.onTimer)
		} else {
			g.timer.Reset(wait)
		}
	case core.ClearTimer:
		g.stopTimer()
	default:
		panic(fmt.Sprintf("smcr: impossible output %T", out))
	}
}

// linkFailed has core take that a link has failed, while one of its outputs is carried out. g.mu is held.
func (g *group) linkFailed(num llc.LinkNum, err error) {
	g.queue = g.ctl.LinkFailed(time.Now(), num, err, g.queue)
}

func (g *group) stopTimer() {
	if g.timer != nil {
		g.timer.Stop()
	}
}

func (g *group) onTimer() { g.do(g.advance) }

func (g *group) advance(now time.Time, out []core.Output) []core.Output {
	if g.gone {
		return out
	}
	g.links.hear(now)
	return g.ctl.Advance(now, out)
}

// afterwards has the goroutine do something. g.mu is held.
func (g *group) afterwards(f func()) {
	g.later = append(g.later, f)
	g.wake()
}

// wake has the goroutine look whether there is something to do. It does not block.
func (g *group) wake() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// ending makes its connections end. g.mu is held.
func (g *group) ending(out core.GroupEnding) {
	g.over = true
	g.fabric.cfg.Owner.Ended(endOfGroup, groupEndReason(out.Why)) // rule: internal/host TestSMCRCrossed
	g.fate = core.EventLinkLost
	if out.LinkAlive {
		g.fate = core.EventAbort
	}
	g.fabric.drop(g)
	g.rmbs.end()
	close(g.done)
	why := out.Why
	g.afterwards(func() {
		g.linksLost = g.fabric.cfg.Owner.GroupEnded(g, func(count int) {
			g.fabric.cfg.Logger.Debug("link group ended", "peer", g.lg.Key.GID, "connections", count, "why", why.String())
		})
	})
}

// run is the group's goroutine.
func (g *group) run() {
	defer close(g.stopped)
	for {
		select {
		case <-g.net.News():
		case <-g.kick:
		}
		for ev, ok := g.net.Poll(); ok; ev, ok = g.net.Poll() {
			g.linkEvent(ev)
		}
		g.mu.Lock()
		later, gone := g.later, g.gone
		g.later = nil
		g.mu.Unlock()
		for _, f := range later {
			f()
		}
		g.room.check()
		if gone {
			g.tearDown()
			if g.linksLost != nil {
				g.linksLost() // rule: internal/host TestSMCRCloseInHandshake
				g.linksLost = nil
			}
			return
		}
	}
}

// linkEvent hands news of a link to core.
func (g *group) linkEvent(ev link.Event) {
	heard := false
	routes := g.opener.routesNamed(ev)
	g.do(func(now time.Time, out []core.Output) []core.Output {
		if g.gone {
			return out
		}
		l := g.links.of(ev.Link)
		if l == nil {
			return out // it was closed
		}
		switch ev.Kind {
		case link.EventLLC:
			heard = true
			l.trace(ev.Message, false)
			m, err := llc.Parse(ev.Message)
			if routes != nil {
				g.ctl.SetRoutes(routes)
			}
			return g.ctl.HandleMessage(now, l.num, m, err, out)
		case link.EventSent:
			return g.ctl.Sent(now, core.Tag(ev.Tag), out)
		case link.EventFailed:
			return g.ctl.LinkFailed(now, l.num, ev.Err, out)
		case link.EventLeft:
			l.left = l.up
			return g.ctl.LinkLeft(now, l.num, out)
		}
		return out
	})
	if heard {
		g.peer.answered()
	}
}

// tearDown gives everything back but the RMBs that connections have.
func (g *group) tearDown() {
	g.opener.opening.Wait()
	g.mu.Lock()
	links, devices := g.links.all, g.devices.take()
	g.mu.Unlock()
	for _, n := range devices {
		n.TellGroup(&g.devices, false)
	}
	late := time.NewTimer(lastAckTime)
	defer late.Stop()
	expired := false
	for _, l := range links {
		l.rnic.RemoveUser(l)
		if l.net.Err() == nil && !expired { // the peer waits for the acknowledgement of its DELETE LINK
			select {
			case <-late.C:
				expired = true
			case <-l.net.Failed():
			}
		}
	}
	g.net.Close()
	g.mu.Lock()
	g.opener.dropSpare()
	g.rmbs.freeUnused()
	g.mu.Unlock()
	for _, l := range links {
		l.rnic.Release()
	}
	for _, n := range devices {
		n.Release()
	}
}

// finish ends the group, in order if it can.
func (g *group) finish(why core.EndKind) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctl == nil || g.gone {
		return
	}
	g.doLocked(func(now time.Time, out []core.Output) []core.Output { return g.ctl.End(now, why, out) })
}

// confirmed says that the first contact is over, and connections have it.
func (g *group) confirmed() {
	g.mu.Lock()
	g.inUse = true
	g.mu.Unlock()
}

// abandon ends a group whose first contact came to nothing.
func (g *group) abandon() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.inUse || g.gone:
	case g.ctl != nil:
		g.doLocked(g.ctl.Drop)
	default: // it has no goroutine yet
		g.over, g.gone = true, true
		g.fabric.drop(g)
		close(g.done)
		g.afterwards(func() { g.fabric.cfg.Owner.GroupEnded(g, func(int) {}) })
		go g.run()
	}
}

// Cause implements [transport.Association].
func (g *group) Cause() core.ConnEventKind {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fate
}

// usable are the links that connections may use.
func (g *group) usable() []core.GroupLink {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ctl.Links()
}

func (g *group) isOver() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.over
}

// checkConfirm compares the client's end of the link in a later contact's Confirm with those of the group.
func (g *group) checkConfirm(r core.Result) error {
	g.fabric.mu.Lock()
	_, ok := g.lg.ConfirmedLink(r.Version, r.R)
	g.fabric.mu.Unlock()
	if !ok {
		return &core.ProtocolError{Message: "CLC Confirm", State: core.HandshakeAwaitConfirm.String(), Err: errForeignLink}
	}
	return nil
}

func (g *group) started() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ctl != nil
}

var errForeignLink = errors.New("it names no link of the link group")

var errRMBs = errors.New("the peer does not take another RMB")
