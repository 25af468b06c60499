package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A GroupKey says between whom a link group is. Two groups with the same key may exist side by
// side, when one is full or not confirmed yet. Role is our role when the group was made: a group
// is used in one direction, as in RFC 7609 for SMC-R; a peer that is client and server
// at once has two.
type GroupKey struct {
	Mode    Mode
	Role    Role
	Version clc.Version

	// SMC-D: our device, and the peer's.
	Local, Remote clc.ISMDevice

	// SMC-R: the peer. PeerID may be zero, see [Choice].
	PeerID wire.PeerID
	GID    wire.GID
}

// Key returns the key of the group that c belongs to.
func (c Choice) Key(role Role) GroupKey {
	k := GroupKey{Mode: c.Mode, Role: role, Version: c.Version} // rule: TestChoiceKey: role -> 0
	switch c.Mode {
	case SMCD:
		k.Local, k.Remote = c.Local, c.Remote // rule: TestChoiceKey
	case SMCR:
		k.PeerID, k.GID = c.PeerID, c.GID // rule: TestChoiceKey
	}
	return k
}

// A LinkGroup has the state that all connections between two peers share. In SMC-D that is little
// more than their number and the values that the peers told each other on first contact. A link
// group of SMC-R also has links, which are kept elsewhere under its ID. Its fields are read only.
type LinkGroup struct {
	Key      GroupKey
	ID       wire.LinkID // ours, as we send it
	PeerID   wire.LinkID // SMC-D: the peer's
	MaxConns int         // connections at a time; the server keeps to it
	Conns    int         // connections now, with those still in the handshake
	Result   Result      // of the first contact, once it is confirmed
	VLAN     uint16      // SMC-R: the network, see JoinRequest
	PNETID   string      // SMC-R: likewise

	state     groupState
	idleSince time.Time // when Conns became 0

	// SMC-R.
	peer   wire.PeerID // zero: not known yet
	links  []GroupLink
	former []GroupLink // those that were lost last, see linkTo
	full   bool        // no room for another RMB

	doubted bool   // a client says that it does not have it
	answer  Answer // of the peer that was asked whether it is there
}

type groupState uint8

const (
	groupPending   groupState = iota // first contact is under way; the peer may not know it yet
	groupConfirmed                   // in use
	groupGone                        // in no table any more
)

// Groups is the table of link groups of a host. Methods must not be called at the same time. The
// number of groups is bounded; at the bound new peers fall back to TCP with clc.DiagLimit.
//
// A server calls ServerJoin when it is to Prepare a [Choice], a client ClientJoin, both of them
// JoinLinks for SMC-R; both call Confirm when a first contact is [Established], and Leave when the
// handshake fell back, or the connection has ended (ConnClosed). A group without connections stays
// for a while, on the client longer than on the server: if the client forgot it first, the server
// would name a group that the client does not know.
type Groups struct {
	limit  int
	count  int
	groups map[GroupKey][]*LinkGroup
	linked []*LinkGroup // groups of SMC-R that JoinLinks has made, in that order
}

// NewGroups returns a table for at most limit groups.
func NewGroups(limit int) *Groups {
	return &Groups{limit: limit, groups: make(map[GroupKey][]*LinkGroup)}
}

// ServerJoin adds a connection to a group with room, or to a new one with the given id: then it
// is a first contact. A connection does not join a group before the group's own first contact is
// confirmed, because the client may read the second Accept before the first. The reason is
// clc.DiagNone, or why there is no group.
func (g *Groups) ServerJoin(key GroupKey, id wire.LinkID,
	maxConns int) (lg *LinkGroup, firstContact bool, why clc.Diagnosis) {
	for _, lg := range g.groups[key] {
		if lg.state == groupConfirmed && lg.Conns < lg.MaxConns { // rule: TestGroupsServer: lg.Conns < lg.MaxConns -> true
			lg.Conns++
			return lg, false, clc.DiagNone
		}
	}
	lg, why = g.add(key, id)
	if lg != nil {
		lg.MaxConns = max(maxConns, 1) // rule: TestGroupsMaxConns
	}
	return lg, lg != nil, why
}

// ClientJoin adds a connection to the group that an Accept means: a new one with the given id on
// first contact, else one that we have, preferably the one that the server calls peerID. If there
// is none the reason is clc.DiagSync. A server names a group of SMC-D as soon as it has read our
// Confirm, which may be before the handshake that sent it is over here: such a group is not
// confirmed, and known by peerID.
func (g *Groups) ClientJoin(key GroupKey, firstContact bool, id,
	peerID wire.LinkID) (*LinkGroup, clc.Diagnosis) {
	if firstContact {
		lg, why := g.add(key, id)
		if lg != nil {
			lg.PeerID = peerID
		}
		return lg, why
	}
	var found *LinkGroup
	for _, lg := range g.groups[key] {
		known := lg.state == groupConfirmed || key.Mode == SMCD && lg.state == groupPending &&
			lg.PeerID == peerID
		// rule: TestGroupsClient: known -> (known || true)
		if known && (found == nil || lg.PeerID == peerID && found.PeerID != peerID) {
			found = lg
		}
	}
	if found == nil {
		return nil, clc.DiagSync
	}
	found.Conns++
	return found, clc.DiagNone
}

