package llcflow

import (
	"io"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// Two hosts with SMC-R: everything between the TCP sockets of applications and the queue pairs,
// with faults. The simulation carries out the outputs of Handshake, Groups and LinkControl, as
// internal/host does.

// A simHost is one host: its device, its link groups.
type simHost struct {
	w      *coretest.World
	name   string
	other  *simHost
	caps   core.Capabilities
	rnic   core.RNIC
	groups *core.Groups
	live   map[*core.LinkGroup]*simGroup
	ports  map[wire.QPN]*simPort
	conns  []*simSocket
	last   uint32 // identifiers are counted
	faulty bool   // messages and paths fail
	shy    bool   // its Proposals do not tell its identity, as with Linux net/smc

	madeGroups, established, fellBack, failed int
}

func (h *simHost) next() uint32 { h.last++; return h.last }

// delay is short, and now and then long enough for timers.
func (h *simHost) delay() time.Duration {
	if h.faulty && h.w.Chance(2) {
		return time.Duration(h.w.Rand.Int64N(int64(4 * time.Second)))
	}
	return time.Duration(h.w.Rand.Int64N(int64(2 * time.Millisecond)))
}

// A simPort is a queue pair.
type simPort struct {
	g      *simGroup
	qpn    wire.QPN
	peer   *simPort // nil until it is connected
	failed bool
	cut    bool // its messages do not arrive
	rx     []llc.Message
	pipe   time.Time
}

// A simGroup is a link group with the state that the host keeps for it.
type simGroup struct {
	h       *simHost
	lg      *core.LinkGroup
	lc      *LinkControl // nil before StartLink
	port    *simPort
	first   *simSocket
	sockets map[Owner]*simSocket
	pool    []RMBID // confirmed, in no use
	tokens  map[RMBID]llc.RToken
	ending  bool
	ended   bool
	dead    bool // its process has ended
	deleted int
}

// A simSocket is one end of a TCP connection with its handshake.
type simSocket struct {
	h       *simHost
	other   *simSocket
	role    core.Role
	hs      *core.Handshake
	pipe    time.Time
	tcpGone bool
	last    core.HandshakeOutput
	group   *simGroup
	owner   Owner
	rmb     RMBID
	hasRMB  bool
	waited  time.Time // since when it waits for a first contact
	element Element
	in      bool // it is established and in use
	leaving bool // the other end has closed
	dead    bool // its process has ended
	over    bool // its memory has been given back
}

func newSimHost(w *coretest.World, name string, caps core.Capabilities) *simHost {
	rnic := caps.RoCEv2
	if rnic == nil {
		rnic = caps.RoCEv1
	}
	return &simHost{w: w, name: name, caps: caps, rnic: *rnic, groups: core.NewGroups(16), live: map[*core.LinkGroup]*simGroup{}, ports: map[wire.QPN]*simPort{}}
}

// restart ends the host's process, and begins another one at the same address. Its kernel resets its TCP connections.
func (h *simHost) restart() {
	h.w.Logf("%s is started again", h.name)
	for _, x := range h.conns {
		if x.tcpGone {
			continue
		}
		x.sendTCP(func(to *simSocket) { to.resetTCP() })
	}
	for _, x := range h.conns {
		x.dead, x.tcpGone, x.in, x.hasRMB, x.over = true, true, false, false, true
	}
	for _, p := range h.ports {
		p.failed, p.g.dead = true, true
	}
	h.groups, h.live, h.ports = core.NewGroups(16), map[*core.LinkGroup]*simGroup{}, map[wire.QPN]*simPort{}
	h.caps.PeerID[1]++
}

// connect begins a connection from h to the other host.
func (h *simHost) connect() {
	c := &simSocket{h: h, role: core.RoleClient, hs: core.NewHandshake(core.RoleClient, h.caps)}
	s := &simSocket{h: h.other, role: core.RoleServer, hs: core.NewHandshake(core.RoleServer, h.other.caps), other: c}
	c.other = s
	for _, x := range []*simSocket{c, s} {
		x.owner = Owner(x.h.next())
		x.h.conns = append(x.h.conns, x)
	}
	w := h.w
	s.do(s.hs.Start(w.Now, nil))
	w.After(h.delay(), func() { c.do(c.hs.Start(w.Now, nil)) })
	if h.faulty && w.Chance(3) {
		w.After(h.delay(), func() { c.resetTCP(); s.resetTCP() })
	}
}

func (x *simSocket) sendTCP(what func(to *simSocket)) {
	w, to := x.h.w, x.other
	at := w.Now.Add(x.h.delay())
	if at.Before(to.pipe) {
		at = to.pipe
	}
	to.pipe = at
	w.At(at, func() {
		if !to.tcpGone {
			what(to)
		}
	})
}

func (x *simSocket) do(outs []core.HandshakeOutput) {
	w := x.h.w
	if x.dead {
		return
	}
	if len(outs) > 0 && !w.Quiet {
		w.Logf("%s/%d %v %v: %s", x.h.name, x.owner, x.role, x.hs.State(), coretest.Words(outs))
	}
	for _, o := range outs {
		switch o := o.(type) {
		case core.SendCLC:
			m, err := clc.Parse(o.Message.Append(nil))
			if err != nil {
				w.Failf("%v", err)
			}
			if p, ok := m.(clc.Proposal); ok && x.h.shy {
				p.PeerID, p.MAC = wire.PeerID{}, wire.MAC{}
				m = p
			}
			x.sendTCP(func(to *simSocket) {
				if to.last != nil { // it has ended: only a Decline that crossed may come, and the end of the connection
					if f, ok := to.last.(core.FallBack); ok && (!f.Crossing || m.Type() != clc.TypeDecline) {
						w.Failf("%s/%d: %v reaches the application", to.h.name, to.owner, m.Type())
					}
					return
				}
				to.do(to.hs.HandleMessage(w.Now, m, nil, nil))
			})
		case core.SetTimer:
			w.At(o.At, func() { x.do(x.hs.Advance(w.Now, nil)) })
		case core.Prepare:
			x.prepare(o.Choice)
		case core.StartLink:
			x.group.start(o.Result)
		case core.Established:
			x.last = o
			x.establish(o.Result)
		case core.FallBack:
			x.last = o
			x.h.fellBack++
			if o.OutOfSync && x.group != nil {
				x.h.groups.Doubt(x.group.lg)
				x.group.do(x.group.lc.Suspect(w.Now, 0, nil))
			}
			x.release(true)
		case core.EndTCP:
			x.last = o
			x.h.failed++
			x.release(true)
			x.resetTCP()
		}
	}
}

// resetTCP ends the TCP connection.
func (x *simSocket) resetTCP() {
	if x.tcpGone {
		return
	}
	w := x.h.w
	if x.in && !x.h.faulty {
		w.Failf("%s/%d is reset without a fault", x.h.name, x.owner)
	}
	x.tcpGone = true
	x.do(x.hs.HandleTCPEnd(w.Now, io.EOF, nil))
	x.close(false)
	x.sendTCP(func(to *simSocket) { to.resetTCP() })
}

// prepare finds a link group and an RMB.
func (x *simSocket) prepare(c core.Choice) {
	h, w := x.h, x.h.w
	if x.dead || x.hs.State() != core.HandshakePreparing {
		return // it has ended while it waited
	}
	q := core.JoinRequest{Role: x.role, Choice: c, ID: wire.LinkID(h.next()), MaxConns: 16}
	if x.waited.IsZero() {
		x.waited = w.Now
	}
	q.Waited = w.Now.Sub(x.waited) >= core.FirstContactWait
	j := h.groups.JoinLinks(q)
	for _, lg := range j.Ended {
		h.live[lg].control((*LinkControl).End, EndIdle)
	}
	switch {
	case j.Wait:
		w.After(10*time.Millisecond, func() { x.prepare(c) })
		return
	case j.Why != clc.DiagNone:
		x.do(x.hs.PrepareFailed(w.Now, j.Why, nil))
		return
	}
	if j.FirstContact {
		h.madeGroups++
		g := &simGroup{h: h, lg: j.Group, first: x, sockets: map[Owner]*simSocket{}, tokens: map[RMBID]llc.RToken{}}
		g.port = &simPort{g: g, qpn: wire.QPN(h.next())}
		h.ports[g.port.qpn] = g.port
		h.live[j.Group] = g
		x.join(g)
		x.rmb, x.hasRMB = RMBID(h.next()), true
		g.tokens[x.rmb] = llc.RToken{RKey: wire.RKey(h.next()), VA: uint64(h.next()) << 20}
		x.prepared()
		return
	}
	g := h.live[j.Group]
	x.join(g)
	if x.role == core.RoleClient && !x.take(c.R) {
		x.do(x.hs.PrepareFailed(w.Now, clc.DiagRToken, nil))
		return
	}
	x.rmb, x.hasRMB = RMBID(h.next()), true
	if n := len(g.pool); n > 0 && w.Chance(70) {
		x.rmb, g.pool = g.pool[n-1], g.pool[:n-1]
	} else {
		g.tokens[x.rmb] = llc.RToken{RKey: wire.RKey(h.next()), VA: uint64(h.next()) << 20}
	}
	g.do(g.lc.ConfirmRMB(w.Now, x.rmb, onFirst(g.tokens[x.rmb]), nil))
}

func (x *simSocket) join(g *simGroup) {
	x.group = g
	g.sockets[x.owner] = x
}

// prepared announces the RMB.
func (x *simSocket) prepared() {
	h, g := x.h, x.group
	token := g.tokens[x.rmb]
	r := core.Resources{FirstContact: g.first == x, Direct: true, R: &clc.ParamsR{
		GID: h.rnic.GID, MAC: h.rnic.MAC, QPN: g.port.qpn, RKey: token.RKey, RMBEIndex: 1,
		AlertToken: wire.AlertToken(x.owner), MTU: wire.MTU1024, RMBAddr: token.VA, PSN: 7,
	}}
	if g.first == x && x.role == core.RoleClient && h.caps.RoCEv2 != nil {
		r.ClientGIDs = []wire.GID{r.R.GID}
	}
	x.do(x.hs.Prepared(h.w.Now, r, nil))
}

// take takes the peer's element, and reports whether there is one.
func (x *simSocket) take(r *clc.ParamsR) bool {
	el, why, outs := x.group.lc.TakeElement(r, x.owner, nil)
	x.element = el
	x.group.do(outs)
	return why == clc.DiagNone
}

// establish opens the connection, for a while.
func (x *simSocket) establish(r core.Result) {
	h, g, w := x.h, x.group, x.h.w
	x.in = true
	h.established++
	if r.FirstContact {
		for _, lg := range h.groups.Confirm(g.lg, r) {
			s := h.live[lg]
			s.do(s.lc.Suspect(w.Now, 0, nil))
		}
		h.groups.SetLinks(g.lg, g.lc.Links())
		x.element = g.lc.FirstElement()
	} else if x.role == core.RoleServer {
		if _, ok := g.lg.ConfirmedLink(r.Version, r.R); !ok || g.ending || !x.take(r.R) {
			x.resetTCP()
			return
		}
	}
	if g.ending {
		x.resetTCP()
		return
	}
	h.groups.SetFull(g.lg, !g.lc.Room())
	// Our writes arrive where the peer reads.
	if o := x.other; o.group != nil && o.hasRMB {
		if t := o.group.tokens[o.rmb]; t.RKey != x.element.RKey || t.VA != x.element.VA || o.group.port.peer != g.port {
			w.Failf("%s/%d writes to %+v, %s/%d reads %v", h.name, x.owner, x.element, o.h.name, o.owner, t)
		}
	}
	if x.leaving {
		x.close(true)
	}
	if x.role == core.RoleClient {
		w.After(time.Duration(w.Rand.Int64N(int64(30*time.Second))), func() {
			if h.faulty && w.Chance(10) {
				x.resetTCP()
				return
			}
			x.close(true)
			x.other.close(true)
			x.other.leaving = true // if it has not heard of the Confirm yet
		})
	}
}

// close ends an established connection.
func (x *simSocket) close(clean bool) {
	if x.in {
		x.in, x.tcpGone = false, true
		x.release(clean)
	}
}

// release gives back the connection's share of its group.
func (x *simSocket) release(clean bool) {
	g, w := x.group, x.h.w
	if g == nil || x.over {
		return
	}
	x.over = true
	delete(g.sockets, x.owner)
	if g.lc == nil || g.lc.State() < StateActive {
		if g.first == x {
			x.h.groups.Drop(g.lg)
			g.drop()
		}
	} else {
		g.lc.ReleaseElement(x.owner)
		if x.hasRMB {
			if clean && w.Chance(50) && !g.ending && g.lc.own[x.rmb] != nil && g.lc.own[x.rmb].state == rmbConfirmed {
				g.pool = append(g.pool, x.rmb)
			} else {
				g.do(g.lc.DeleteRMB(w.Now, x.rmb, clean, nil))
			}
		}
	}
	x.hasRMB = false
	x.h.groups.Leave(w.Now, g.lg)
}

// start begins the LLC messages of a first contact.
func (g *simGroup) start(r core.Result) {
	h, w := g.h, g.h.w
	p := h.other.ports[r.R.QPN]
	g.port.peer = p
	local := core.LinkEnd{GID: h.rnic.GID, MAC: h.rnic.MAC, QPN: g.port.qpn, PSN: 7, MTU: wire.MTU1024}
	g.lc = New(Config{
		Result: r, Local: local, GroupID: wire.LinkID(h.next()), RMB: g.first.rmb, Token: g.tokens[g.first.rmb], Owner: g.first.owner,
		RNICs: []core.RNIC{h.rnic},
	})
	if h.faulty && w.Chance(8) {
		w.After(h.delay()*500, func() { g.port.cut = true })
	}
	if h.faulty && w.Chance(4) {
		w.After(time.Duration(w.Rand.Int64N(int64(20*time.Second))), g.port.fail)
	}
	g.do(g.lc.Start(w.Now, nil))
}

func (g *simGroup) control(f func(lc *LinkControl, now time.Time, kind EndKind, out []Output) []Output, kind EndKind) {
	if g.lc != nil {
		g.do(f(g.lc, g.h.w.Now, kind, nil))
	}
}

// drop ends the group of a first contact that came to nothing.
func (g *simGroup) drop() {
	if g.lc != nil {
		g.do(g.lc.Drop(g.h.w.Now, nil))
	} else {
		g.end()
	}
}

// end gives back the queue pair.
func (g *simGroup) end() {
	if g.ended {
		g.h.w.Failf("%s: group %v ended twice", g.h.name, g.lg.ID)
	}
	g.ended, g.ending, g.port.failed = true, true, true
	delete(g.h.ports, g.port.qpn)
	delete(g.h.live, g.lg)
}

func (g *simGroup) do(outs []Output) {
	h, w := g.h, g.h.w
	if g.dead {
		return
	}
	if len(outs) > 0 && !w.Quiet {
		w.Logf("%s group %v %v: %s", h.name, g.lg.ID, g.lc.State(), controlWords(w.Now, outs))
	}
	for _, o := range outs {
		if g.ended {
			if isRMBAnswer(o) {
				continue
			}
			w.Failf("%s: %T after the end of group %v", h.name, o, g.lg.ID)
		}
		switch o := o.(type) {
		case SendLLC:
			g.port.send(o)
		case LinkStep:
			if x := g.first; x.last == nil {
				x.do(x.hs.LinkStep(w.Now, core.LinkStep(o), nil))
			}
		case RMBConfirmed:
			if x := g.socketOf(o.ID); x != nil {
				x.prepared()
			} else {
				g.do(g.lc.DeleteRMB(w.Now, o.ID, true, nil)) // nobody waits for it any more
			}
		case RMBRefused:
			if x := g.socketOf(o.ID); x != nil {
				x.do(x.hs.PrepareFailed(w.Now, o.Why, nil))
			}
		case RMBDeleted:
			g.deleted++
			delete(g.tokens, o.ID)
			if g.socketOf(o.ID) != nil {
				w.Failf("%s: RMB %d deleted in use", h.name, o.ID)
			}
		case ElementLost:
			if x := g.sockets[o.Owner]; x != nil {
				x.resetTCP()
			}
		case SetTimer:
			w.At(o.At, func() { g.do(g.lc.Advance(w.Now, nil)) })
		case GroupEnding:
			g.ending = true
			h.groups.Drop(g.lg)
			for _, x := range g.inUse() {
				x.resetTCP()
			}
		case OpenLink: // which is asked for to be rejected
			g.do(g.lc.LinkOpened(w.Now, o.Link, core.LinkEnd{GID: o.GID, MAC: h.rnic.MAC, QPN: wire.QPN(h.next()), PSN: 7, MTU: wire.MTU1024}, nil, nil))
		case GroupEnded:
			g.end()
		}
	}
}

// inUse returns the established connections in order.
func (g *simGroup) inUse() (list []*simSocket) {
	for _, x := range g.sockets {
		if x.in {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b *simSocket) int { return int(a.owner) - int(b.owner) })
	return list
}

func (g *simGroup) socketOf(id RMBID) *simSocket {
	for _, x := range g.sockets {
		if x.hasRMB && x.rmb == id {
			return x
		}
	}
	return nil
}

// send delivers a message in order, or fails the queue pair.
func (p *simPort) send(o SendLLC) {
	h, w := p.g.h, p.g.h.w
	m, err := llc.Parse(o.Message.Append(nil))
	if err != nil {
		w.Failf("%s sent %v: %v", h.name, o.Message, err)
	}
	at := w.Now.Add(h.delay() / 4)
	if at.Before(p.pipe) {
		at = p.pipe
	}
	p.pipe = at
	w.At(at, func() {
		to := p.peer
		switch {
		case p.failed:
			return
		case p.cut || to == nil || to.failed || to.peer != p:
			w.After(time.Second, p.fail)
			return
		}
		t := m.Type()
		ignored := h.faulty && !m.Head().Reply && (t == llc.TypeConfirmRKey || t == llc.TypeDeleteRKey) && w.Chance(4)
		if !ignored { // else it crosses something, as with Linux net/smc
			to.rx = append(to.rx, m)
			w.After(h.delay()/10, to.drain)
		}
		if to.cut {
			w.After(time.Second, p.fail)
		} else if o.Tag != 0 {
			w.After(h.delay()/10, func() {
				if !p.failed {
					p.g.do(p.g.lc.Sent(w.Now, o.Tag, nil))
				}
			})
		}
	})
}

func (p *simPort) drain() {
	for len(p.rx) > 0 && p.g.lc != nil && !p.g.dead {
		m := p.rx[0]
		p.rx = p.rx[1:]
		p.g.do(p.g.lc.HandleMessage(p.g.h.w.Now, 0, m, nil, nil))
	}
}

func (p *simPort) fail() {
	if p.failed {
		return
	}
	p.failed = true
	if p.g.lc != nil {
		p.drain()
		p.g.do(p.g.lc.LinkFailed(p.g.h.w.Now, 0, io.ErrClosedPipe, nil))
	}
}

// intrude has a host that is neither of the two name itself as a client of h's, and say that it has lost the link group.
func (h *simHost) intrude() {
	w := h.w
	hs := core.NewHandshake(core.RoleServer, h.other.caps)
	p := core.NewHandshake(core.RoleClient, h.caps).Start(w.Now, nil)[0].(core.SendCLC).Message.(clc.Proposal)
	x := &simSocket{h: h.other, role: core.RoleServer, hs: hs, owner: Owner(h.other.next())}
	x.other = &simSocket{h: h, role: core.RoleClient, tcpGone: true, other: x}
	h.other.conns = append(h.other.conns, x)
	x.do(hs.Start(w.Now, nil))
	x.do(hs.HandleMessage(w.Now, p, nil, nil))
	w.After(time.Second, func() {
		if x.last == nil && !x.dead {
			x.do(hs.HandleMessage(w.Now, clc.Decline{Version: clc.V2, OutOfSync: true, Diagnosis: clc.DiagSync}, nil, nil))
		}
	})
}
