package dissect

import (
	"net/netip"
	"slices"

	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/roce"
)

// notCLC takes bytes that are no CLC message where one could be.
func (t *Tracker) notCLC(c *Conn, st *stream, src, dst netip.AddrPort) {
	n := len(st.data) - st.parsed
	st.end()
	switch c.State {
	case ConnDeclined, ConnTCP, ConnFailed:
		return // data of the application
	case ConnEstablished:
		e := t.begin(Note, "TCP data", src, dst)
		e.Conn, e.Dir = c, c.dir(src)
		e.Text = "data on the TCP connection of an SMC connection"
		e.problem(Violation, e.Text, "RFC 7609 p.66")
		t.send(e)
		return
	case ConnSYN, ConnOptions, ConnProposed, ConnAccepted:
	}
	e := t.begin(Note, "no CLC message", src, dst)
	e.Conn, e.Dir = c, c.dir(src)
	e.Text = "bytes that are no CLC message, where one was expected"
	e.problem(Violation, e.Text, "RFC 7609 p.134")
	if n > 0 {
		t.setState(c, ConnFailed)
	}
	t.send(e)
}

// clc takes a CLC message.
//
//	message   from    state                         next
//	Proposal  client  ConnSYN, ConnOptions, ConnTCP ConnProposed
//	Accept    server  ConnProposed                  ConnAccepted
//	Confirm   client  ConnAccepted                  ConnEstablished
//	Decline   both    all but ConnDeclined          ConnDeclined
//
// A message in another state is a violation, unless the capture lacks the one before it or the two
// cross; the state then follows the message, but not after a Decline. A Decline may also come after
// the Confirm, where CONFIRM LINK does not work: RFC 7609 p.136. That the option is missing on one
// SYN is no violation: hosts may know of each other in other ways. RFC 7609 p.27.
func (t *Tracker) clc(c *Conn, m clc.Message, b []byte, src, dst netip.AddrPort) {
	t.orient(c, m.Type(), src)
	e := t.begin(CLC, m.Type().String(), src, dst)
	e.Conn, e.Dir, e.Message, e.Bytes = c, c.dir(src), m, b
	t.checkOrder(e, c, m.Type())
	if c.State == ConnDeclined && m.Type() != clc.TypeDecline {
		t.send(e)
		return
	}
	switch m := m.(type) {
	case clc.Proposal:
		c.Proposal = &m
		t.setState(c, ConnProposed)
	case clc.Accept:
		c.Accept = &m
		checkAccept(e, c)
		t.setState(c, ConnAccepted)
	case clc.Confirm:
		c.Confirm = &m
		checkConfirm(e, c)
		t.setState(c, ConnEstablished)
		if c.Accept != nil {
			t.learn(c)
		}
		e.Link = c.Link
	case clc.Decline:
		t.decline(e, c, &m)
	}
	t.send(e)
}

func (t *Tracker) decline(e *Event, c *Conn, m *clc.Decline) {
	reason := m.Reason()
	text := reason.String()
	if reason.Sentence != "" {
		text += ": " + reason.Sentence
	}
	e.problem(Declined, text, "")
	if c.State == ConnDeclined {
		return
	}
	c.Decline, c.DeclinedBy, c.Reason = m, e.Dir, reason
	t.count.reason(reason)
	t.leaveGroup(c)
	t.setState(c, ConnDeclined)
}

// checkOrder checks that a message comes from the right side and in its turn.
func (t *Tracker) checkOrder(e *Event, c *Conn, typ clc.Type) {
	const rule = "RFC 7609 p.27"
	fromClient := typ == clc.TypeProposal || typ == clc.TypeConfirm
	if c.sideKnown && typ != clc.TypeDecline && fromClient != (e.Dir == ClientToServer) {
		e.problem(Violation, "the "+typ.String()+" comes from the wrong side", rule)
		return
	}
	if c.State == ConnDeclined {
		if from, other := c.stream(e.Dir), c.stream(e.Dir.Reverse()); c.DeclinedBy == e.Dir ||
			other.known && from.acked && int32(from.ack-other.next) >= 0 { // else the two cross
			e.problem(Violation, typ.String()+" after Decline", rule)
		}
		return
	}
	switch typ {
	case clc.TypeProposal:
		if c.Proposal != nil {
			e.problem(Violation, "a second Proposal", rule)
		}
	case clc.TypeAccept:
		switch {
		case c.Accept != nil:
			e.problem(Violation, "a second Accept", rule)
		case c.Proposal == nil && c.caughtUp(e.Dir):
			e.problem(Violation, "Accept without Proposal", rule)
		}
	case clc.TypeConfirm:
		switch {
		case c.Confirm != nil:
			e.problem(Violation, "a second Confirm", rule)
		case c.Accept == nil && c.caughtUp(e.Dir):
			e.problem(Violation, "Confirm without Accept", rule)
		}
	case clc.TypeDecline:
	}
}

