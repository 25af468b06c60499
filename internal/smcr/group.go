package smcr

import (
	"errors"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// A group is a link group at work: it carries out the decisions of llcflow with links and memory. It
// calls llcflow and hands each output to the part of the group that it concerns. The parts have the
// noun of their file:
//
//	links    links.go, link.go, leave.go   the links; spread.go: which connection writes over which
//	devices  devices.go                    the devices that they are on
//	opener   opener.go                     makes our ends of further links
//	conns    conns.go                      the connections
//	rmbs     rmb.go                        our RMBs
//	room     room.go                       whether another connection finds room
//	stalls   stall.go                      links over which nothing arrives
//	peer     gone.go                       whether the peer is there
//	timer    timer.go                      tells llcflow the time
//	loop     loop.go                       the goroutine
//	end      end.go                        the end
//
// mu guards all of them, but for the exceptions that they state. It comes after the locks of
// connections, and before the locks of the fabric and of freedOwners.
type group struct {
	fabric *Fabric
	lg     *core.LinkGroup
	rnic   *rnic.Device // of the first link
	net    *link.Group

	links   groupLinks
	devices groupDevices
	opener  linkOpener
	conns   groupConns
	rmbs    rmbPool
	room    groupRoom
	stalls  stallDetector
	peer    peerCheck
	timer   controlTimer
	loop    groupLoop
	end     groupEnd

	mu    sync.Mutex
	ctl   *llcflow.LinkControl // nil before the first contact begins
	tell  func(core.LinkStep)  // to the handshake of the first contact
	queue []llcflow.Output     // that are to be carried out
}

// Done implements [transport.Association].
func (g *group) Done() <-chan struct{} { return g.end.done }

// Cause implements [transport.Association].
func (g *group) Cause() core.ConnEventKind { return g.end.cause() }

// newGroup makes the parts of a new link group: a link whose queue pair the peer may be told.
func newGroup(f *Fabric, lg *core.LinkGroup, n *rnic.Device) (*group, error) {
	g := &group{fabric: f, lg: lg, rnic: n, net: link.NewGroup()}
	g.links.group, g.devices.group, g.opener.group = g, g, g
	g.conns.group, g.conns.all = g, make(map[llcflow.Owner]*binding)
	g.room.group, g.stalls.group, g.peer.group, g.timer.group = g, g, g, g
	g.end.group, g.end.done = g, make(chan struct{})
	g.rmbs.init(g)
	g.loop.init(g)
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
	cfg := llcflow.Config{Result: r, Local: l.local(), GroupID: g.lg.ID, RMB: c.rmb.id,
		MaxLinks: uint8(g.fabric.cfg.MaxLinks), TestInterval: g.fabric.cfg.KeepAlive}
	if token, ok := c.rmb.rmb.Token(l.net); ok {
		cfg.Token = llc.RToken{RKey: token.RKey, VA: token.Addr}
	}
	cfg.RNICs = g.fabric.rnics.Alternatives(g.rnic, r.Version)
	oneEach := r.Role == core.RoleServer && len(cfg.RNICs) < 2 && r.Version == clc.V2 && len(r.PeerGIDs) < 2 // rule: internal/host TestSMCRSecondLinkUnasked: r.Role == core.RoleServer -> true
	var routes []core.PairRoute
	if len(r.PeerGIDs) > 1 { // the first one belongs to the link
		routes = g.fabric.rnics.RoutesTo(cfg.RNICs, r.PeerGIDs[1:]) // rule: internal/host TestSMCRUnreachableOffer
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opener.oneEach = oneEach
	c.rmb.known = true
	c.owner = g.conns.add(c)
	cfg.Owner = c.owner
	g.ctl = llcflow.New(cfg)
	g.ctl.SetRoutes(routes)
	g.tell = tell
	go g.loop.run()
	g.doLocked(g.ctl.Start)
	return nil
}

// do has llcflow decide something, and carries it out. Not before the first contact has begun.
func (g *group) do(f func(now time.Time, out []llcflow.Output) []llcflow.Output) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.doLocked(f)
}

// doLocked is do with g.mu held.
func (g *group) doLocked(f func(now time.Time, out []llcflow.Output) []llcflow.Output) {
	g.queue = f(time.Now(), g.queue)
	for len(g.queue) > 0 {
		out := g.queue[0]
		g.queue = g.queue[1:]
		g.carryOut(out)
	}
	g.queue = nil
}

// carryOut does one thing that llcflow decided. TestOutputs checks that there is a case for each. g.mu is
// held.
func (g *group) carryOut(out llcflow.Output) {
	switch out := out.(type) {
	case llcflow.ReadyToSend:
		g.links.readyToSend(out)
	case llcflow.OpenLink:
		g.opener.open(out)
	case llcflow.ConnectLink:
		g.links.connectLink(out)
	case llcflow.LinkUp:
		g.links.linkUp(out)
	case llcflow.LinkLeaving:
		g.links.linkLeaving(out)
	case llcflow.LinkDown:
		g.links.linkDown(out)
	case llcflow.CloseLink:
		g.links.closeLink(out)
	case llcflow.SendLLC:
		g.links.sendLLC(out)
	case llcflow.LinkStep:
		g.tell(core.LinkStep(out))
	case llcflow.RMBConfirmed:
		g.rmbs.answer(out.ID, clc.DiagNone)
	case llcflow.RMBRefused:
		g.rmbs.answer(out.ID, out.Why)
	case llcflow.RMBDeleted:
		g.rmbs.deleted(out.ID)
	case llcflow.ElementLost:
		g.conns.elementLost(out)
	case llcflow.GroupEnding:
		g.end.begin(out)
	case llcflow.GroupEnded:
		g.end.complete()
	case llcflow.SetTimer:
		g.timer.set(out.At)
	case llcflow.ClearTimer:
		g.timer.stop()
	}
}

// linkFailed has llcflow take that a link has failed, while one of its outputs is carried out. g.mu is held.
func (g *group) linkFailed(num llc.LinkNum, err error) {
	g.queue = g.ctl.LinkFailed(time.Now(), num, err, g.queue)
}

// usable are the links that connections may use.
func (g *group) usable() []core.GroupLink {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ctl.Links()
}

// checkConfirm compares the client's end of the link in a later contact's Confirm with the ends in
// the group.
func (g *group) checkConfirm(r core.Result) error {
	g.fabric.mu.Lock()
	_, ok := g.lg.ConfirmedLink(r.Version, r.R)
	g.fabric.mu.Unlock()
	if !ok {
		return &core.ProtocolError{Message: "CLC Confirm", State: core.HandshakeAwaitConfirm.String(),
			Err: errForeignLink}
	}
	return nil
}

// started reports whether the first contact has begun: the group has its goroutine.
func (g *group) started() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ctl != nil
}

var errForeignLink = errors.New("it names no link of the link group")

var errRMBs = errors.New("the peer does not take another RMB")
