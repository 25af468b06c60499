package dissect

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// eyecatcherLen is the length in bytes of the eyecatcher at the start of an RMB element, on hosts
// that have one: RFC 7609 p.60. Cursors skip it.
const eyecatcherLen = 4

// learn takes the facts about buffers and links from Accept and Confirm, of which c has both.
func (t *Tracker) learn(c *Conn) {
	a, f := c.Accept, c.Confirm
	switch {
	case a.R != nil && f.R != nil:
		t.learnR(c, a, f)
	case a.D != nil && f.D != nil:
		t.learnD(c, a, f)
	default:
		return
	}
	c.Group.Conns++
	if c.Mode == modeUnknown {
		t.setMode(c, c.Group.Mode)
	}
	if fce := a.FCE; fce != nil {
		c.Group.ServerHost = fce.HostName
	}
	if fce := f.FCE; fce != nil {
		c.Group.ClientHost = fce.HostName
	}
}

// modeOf returns the name of the mode that an Accept chooses, in a release of version 2; -1 if that
// is not known.
func modeOf(a *clc.Accept, release int) string {
	kind := "SMC-R"
	if a.D != nil {
		kind = "SMC-D"
	}
	switch {
	case a.Version == clc.V1:
		return kind + "v1"
	case release > 0:
		return fmt.Sprintf("%sv2.%d", kind, release)
	}
	return kind + "v2"
}

// releaseOf returns the release of version 2 that a first contact agrees on, -1 if a does not say.
func releaseOf(a *clc.Accept) int {
	if a.FCE == nil {
		return -1
	}
	return int(a.FCE.Release)
}

func (t *Tracker) learnD(c *Conn, a *clc.Accept, f *clc.Confirm) {
	key := groupKeyD{a.D.GID, f.D.GID, a.D.LinkID}
	g := t.links.groupsD[key]
	if g == nil {
		// Either host may be the client of the next connection.
		g = t.links.groupsD[groupKeyD{f.D.GID, a.D.GID, a.D.LinkID}]
	}
	if g == nil || a.FirstContact {
		g = t.newGroup(modeOf(a, releaseOf(a)), c.Client.Addr(), c.Server.Addr())
		g.SMCD, g.Release = true, releaseOf(a)
		g.setFirst(c, a)
		g.dKey = key
		t.links.groupsD[key] = g
	}
	t.links.groups.touch(&g.used)
	c.Group = g
	for _, side := range []struct {
		ring *Ring
		p    *clc.ParamsD
	}{{&c.ToServer, a.D}, {&c.ToClient, f.D}} {
		r := side.ring
		r.Known = true
		r.RMBEIndex, r.Token = side.p.DMBEIndex, side.p.Token
		r.Size = side.p.DMBESize.Bytes()
		r.Capacity = r.Size - cdc.HeaderLen
	}
}

func (t *Tracker) learnR(c *Conn, a *clc.Accept, f *clc.Confirm) {
	l := t.links.ends[(&Endpoint{Addr: a.R.GID.Addr(), QPN: a.R.QPN}).key()]
	if l != nil && (l.Client.QPN != f.R.QPN || l.Client.Addr != f.R.GID.Addr()) {
		l = nil // the server's queue pair has a new life, with another client
	}
	if l == nil || a.FirstContact {
		g := t.newGroup(modeOf(a, releaseOf(a)), f.R.GID.Addr(), a.R.GID.Addr())
		g.Release = releaseOf(a)
		g.setFirst(c, a)
		g.ServerPeerID, g.ClientPeerID = a.R.PeerID, f.R.PeerID
		l = t.newLink(g, nil)
		l.First = a.FirstContact
		l.Server, l.Client = endpointOf(a.R), endpointOf(f.R)
		// Of a later connection the first packets are long gone.
		l.Server.PSNKnown, l.Client.PSNKnown = a.FirstContact, a.FirstContact
		t.attach(l)
	}
	g := l.Group
	t.links.groups.touch(&g.used)
	if g.Mode == "" { // made by CONFIRM LINK, which does not say
		g.Mode = modeOf(a, -1)
	}
	c.Group, c.Link = g, l
	l.Conns++
	c.onLink = true
	t.learnRing(c, &c.ToServer, a.R)
	t.learnRing(c, &c.ToClient, f.R)
	for _, r := range []*Ring{&c.ToServer, &c.ToClient} {
		if g.early[r.Dir.index()].take(r.AlertToken) {
			r.writerAt = mark{}
		}
	}
}

// earlyTokens holds the tokens of CDC messages that came before their connection was known. A
// client that knows its link sends as soon as it has sent Confirm, which may be lost and come again
// when much has been said.
type earlyTokens struct {
	tokens map[wire.AlertToken]struct{}
	more   bool // some were forgotten
}

func (s *earlyTokens) add(token wire.AlertToken) {
	if _, ok := s.tokens[token]; ok || s.more {
		return
	}
	if len(s.tokens) == maxEarly {
		s.tokens, s.more = nil, true
		return
	}
	if s.tokens == nil {
		s.tokens = make(map[wire.AlertToken]struct{})
	}
	s.tokens[token] = struct{}{}
}

// take reports whether messages of a connection that is known now may have come before.
func (s *earlyTokens) take(token wire.AlertToken) bool {
	_, ok := s.tokens[token]
	delete(s.tokens, token)
	return ok || s.more
}