// caughtUp reports whether the capture has all that the sender of direction d has received from the
// other side.
func (c *Conn) caughtUp(d Direction) bool {
	from, other := c.stream(d), c.stream(d.Reverse())
	return other.known && !other.lost && from.acked && int32(from.ack-other.next) <= 0
}

// checkAccept checks that an Accept chooses among the offers of the Proposal.
func checkAccept(e *Event, c *Conn) {
	a, p := c.Accept, c.Proposal
	if p == nil {
		return
	}
	types := p.V1
	if a.Version != clc.V1 {
		types = p.V2
	}
	if a.R != nil && !types.HasR() || a.D != nil && !types.HasD() {
		e.problem(Violation, "the Accept chooses what was not offered: "+modeOf(a, -1), "RFC 7609 p.31")
		return
	}
	if a.Version == clc.V1 || p.Ext == nil {
		return
	}
	page := "SMCv2 p.66"
	if a.D != nil {
		page = "SMCv2 p.63"
	}
	d := p.Ext.D
	seid := a.D != nil && d != nil && d.HasSEID && d.SEID == a.EID
	if !seid && !slices.Contains(p.Ext.UEIDs, a.EID) {
		e.problem(Violation, "the Accept's EID is not one of the Proposal: "+a.EID.String(), page)
	}
	if a.D != nil && a.D.CHID != p.ISMCHID &&
		(d == nil || !slices.ContainsFunc(d.Devices, func(dev clc.ISMDevice) bool { return dev.CHID == a.D.CHID })) {
		e.problem(Violation, "the Accept's CHID is not one of the Proposal: "+a.D.CHID.String(), page)
	}
}

// checkConfirm checks that a Confirm is the answer to the Accept.
func checkConfirm(e *Event, c *Conn) {
	a, f := c.Accept, c.Confirm
	if f.R != nil && !f.R.MTU.Valid() {
		e.problem(Violation, "a reserved MTU: "+f.R.MTU.String(), "RFC 7609 p.135")
	}
	if a == nil {
		return
	}
	page := "SMCv2 p.73"
	if f.D != nil {
		page = "SMCv2 p.70"
	}
	switch {
	case (a.R != nil) != (f.R != nil), (a.D != nil) != (f.D != nil), a.Version != f.Version:
		e.problem(Violation, "the Confirm is not of the type and version of the Accept", "RFC 7609 p.27")
	case a.Version == clc.V1:
	case a.EID != f.EID:
		e.problem(Violation, "the Confirm's EID is not that of the Accept: "+f.EID.String(), page)
	case a.FirstContact != f.FirstContact:
		e.problem(Violation, "Confirm and Accept do not agree on first contact", page)
	case a.FCE != nil && f.FCE != nil && a.FCE.Release > 0 && f.FCE.Release > 0 && a.R != nil &&
		(a.FCE.MaxConns != f.FCE.MaxConns || a.FCE.MaxLinks != f.FCE.MaxLinks):
		e.problem(Violation, "the Confirm's limits of connections and links are not those of the Accept",
			`SMCv2 "SMC-Rv2 CLC Confirm", notes 3 and 4`)
	}
}

// orient finds out from a message which end is the client, if no SYN has told.
func (t *Tracker) orient(c *Conn, typ clc.Type, src netip.AddrPort) {
	if c.sideKnown || typ == clc.TypeDecline {
		return
	}
	c.sideKnown = true
	fromClient := typ != clc.TypeAccept
	if (src == c.Client) == fromClient {
		return
	}
	c.Client, c.Server = c.Server, c.Client
	c.toServer, c.toClient = c.toClient, c.toServer
}

// fin takes a FIN.
func (t *Tracker) fin(c *Conn, src, dst netip.AddrPort) {
	e := t.begin(TCP, "FIN", src, dst)
	e.Conn, e.Dir = c, c.dir(src)
	st := c.stream(e.Dir)
	if st.fin {
		e.Text = "repeated"
	}
	st.fin = true
	if c.toServer.fin && c.toClient.fin && c.Closed.IsZero() {
		c.Closed = t.packet.Time
	}
	t.cut(e, c)
	t.send(e)
	t.dropPlain(c)
}

// rst takes a RST.
func (t *Tracker) rst(c *Conn, src, dst netip.AddrPort) {
	e := t.begin(TCP, "RST", src, dst)
	e.Conn, e.Dir = c, c.dir(src)
	if c.State == ConnEstablished && c.Group != nil && !c.Group.SMCD &&
		c.Closed.IsZero() && !c.ToServer.done() && !c.ToClient.done() &&
		c.ToServer.Messages+c.ToClient.Messages > 0 {
		// One that follows an abnormal close, or the end of TCP, only cleans up.
		e.problem(Reset, "the TCP connection of an SMC connection was reset", "RFC 7609 p.62")
	}
	if c.Closed.IsZero() {
		c.Closed = t.packet.Time
	}
	t.cut(e, c)
	t.send(e)
	t.dropPlain(c)
}