// add makes a group with one connection.
func (g *Groups) add(key GroupKey, id wire.LinkID) (*LinkGroup, clc.Diagnosis) {
	if g.count >= g.limit && !g.evict() { // rule: TestGroupsLimit
		return nil, clc.DiagLimit
	}
	lg := &LinkGroup{Key: key, ID: id, Conns: 1}
	g.groups[key] = append(g.groups[key], lg)
	g.count++
	return lg, clc.DiagNone
}

// evict makes room by the SMC-D group that has been idle longest, if it is one that a server made:
// forgetting it does no harm.
func (g *Groups) evict() bool {
	var oldest *LinkGroup
	for _, lg := range g.All() {
		// rule: TestGroupsLimit: lg.Key.Role == RoleServer -> true
		if lg.Conns == 0 && lg.Key.Mode == SMCD && lg.Key.Role == RoleServer &&
			(oldest == nil || lg.idleSince.Before(oldest.idleSince)) {
			oldest = lg
		}
	}
	if oldest == nil {
		return false
	}
	g.Drop(oldest)
	return true
}

// Confirm says that lg's first contact is over: other connections may join. r is kept. It returns
// the groups of SMC-R with a peer that may have been started again since. Each such peer has to be
// asked whether it is there (LinkControl.Suspect of internal/llcflow).
func (g *Groups) Confirm(lg *LinkGroup, r Result) (suspects []*LinkGroup) {
	if lg.state != groupPending {
		return nil
	}
	lg.state = groupConfirmed
	lg.Result = r
	if r.D != nil {
		lg.PeerID = r.D.LinkID
	}
	if r.Mode == SMCR && r.MaxConns > 0 {
		lg.MaxConns = min(lg.MaxConns, int(r.MaxConns)) // rule: TestGroupsMaxConns
	}
	if r.R != nil {
		return g.confirmLinks(lg, r.R)
	}
	return nil
}

// Leave takes a connection out of lg. A group that was never confirmed goes with it.
func (g *Groups) Leave(now time.Time, lg *LinkGroup) {
	if lg.Conns == 0 {
		return
	}
	lg.Conns--
	if lg.Conns > 0 || lg.state == groupGone {
		return
	}
	lg.idleSince = now
	if lg.state == groupPending { // rule: TestGroupsEnd
		g.Drop(lg)
	}
}

// Drop takes lg out of the table: no connection joins it any more. Those it has are left alone;
// the caller ends them if it has to, and calls Leave for each as usual.
func (g *Groups) Drop(lg *LinkGroup) {
	if lg.state == groupGone {
		return
	}
	lg.state = groupGone
	g.count--
	g.linked = slices.DeleteFunc(g.linked, func(x *LinkGroup) bool { return x == lg })
	rest := slices.DeleteFunc(g.groups[lg.Key], func(x *LinkGroup) bool { return x == lg })
	if len(rest) == 0 {
		delete(g.groups, lg.Key)
		return
	}
	g.groups[lg.Key] = rest
}

// PeerGone drops all groups with the ISM device of a peer that has vanished, and returns them in
// the order of their IDs. Their connections have to be told ([EventPeerDead]).
func (g *Groups) PeerGone(gid wire.ISMGID) []*LinkGroup {
	// rule: TestGroupsPeerGone: lg.Key.Mode == SMCD -> true
	return g.dropIf(func(lg *LinkGroup) bool { return lg.Key.Mode == SMCD && lg.Key.Remote.GID == gid })
}

// Advance drops the groups that have been idle for too long, and returns them.
func (g *Groups) Advance(now time.Time) []*LinkGroup {
	return g.dropIf(func(lg *LinkGroup) bool { return lg.Conns == 0 && !now.Before(lg.expiry()) })
}

// Deadline returns when Advance is due next, zero if no group is idle.
func (g *Groups) Deadline() time.Time {
	var next time.Time
	for _, groups := range g.groups {
		for _, lg := range groups {
			if at := lg.expiry(); lg.Conns == 0 && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}

// expiry returns when lg is dropped if it stays idle.
func (lg *LinkGroup) expiry() time.Time {
	if lg.Key.Role == RoleServer {
		return lg.idleSince.Add(ServerGroupIdleTimeout)
	}
	return lg.idleSince.Add(ClientGroupIdleTimeout)
}

// Len returns the number of groups.
func (g *Groups) Len() int { return g.count }

// All returns the groups in the order of their IDs.
func (g *Groups) All() []*LinkGroup {
	list := make([]*LinkGroup, 0, g.count)
	for _, groups := range g.groups {
		list = append(list, groups...)
	}
	slices.SortStableFunc(list, func(a, b *LinkGroup) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

func (g *Groups) dropIf(drop func(*LinkGroup) bool) []*LinkGroup {
	var dropped []*LinkGroup
	for _, lg := range g.All() {
		if drop(lg) {
			g.Drop(lg)
			dropped = append(dropped, lg)
		}
	}
	return dropped
}