// setFirst notes whether c is the first contact that made the link group; a is the Accept of c.
func (g *LinkGroup) setFirst(c *Conn, a *clc.Accept) {
	if g.FirstContact = a.FirstContact; g.FirstContact {
		g.FirstConn = c.ID
	}
}

func endpointOf(p *clc.ParamsR) Endpoint {
	return Endpoint{Addr: p.GID.Addr(), GID: p.GID, MAC: p.MAC, QPN: p.QPN, PSN: p.PSN, MTU: p.MTU}
}

// learnRing takes the parameters that one side sends for its receive buffer, on the link of c.
func (t *Tracker) learnRing(c *Conn, r *Ring, p *clc.ParamsR) {
	l := c.Link
	r.Known = true
	r.RKey, r.RMBEIndex, r.AlertToken = p.RKey, p.RMBEIndex, p.AlertToken
	r.Size = p.RMBESize.Bytes()
	if p.RMBEIndex > 0 {
		r.offset = uint64(p.RMBEIndex-1) * uint64(r.Size)
	}
	r.VA = p.RMBAddr + r.offset
	r.link = l
	r.setEyecatcher(l.Group.eyecatcher[r.Dir.index()])
	if w := l.flows[r.Dir.index()]; w != nil {
		r.writerAt = w.mark()
	}
	if w := l.flows[r.Dir.Reverse().index()]; w != nil {
		r.readerAt = w.mark()
	}
	t.addRegion(l, r.Dir, p.RKey, p.RMBAddr, nil).addRing(r)

	tokens := &l.Group.tokens[r.Dir.index()]
	if *tokens == nil {
		*tokens = make(map[wire.AlertToken]*Conn)
	}
	(*tokens)[p.AlertToken] = c
}

// setEyecatcher says whether the element begins with an eyecatcher, which is before any data.
func (r *Ring) setEyecatcher(has bool) {
	r.base, r.Capacity = 0, r.Size
	if has {
		r.base, r.Capacity = eyecatcherLen, r.Size-eyecatcherLen
	}
	if r.Messages == 0 {
		start := cdc.Cursor{Count: r.base}
		r.Producer, r.Consumer = start, start
		r.ProducerKnown, r.ConsumerKnown = true, true
	}
}

// addRegion notes an RMB that packets of direction d write to over l, and returns it: known, or if it is
// nil the one with that RKey and address, or a new one.
func (t *Tracker) addRegion(l *Link, d Direction, rkey wire.RKey, va uint64, known *rmb) *rmb {
	regions := &l.rkeys[d.index()]
	if *regions == nil {
		*regions = make(map[wire.RKey]*region)
	}
	old := (*regions)[rkey]
	if old != nil && old.va == va && (known == nil || old.rmb == known) {
		old.rmb.renew()
		return old.rmb
	}
	if known == nil {
		known = &rmb{}
	}
	if old == nil && len(*regions) >= maxRegions {
		t.links.regions -= len(*regions)
		maps.DeleteFunc(*regions, func(_ wire.RKey, r *region) bool { return r.rmb.deleted })
		t.links.regions += len(*regions)
	}
	if old == nil && (len(*regions) >= maxRegions || t.links.regions >= maxAllRegions) {
		return known
	}
	if old == nil {
		t.links.regions++
	}
	(*regions)[rkey] = &region{va: va, rmb: known}
	known.renew()
	return known
}

// renew says that the RMB is told of again. Linux net/smc deletes it at the end of a connection, and
// tells of it for the next.
func (m *rmb) renew() {
	if m.deleted {
		m.deleted, m.rings = false, nil
	}
}

// addRing notes that an element of the RMB belongs to a connection now.
func (m *rmb) addRing(r *Ring) {
	m.rings = slices.DeleteFunc(m.rings, func(old *Ring) bool {
		return old == r || old.offset == r.offset || old.offset < r.offset+uint64(r.Size) &&
			r.offset < old.offset+uint64(old.Size)
	})
	m.rings = append(m.rings, r)
	r.rmb = m
}

// ring returns the element at an offset, nil if none is known.
func (m *rmb) ring(offset uint64) *Ring {
	for _, r := range m.rings {
		if offset-r.offset < uint64(r.Size) {
			return r
		}
	}
	return nil
}

// leaveGroup takes a connection from the tables of its link group.
func (t *Tracker) leaveGroup(c *Conn) {
	c.leaveLink()
	if c.Group == nil {
		return
	}
	for _, r := range []*Ring{&c.ToServer, &c.ToClient} {
		tokens := c.Group.tokens[r.Dir.index()]
		if tokens[r.AlertToken] == c {
			delete(tokens, r.AlertToken)
		}
	}
	c.leaveBuffers()
}

// leaveBuffers says that the elements of c are not its own any more.
func (c *Conn) leaveBuffers() {
	for _, r := range []*Ring{&c.ToServer, &c.ToClient} {
		if r.rmb != nil {
			r.rmb.rings = slices.DeleteFunc(r.rmb.rings, func(other *Ring) bool { return other == r })
			r.rmb = nil
		}
	}
}

// leaveLink says that c does not use its link any more.
func (c *Conn) leaveLink() {
	if c.onLink {
		c.onLink = false
		c.Link.Conns--
	}
}

// moveTo says that c uses another link from now on.
func (c *Conn) moveTo(l *Link) {
	counted := c.onLink
	c.leaveLink()
	c.Link = l
	if counted {
		c.onLink = true
		l.Conns++
	}
}