// cut notes the end of a TCP connection in the middle of its handshake.
func (t *Tracker) cut(e *Event, c *Conn) {
	switch c.State {
	case ConnOptions, ConnProposed, ConnAccepted:
		e.problem(Reset, "the connection ended in the middle of the handshake", "")
		t.setState(c, ConnFailed)
	case ConnSYN:
		t.setState(c, ConnFailed)
	case ConnEstablished, ConnDeclined, ConnTCP, ConnFailed:
	}
}

// dropPlain forgets a connection that is over and never used SMC.
func (t *Tracker) dropPlain(c *Conn) {
	if !c.Closed.IsZero() && c.State != ConnEstablished {
		t.forget(c)
	}
}

// awaited returns the name of the next message of a handshake.
func (c *Conn) awaited() string {
	switch c.State {
	case ConnOptions:
		return "Proposal"
	case ConnProposed:
		return "Accept"
	case ConnAccepted:
		return "Confirm"
	}
	return "message"
}

// expire reports overdue handshakes and calls.
func (t *Tracker) expire() {
	for c := t.waits.first(); c != nil && t.now.Sub(c.waitSince) >= silence; c = t.waits.first() {
		t.waits.remove(&c.wait)
		t.unfinished(c, true)
	}
	t.overdueCalls()
}

// unfinished reports a handshake in which a message is missing.
func (t *Tracker) unfinished(c *Conn, overdue bool) {
	d := ServerToClient // of the missing message
	if c.State != ConnProposed {
		d = ClientToServer
	}
	src, dst := c.Client, c.Server
	if d == ServerToClient {
		src, dst = dst, src
	}
	e := t.begin(Note, "handshake not finished", src, dst)
	e.Packet.Data = nil
	e.Conn, e.Dir = c, d
	st, other := c.stream(d), c.stream(d.Reverse())
	switch {
	case len(st.held) > 0, st.lost, other.acked && st.known && int32(other.ack-st.next) > 0:
		e.Text = "the capture lacks bytes of the handshake: no " + c.awaited()
	case overdue:
		e.Text = "no " + c.awaited() + " for " + silence.String()
		e.problem(Timeout, e.Text, "RFC 7609 p.134")
	default:
		e.Text = "the capture ends before the " + c.awaited()
	}
	t.send(e)
}

// closeConns reports handshakes that are not over at the end of the input.
func (t *Tracker) closeConns() {
	for c := t.waits.first(); c != nil; c = t.waits.first() {
		overdue := t.now.Sub(c.waitSince) >= silence
		t.waits.remove(&c.wait)
		t.unfinished(c, overdue)
	}
}

// undecodable reports a packet of ours with headers that end early or contradict themselves.
func (t *Tracker) undecodable(l *layers) {
	src, dst, ours := t.ports(l)
	if !ours {
		return
	}
	e := t.begin(Note, "undecodable", src, dst)
	e.Text = "the TCP or UDP header cannot be decoded"
	if l.truncated() {
		e.problem(Truncated, "the capture ends within the headers", "")
	} else {
		e.problem(Malformed, "the headers contradict themselves", "")
	}
	t.send(e)
}

// fragment reports an IP fragment of ours. Fragments are not put together: packets of RoCEv2 are
// never fragmented, and handshakes are so short that TCP cuts them.
func (t *Tracker) fragment(l *layers) {
	src, dst, ours := t.ports(l)
	if !ours {
		return
	}
	e := t.begin(Note, "fragment", src, dst)
	e.Text = "an IP fragment, which is not decoded"
	e.problem(Truncated, e.Text, "IBTA A17.3.1.1")
	t.send(e)
}

// ports returns the ends of a packet of which the body has the ports, and whether it concerns us.
func (t *Tracker) ports(l *layers) (src, dst netip.AddrPort, ours bool) {
	if len(l.body) < 4 {
		return src, dst, false
	}
	from, to := uint16(l.body[0])<<8|uint16(l.body[1]), uint16(l.body[2])<<8|uint16(l.body[3])
	src, dst = netip.AddrPortFrom(l.src, from), netip.AddrPortFrom(l.dst, to)
	if l.udpBody {
		return src, dst, to == roce.Port
	}
	return src, dst, t.conns.byKey[makeConnKey(l.src, from, l.dst, to)] != nil
}

// reason counts the reason of a Decline.
func (c *counters) reason(r clc.Reason) {
	n := c.reasons[r.Code]
	if n == nil {
		if len(c.reasons) >= maxReasons {
			return
		}
		n = &ReasonCount{Reason: r}
		c.reasons[r.Code] = n
	}
	n.Count++
}
