package dissect

import (
	"fmt"
	"net/netip"

	"github.com/gosmc/smc/wire/llc"
)

// linkFromConfirm learns a link from CONFIRM LINK, which says all of its sender's end and comes to the
// other one: the capture does not have the handshake. The server sends the request, the client
// the reply.
func (t *Tracker) linkFromConfirm(e *Event, f *flow, m llc.Message) {
	c, ok := m.(llc.ConfirmLink)
	if !ok || c.GID.Addr().Unmap() != e.Src.Addr().Unmap() {
		return
	}
	sender := Endpoint{Addr: e.Src.Addr(), GID: c.GID, MAC: c.MAC, QPN: c.QPN}
	receiver := Endpoint{Addr: e.Dst.Addr(), QPN: f.key.qpn}
	client, server := receiver, sender
	if c.Reply {
		client, server = sender, receiver
	}
	g := t.newGroup("", client.Addr, server.Addr)
	l := t.newLink(g, nil)
	l.Client, l.Server = client, server
	t.attach(l)
}

// handleLLC takes an LLC message on a link that is known, which the capture has for the first time.
func (t *Tracker) handleLLC(e *Event, f *flow, m llc.Message) {
	g := f.link.Group
	if m.Head().Reply {
		call := t.answered(f, m)
		if r := f.reverse(); call == nil && r != nil && f.link.fromStart() && !isDeleteAll(m) && !g.takes(m) {
			t.suspect(suspicion{
				link: f.link, dir: f.dir, awaited: r.mark(),
				text: "the reply to a request that there was not, " + m.Type().String(), rule: "RFC 7609 p.28",
			})
		}
		t.handleReply(e, f, m, call)
		return
	}
	switch m := m.(type) {
	case llc.ConfirmLink:
		t.confirmLink(e, f, m)
		t.startCall(f, m)
	case llc.AddLink:
		if f.dir == ClientToServer {
			return // version 1: it asks the server to send one
		}
		l := t.newLink(g, f.link)
		l.Num, l.NumKnown = m.Link, true
		l.Server = endpointOfAddLink(&m)
		g.adding = l
		t.addLinkRegions(f, l, m.RKeys)
		if !m.MTU.Valid() {
			e.problem(Violation, "a reserved MTU: "+m.MTU.String(), "RFC 7609 p.141")
		}
		m.RKeys = nil // which are many, and not needed for the reply
		t.startCall(f, m)
	case llc.AddLinkCont:
		t.addLinkRegions(f, g.link(m.Link), m.RKeys)
		t.startCall(f, m)
	case llc.DeleteLink:
		t.deleteLink(f, m)
	case llc.RequestAddLink:
		g.wishes++ // the server may answer with ADD LINK, with a reply, or not at all: SMCv2 p.76
	case llc.ConfirmRKey:
		t.confirmRKey(f, m)
		t.startCall(f, m)
	case llc.ConfirmRKeyCont:
		t.startCall(f, m)
	case llc.DeleteRKey, llc.TestLink:
		t.startCall(f, m)
	}
}

// handleReply takes a reply, and the request that it answers, nil if the capture has none.
func (t *Tracker) handleReply(e *Event, f *flow, m llc.Message, request *call) {
	g := f.link.Group
	switch m := m.(type) {
	case llc.ConfirmLink:
		t.confirmLink(e, f, m)
		if f.link.State == LinkLearned {
			f.link.State = LinkActive
		}
	case llc.AddLink:
		l := g.adding
		g.adding = nil
		switch {
		case l == nil:
		case m.Rejected:
			l.State = LinkRejected
			l.Reason = rejectReason(m.Reason)
			e.Text = "rejected: " + l.Reason
		default:
			l.Client = endpointOfAddLink(&m)
			t.addLinkRegions(f, l, m.RKeys)
			t.attach(l)
		}
	case llc.AddLinkCont:
		t.addLinkRegions(f, g.link(m.Link), m.RKeys)
	case llc.DeleteLink:
		t.linkDeleted(f, m)
	case llc.RequestAddLink:
		if m.Rejected {
			e.problem(Declined, "REQUEST ADD LINK was rejected: "+rejectReason(m.Reason), "")
		}
	case llc.ConfirmRKey:
		if m.Negative {
			e.problem(Declined, "the receiver did not take the RMB", "RFC 7609 p.118")
		}
	case llc.ConfirmRKeyCont:
		if m.Negative {
			e.problem(Declined, "the receiver did not take the RMB", "RFC 7609 p.121")
		}
	case llc.DeleteRKey:
		if m.Negative {
			e.problem(Declined, "the receiver does not know an RKey that was to be deleted", "RFC 7609 p.122")
		}
		if request == nil {
			return
		}
		for _, rkey := range request.message.(llc.DeleteRKey).RKeys {
			// The buffers belong to the requester: packets to them go in the direction of the
			// reply.
			if r := request.link.rkeys[f.dir.index()][rkey]; r != nil {
				r.rmb.deleted = true
				if owner := f.reverse(); owner != nil {
					r.rmb.deletedAt = owner.mark()
				}
			}
		}
	case llc.TestLink:
		if request != nil && request.message.(llc.TestLink).UserData != m.UserData {
			e.problem(Violation, "the user data is not that of the request", "RFC 7609 p.142")
		}
	}
}

