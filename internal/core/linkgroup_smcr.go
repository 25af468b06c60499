package core

import (
	"slices"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// This file finds link groups of SMC-R. Which peer a group is with is not in a key: it is found by the peer's
// identity and any link that is in use, as the messages may name each of them.

// A JoinRequest asks for the link group of a connection, while the handshake is to [Prepare] Choice.
type JoinRequest struct {
	Role     Role
	Choice   Choice
	ID       wire.LinkID // of a new group
	MaxConns int         // of a new group, on the server; less than 1 counts as 1

	// The network that the connection is on, as far as it is told apart: a group is on one.
	VLAN   uint16
	PNETID string

	// Waited says that the connection has waited for a first contact of another, for [FirstContactWait]:
	// it is not asked to wait again.
	Waited bool
}

// A Join is the answer to a JoinRequest. Exactly one of Group, Wait and Why is set.
type Join struct {
	Group        *LinkGroup    // which the connection has joined
	FirstContact bool          // Group is new
	Wait         bool          // a first contact with the peer is under way: ask again when it is over
	Why          clc.Diagnosis // there is no group; for [Handshake.PrepareFailed]

	// Link, unless FirstContact, is the link that a server names in its Accept, and that the Accept
	// has named to a client.
	Link GroupLink
	// Ended are idle groups that had to make room. They are dropped, and have to be ended
	// (LinkControl.End of internal/llcflow).
	Ended []*LinkGroup
}

// JoinLinks adds a connection to a link group of SMC-R.
//
// A server finds one with the peer and with room, or makes one. While a first contact with the peer
// is under way the others wait for it, so that a burst of connections makes one group (Linux
// net/smc lets all peers wait for one). A client follows the Accept: a new group on first contact,
// also if there is one; else the group with the link that the Accept names. If there is none the
// reason is clc.DiagSync: Linux net/smc.
//
// A group is for one role (RFC 7609 §2.2.3 has it so that "client" and "server" of its LLC messages
// mean something).
func (g *Groups) JoinLinks(q JoinRequest) Join {
	switch {
	case q.Role == RoleServer:
		return g.serverJoinLinks(q)
	case q.Choice.FirstContact:
		return g.addLinks(q)
	}
	return g.clientJoinLinks(q)
}

func (g *Groups) serverJoinLinks(q JoinRequest) Join {
	pending := false
	for _, lg := range g.linked {
		if !lg.serves(&q) {
			continue
		}
		switch {
		case lg.state == groupPending:
			pending = true
		case lg.doubted || lg.answer == AnswerLate: // rule: TestLinksDoubt, TestLinksAnswer
		case lg.answer == AnswerAwaited:
			pending = true // rule: TestLinksAnswer
		case lg.Conns < lg.MaxConns && !lg.full && len(lg.links) > 0: // rule: TestLinksServer
			lg.Conns++
			return Join{Group: lg, Link: lg.links[0]}
		}
	}
	if pending && !q.Waited { // rule: TestLinksSerialised
		return Join{Wait: true}
	}
	return g.addLinks(q)
}

func (g *Groups) clientJoinLinks(q JoinRequest) Join {
	pending := false
	for _, lg := range g.linked {
		if lg.Key.Role != RoleClient || !lg.onNetwork(&q) || lg.peer != q.Choice.PeerID { // rule: TestLinksClient
			continue
		}
		link, ok := lg.linkTo(q.Choice.Version, q.Choice.R)
		switch {
		case !ok:
		case lg.state == groupPending:
			pending = true // the server has heard of its end before us
		default:
			lg.Conns++
			return Join{Group: lg, Link: link}
		}
	}
	if pending && !q.Waited { // rule: TestLinksSerialised
		return Join{Wait: true}
	}
	return Join{Why: clc.DiagSync}
}

// addLinks makes a group.
func (g *Groups) addLinks(q JoinRequest) Join {
	var j Join
	if g.count >= g.limit {
		idle := g.EvictIdle()
		if idle == nil { // rule: TestLinksLimit
			j.Why = clc.DiagLimit
			return j
		}
		j.Ended = append(j.Ended, idle)
	}
	lg := &LinkGroup{
		Key: q.Choice.Key(q.Role), ID: q.ID, Conns: 1, MaxConns: max(q.MaxConns, 1),
		VLAN: q.VLAN, PNETID: q.PNETID, peer: q.Choice.PeerID,
	}
	if r := q.Choice.R; r != nil {
		lg.MaxConns = defaultMaxConns // the server keeps to the agreed number
		lg.links = []GroupLink{{Peer: peerEnd(r)}}
	}
	g.linked = append(g.linked, lg)
	g.groups[lg.Key] = append(g.groups[lg.Key], lg)
	g.count++
	j.Group, j.FirstContact = lg, true
	return j
}

// EvictIdle drops the link group of SMC-R that has been idle for longest, to make room for others,
// and returns it, nil if none is idle. The caller ends it (LinkControl.End of internal/llcflow).
func (g *Groups) EvictIdle() *LinkGroup {
	var oldest *LinkGroup
	for _, lg := range g.linked {
		if lg.Conns == 0 && (oldest == nil || lg.idleSince.Before(oldest.idleSince)) { // rule: TestLinksLimit
			oldest = lg
		}
	}
	if oldest != nil {
		g.Drop(oldest)
	}
	return oldest
}

// SetLinks tells which links a group has (LinkControl.Links): connections are found by them, and
// a group without links is not joined. To be called when the group is confirmed, and when its links
// change.
func (g *Groups) SetLinks(lg *LinkGroup, links []GroupLink) {
	for _, l := range lg.links {
		if !slices.ContainsFunc(links,
			func(x GroupLink) bool { return x.Peer.QPN == l.Peer.QPN && x.Peer.GID == l.Peer.GID }) {
			lg.former = append(lg.former, l)
		}
	}
	lg.former = lg.former[max(0, len(lg.former)-MaxFormerLinks):]
	lg.links = slices.Clone(links)
}

// SetFull says whether a group has no room for another RMB (LinkControl.Room). A server then
// makes another one.
func (g *Groups) SetFull(lg *LinkGroup, full bool) { lg.full = full }

// Doubt says that a client does not have the group that a server has named to it
// ([FallBack].OutOfSync): no connection joins it any more. "The receiving peer must clean up its
// representation of the link group" (RFC 7609 p.105). But the client on the TCP connection need not
// be the peer on the link, and that peer's other connections would be lost. So that peer is to be
// asked whether it is there (LinkControl.Suspect), and the group ends if it is not, or when it is
// idle.
func (g *Groups) Doubt(lg *LinkGroup) { lg.doubted = true }

// An Answer is the state of the answer of a peer that was asked whether it is there.
type Answer uint8

const (
	AnswerNone    Answer = iota // it was not asked, or has answered
	AnswerAwaited               // it was asked just now
	AnswerLate                  // it has not answered for longer than peers take
)

// SetAnswer says how a peer is about to answer (LinkControl.Suspect). A server's connections wait
// for that before they join the group, and if it takes longer than usual they have another one:
// this one may be about to end, and then they would fall back with it.
func (g *Groups) SetAnswer(lg *LinkGroup, a Answer) { lg.answer = a }

// Pending reports whether the first contact of a group is under way, for which others wait.
func (lg *LinkGroup) Pending() bool { return lg.state == groupPending }

// ConfirmedLink returns the link that a client's later Confirm names: "the MAC/GID/QP information provided by
// the client matches an active link within the link group" (RFC 7609 p.41). Without one the client has
// broken the protocol. Linux net/smc does not look.
func (lg *LinkGroup) ConfirmedLink(version clc.Version, p *clc.ParamsR) (GroupLink, bool) {
	if p.PeerID != lg.peer { // rule: TestLinksConfirm
		return GroupLink{}, false
	}
	return lg.linkTo(version, p)
}

// confirmLinks takes the peer's parameters from a first contact, and returns the groups with other
// instances at the same RNIC and address. They may belong to a peer that was started again, or to
// programs that share an RNIC. Which of the two is not known from their identity, so they are asked
// (LinkControl.Suspect).
func (g *Groups) confirmLinks(lg *LinkGroup, r *clc.ParamsR) []*LinkGroup {
	lg.peer = r.PeerID // rule: TestLinksZeroPeer
	if len(lg.links) == 0 {
		lg.links = []GroupLink{{Peer: peerEnd(r)}}
	}
	if r.PeerID == zeroPeer {
		return nil
	}
	var suspects []*LinkGroup
	for _, x := range g.linked {
		other := x.peer.MAC() == r.PeerID.MAC() && x.peer.Instance() != r.PeerID.Instance()
		// rule: TestLinksRestart: x.reaches(r.GID) -> true
		if x.state == groupConfirmed && x.peer != zeroPeer && other && x.reaches(r.GID) {
			suspects = append(suspects, x)
		}
	}
	return suspects
}

// serves reports whether a server's group is with the client that has sent a Proposal. Linux
// net/smc leaves the peer ID zero in the Proposal of SMC-Rv2: then the address decides, and the
// client's Confirm has told the identity.
func (lg *LinkGroup) serves(q *JoinRequest) bool {
	c := &q.Choice
	if lg.Key.Role != RoleServer || !lg.onNetwork(q) { // rule: TestLinksServer
		return false
	}
	if c.PeerID != zeroPeer && lg.peer != zeroPeer && c.PeerID != lg.peer { // rule: TestLinksServer
		return false
	}
	if lg.state == groupPending {
		return lg.Key.GID.Addr() == c.GID.Addr()
	}
	for i := range lg.links {
		// rule: TestLinksServer
		if p := &lg.links[i].Peer; p.GID.Addr() == c.GID.Addr() && (c.Version == clc.V2 || p.MAC == c.MAC) {
			return true
		}
	}
	return false
}

// onNetwork reports whether a group is on the connection's network, in its version.
func (lg *LinkGroup) onNetwork(q *JoinRequest) bool {
	switch {
	case lg.VLAN != q.VLAN: // rule: TestLinksServer
		return false
	case lg.PNETID != q.PNETID: // rule: TestLinksServer
		return false
	}
	return lg.Key.Version == q.Choice.Version // rule: TestLinksServer: lg.Key.Version == q.Choice.Version -> true
}

// linkTo returns the link with p as its other end. While the group has others it may be one that
// was lost not long ago: CLC and LLC overtake each other, and the sender of the message may not
// know that yet.
func (lg *LinkGroup) linkTo(version clc.Version, p *clc.ParamsR) (GroupLink, bool) {
	list := lg.links
	if len(list) > 0 { // rule: TestLinksFormer
		list = slices.Concat(list, lg.former)
	}
	for _, l := range list {
		// rule: TestLinksClient, TestLinksConfirm
		if l.Peer.QPN == p.QPN && l.Peer.GID.Addr() == p.GID.Addr() &&
			(version == clc.V2 || l.Peer.MAC == p.MAC) {
			return l, true
		}
	}
	return GroupLink{}, false
}

// reaches reports whether a link of the group ends at a GID.
func (lg *LinkGroup) reaches(gid wire.GID) bool {
	return slices.ContainsFunc(lg.links, func(l GroupLink) bool { return l.Peer.GID.Addr() == gid.Addr() })
}

// peerEnd returns the end of a link that a message names.
func peerEnd(r *clc.ParamsR) LinkEnd {
	return LinkEnd{GID: r.GID, MAC: r.MAC, QPN: r.QPN, PSN: r.PSN, MTU: r.MTU}
}