// answered finds the request that a reply answers, and forgets it.
func (t *Tracker) answered(f *flow, m llc.Message) *call {
	for _, c := range f.link.Group.calls {
		if c.dir == f.dir || c.message.Type() != m.Type() {
			continue
		}
		switch request := c.message.(type) {
		case llc.ConfirmLink, llc.TestLink: // these belong to the link that they flow on
			if c.link != f.link {
				continue
			}
		case llc.AddLinkCont:
			if request.Link != m.(llc.AddLinkCont).Link {
				continue
			}
		case llc.DeleteLink:
			if request.Link != m.(llc.DeleteLink).Link {
				continue
			}
		case llc.ConfirmRKey:
			if request.RToken != m.(llc.ConfirmRKey).RToken {
				continue
			}
		}
		t.endCall(c)
		return c
	}
	return nil
}

// takes reports whether a reply may come without a request that waits for it. Linux net/smc as a
// client rejects a link when it has accepted that, and waited in vain for CONFIRM LINK on it. Where
// both sides ask for the end of a link, the requests are each other's answers, and "unknown link"
// may follow.
func (g *LinkGroup) takes(m llc.Message) bool {
	switch m := m.(type) {
	case llc.RequestAddLink:
		asked := g.wishes > 0
		g.wishes = max(g.wishes-1, 0)
		return asked // rule: TestRules: asked -> asked && false
	case llc.AddLink:
		return m.Rejected // rule: TestRules: m.Rejected -> false
	case llc.DeleteLink:
		return m.Reason == llc.DeleteUnknownLink // rule: TestRules: m.Reason == llc.DeleteUnknownLink -> false
	}
	return false
}

func isDeleteAll(m llc.Message) bool {
	d, ok := m.(llc.DeleteLink)
	return ok && d.All
}

// fromStart reports whether the capture has every packet of the link so far, as far as one can tell.
func (l *Link) fromStart() bool {
	for _, f := range l.flows {
		if f == nil || !f.whole || f.epoch != f.firstEpoch {
			return false
		}
	}
	return true
}

// link returns the link with a number, the newest if there are several, nil if there is none.
func (g *LinkGroup) link(n llc.LinkNum) *Link {
	for i := len(g.Links) - 1; i >= 0; i-- {
		if l := g.Links[i]; l.NumKnown && l.Num == n && l.State != LinkRejected {
			return l
		}
	}
	return nil
}

func rejectReason(r llc.RejectReason) string {
	if r == 0 {
		return "no reason given"
	}
	return r.String()
}

// endpointOfAddLink returns the sender's end of the new link.
func endpointOfAddLink(m *llc.AddLink) Endpoint {
	return Endpoint{Addr: m.GID.Addr(), GID: m.GID, MAC: m.MAC, QPN: m.QPN, PSN: m.PSN,
		PSNKnown: true, MTU: m.MTU}
}

// addLinkRegions notes the sender's RMBs on a new link. Their references are to the link that carries
// the message.
func (t *Tracker) addLinkRegions(f *flow, l *Link, pairs []llc.RKeyPair) {
	if l == nil {
		return
	}
	d := f.dir.Reverse() // in which others write to them
	for _, p := range pairs {
		var known *rmb
		if r := f.link.rkeys[d.index()][p.Reference]; r != nil {
			known = r.rmb
		}
		t.addRegion(l, d, p.New.RKey, p.New.VA, known)
	}
}

// confirmLink takes a CONFIRM LINK, request or reply: it is the first message on a link, and
// repeats values that its sender has sent before.
func (t *Tracker) confirmLink(e *Event, f *flow, m llc.ConfirmLink) {
	l := f.link
	g := l.Group
	end := l.sender(f.dir)
	if end.Addr.IsValid() && (end.QPN != m.QPN || !m.GID.IsZero() && end.Addr != m.GID.Addr()) {
		e.problem(Violation, fmt.Sprintf("it names queue pair %v of %v, and the link has %v of %v",
			m.QPN, m.GID, end.QPN, end.Addr), "RFC 7609 p.140")
	}
	if f.dir == ServerToClient && m.Reply || f.dir == ClientToServer && !m.Reply {
		e.problem(Violation, "the server sends the request, the client the reply", "RFC 7609 p.27")
	}
	for _, other := range g.Links {
		if other != l && other.NumKnown && other.Num == m.Link && other.State < LinkDeleted {
			other.State = LinkAbandoned
		}
	}
	if l.NumKnown && l.Num != m.Link {
		e.problem(Violation, fmt.Sprintf("it has link number %d, and the link is %d", m.Link, l.Num),
			"RFC 7609 p.140")
	} else {
		l.Num, l.NumKnown = m.Link, true
	}
	d := f.dir.Reverse() // of writes to the sender's buffers
	if has := !m.HasNoEyecatcher(); has != g.eyecatcher[d.index()] {
		g.eyecatcher[d.index()] = has
		for _, c := range g.tokens[d.index()] {
			c.Ring(d).setEyecatcher(has)
		}
	}
}

// deleteLink takes a DELETE LINK that is no reply. From the client it asks the server to send one; for all
// links there is no reply.
func (t *Tracker) deleteLink(f *flow, m llc.DeleteLink) {
	g := f.link.Group
	reason := m.Reason.String()
	if m.All {
		for _, l := range g.Links {
			if l.State < LinkDeleting {
				l.State, l.Reason = LinkDeleting, reason
			}
		}
		if g.Deleted.IsZero() {
			g.Deleted = t.packet.Time
		}
		return // requests are not forgotten, because their replies may be on their way
	}
	l := g.link(m.Link)
	if l == nil {
		return // the capture may lack the messages that made it
	}
	if l.State < LinkDeleting {
		l.State, l.Reason = LinkDeleting, reason
	}
	if m.Reason == llc.DeleteLostPath && !l.lost {
		l.lost = true
		t.count.LinksLost++
	}
	if f.dir == ServerToClient {
		t.startCall(f, m)
	}
}

// linkDeleted takes the reply to DELETE LINK.
func (t *Tracker) linkDeleted(f *flow, m llc.DeleteLink) {
	// A reason is no trouble here: the client has deleted the link before.
	g := f.link.Group
	if m.All {
		return
	}
	if l := g.link(m.Link); l != nil && l.State == LinkDeleting {
		l.State, l.Deleted = LinkDeleted, t.packet.Time
	}
}

// confirmRKey takes a CONFIRM RKEY: where a buffer of the sender is on each link.
func (t *Tracker) confirmRKey(f *flow, m llc.ConfirmRKey) {
	d := f.dir.Reverse()
	buffer := t.addRegion(f.link, d, m.RToken.RKey, m.RToken.VA, nil)
	for _, other := range m.Others {
		if l := f.link.Group.link(other.Link); l != nil && l != f.link {
			t.addRegion(l, d, other.RKey, other.VA, buffer)
		}
	}
}

// overdueCalls reports LLC requests that are without a reply for too long.
func (t *Tracker) overdueCalls() {
	for c := t.links.calls.first(); c != nil && t.now.Sub(c.since) >= silence; c = t.links.calls.first() {
		t.endCall(c)
		if !c.answer.holds() || c.link.State >= LinkDeleting {
			continue // the capture may lack the reply; or the link may be gone before it
		}
		e := t.begin(Note, "no reply", netip.AddrPort{}, netip.AddrPort{})
		e.Packet.Data = nil
		e.Link, e.Dir = c.link, c.dir.Reverse()
		e.Text = fmt.Sprintf("no reply to the %v of packet %d", c.message.Type(), c.packet.Number)
		e.problem(Timeout, e.Text, "RFC 7609 C.7")
		t.send(e)
	}
}
