package dissect

import (
	"net/netip"
	"slices"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// A flowKey names one direction of a queue pair: packets have only the receiver's number.
type flowKey struct {
	src, dst [16]byte
	qpn      wire.QPN
}

// A flow is one direction of a queue pair.
type flow struct {
	key      flowKey
	src, dst netip.AddrPort // of the newest packet
	icrc     roce.Flow      // for these
	used     entry[flow]    // in linkTable

	link *Link // nil if not known
	dir  Direction

	goodICRC uint16 // a packet had a good ICRC, by index of its place: those that have not are damaged

	// Numbers of requests. Responses have the numbers of the other direction.
	started bool
	next    wire.PSN              // after the highest seen, or the first to come
	seen    [seenPSNs / 64]uint64 // of those before next, by their lower bits
	// epoch counts the gaps: facts learned from this direction in an earlier epoch may be outdated.
	epoch      uint32
	firstEpoch uint32 // since the first packet of the queue pair, if whole
	whole      bool   // the capture has that packet's number from the handshake
	resync     bool   // the next packet's number cannot be told, after RDMA READ

	send  assembly
	write writeContext

	// Requests that ask for an acknowledgement and have none yet.
	awaits       bool
	awaitPSN     wire.PSN // the highest
	awaitSince   int64    // unix nanoseconds, of the last progress
	acknowledged bool     // the capture has acknowledgements of this direction
	stalled      bool     // told of already

	suspicions []suspicion // that wait for the next request of this direction
}

// seenPSNs is how many numbers before the highest are remembered one by one.
const seenPSNs = 1024

// A mark is a place in a flow: it holds as long as the flow has no gap.
type mark struct {
	f     *flow
	epoch uint32
}

func (f *flow) mark() mark { return mark{f, f.epoch} }

func (m mark) holds() bool { return m.f != nil && m.f.epoch == m.epoch }

// An endKey names one end of a link.
type endKey struct {
	addr [16]byte
	qpn  wire.QPN
}

// A groupKeyD names a link group of SMC-D: the hosts, and the server's link ID.
type groupKeyD struct {
	accept, confirm wire.ISMGID
	link            wire.LinkID
}

// A linkTable has the flows, links and link groups that are remembered.
type linkTable struct {
	flows     map[flowKey]*flow
	flowsUsed list[flow]
	ends      map[endKey]*Link
	groupsD   map[groupKeyD]*LinkGroup
	groups    list[LinkGroup]
	regions   int        // of all links
	calls     list[call] // LLC requests that await a reply, in the order of their times
}

func (t *linkTable) init() {
	t.flows = make(map[flowKey]*flow)
	t.ends = make(map[endKey]*Link)
	t.groupsD = make(map[groupKeyD]*LinkGroup)
}

// flow returns the flow with the key, and makes it the newest.
func (t *Tracker) flow(key flowKey) *flow {
	if e := t.links.flowsUsed.newest; e != nil && e.of.key == key {
		return e.of
	}
	f := t.links.flows[key]
	if f == nil {
		if len(t.links.flows) >= maxFlows {
			t.count.Evicted.Flows++
			t.forgetFlow(t.links.flowsUsed.first())
		}
		f = &flow{key: key}
		t.links.flows[key] = f
	}
	t.links.flowsUsed.add(&f.used, f)
	return f
}

func (t *Tracker) forgetFlow(f *flow) {
	t.links.flowsUsed.remove(&f.used)
	delete(t.links.flows, f.key)
	f.detach()
	f.epoch++ // the facts learned from it cannot be relied on
}

// detach takes the flow from its link.
func (f *flow) detach() {
	if f.link != nil && f.link.flows[f.dir.index()] == f {
		f.link.flows[f.dir.index()] = nil
	}
	f.link, f.dir = nil, DirUnknown
}

// reverse returns the flow in the other direction, nil if it is not known.
func (f *flow) reverse() *flow {
	if f.link == nil {
		return nil
	}
	return f.link.flows[f.dir.Reverse().index()]
}

// newGroup remembers a link group.
func (t *Tracker) newGroup(mode string, client, server netip.Addr) *LinkGroup {
	if t.links.groups.len >= maxGroups {
		t.count.Evicted.Groups++
		t.forgetGroup(t.links.groups.first())
	}
	t.lastID.group++
	t.count.LinkGroups++
	g := &LinkGroup{
		ID: t.lastID.group, Mode: mode, Release: -1, Opened: t.packet.Time,
		Client: client, Server: server,
	}
	t.links.groups.add(&g.used, g)
	return g
}

// forgetGroup drops a link group from all tables. Events that have it keep it.
func (t *Tracker) forgetGroup(g *LinkGroup) {
	t.links.groups.remove(&g.used)
	if t.links.groupsD[g.dKey] == g {
		delete(t.links.groupsD, g.dKey)
	}
	for len(g.calls) > 0 {
		t.endCall(g.calls[0])
	}
	for _, l := range g.Links {
		t.forgetLink(l)
	}
	g.tokens = [2]map[wire.AlertToken]*Conn{}
	g.early = [2]earlyTokens{}
}

// newLink adds a link to a group. A group that has too many loses the oldest that matters least, but not
// keep, which carries the current message.
func (t *Tracker) newLink(g *LinkGroup, keep *Link) *Link {
	t.lastID.link++
	l := &Link{ID: t.lastID.link, Group: g, Opened: t.packet.Time}
	if len(g.Links) >= maxLinksSeen {
		drop := slices.IndexFunc(g.Links, func(l *Link) bool { return l.State >= LinkDeleted && l != keep })
		if drop < 0 {
			drop = slices.IndexFunc(g.Links,
				func(l *Link) bool { return l.State == LinkLearned && l != keep })
		}
		if drop < 0 {
			drop = slices.IndexFunc(g.Links, func(l *Link) bool { return l != keep })
		}
		t.forgetLink(g.Links[drop])
		g.Links = slices.Delete(g.Links, drop, drop+1)
	}
	g.Links = append(g.Links, l)
	return l
}

// forgetLink drops the entries that the tables have of a link.
func (t *Tracker) forgetLink(l *Link) {
	for _, e := range []*Endpoint{&l.Client, &l.Server} {
		if key := e.key(); t.links.ends[key] == l {
			delete(t.links.ends, key)
		}
	}
	for _, f := range l.flows {
		if f != nil {
			f.detach()
		}
	}
	t.links.regions -= len(l.rkeys[0]) + len(l.rkeys[1])
	l.rkeys = [2]map[wire.RKey]*region{}
}

func (e *Endpoint) key() endKey { return endKey{e.Addr.As16(), e.QPN} }

// attach ties the flows of a link to it, of which both ends are known.
func (t *Tracker) attach(l *Link) {
	t.count.Links++ // now that it is more than an offer
	if !l.Client.Addr.IsValid() || !l.Server.Addr.IsValid() {
		return
	}
	t.links.ends[l.Client.key()] = l
	t.links.ends[l.Server.key()] = l
	for _, d := range []Direction{ClientToServer, ServerToClient} {
		from, to := l.sender(d), l.sender(d.Reverse())
		f := t.flow(flowKey{from.Addr.As16(), to.Addr.As16(), to.QPN})
		if f.link == l {
			continue
		}
		old := f.link
		f.detach()
		f.link, f.dir = l, d
		l.flows[d.index()] = f
		if from.PSNKnown && (old != nil || !f.started || !f.justAfter(from.PSN)) {
			// New queue pairs may have the numbers of old ones.
			f.restart(from.PSN)
		}
	}
}

// justAfter reports whether the newest packet is shortly after psn: the capture has the link's first
// packets before the message that tells of it.
func (f *flow) justAfter(psn wire.PSN) bool {
	n := f.next.Sub(psn)
	return n > 0 && n < 64
}

// restart forgets the numbers of the flow: the next packet has psn.
func (f *flow) restart(psn wire.PSN) {
	*f = flow{
		key: f.key, src: f.src, dst: f.dst, icrc: f.icrc, used: f.used,
		link: f.link, dir: f.dir, goodICRC: f.goodICRC,
		started: true, next: psn, epoch: f.epoch + 1, firstEpoch: f.epoch + 1, whole: true, send: assembly{buf: f.send.buf[:0]},
	}
}

// A call is an LLC request that awaits a reply.
type call struct {
	group   *LinkGroup
	link    *Link // that carries it
	dir     Direction
	message llc.Message
	packet  Packet // without data
	answer  mark   // of the flow that would carry the reply, if it is known
	since   time.Time

	place entry[call] // in linkTable
}

// startCall remembers a request.
func (t *Tracker) startCall(f *flow, m llc.Message) {
	g := f.link.Group
	if len(g.calls) >= maxCalls {
		t.endCall(g.calls[0])
	}
	c := &call{group: g, link: f.link, dir: f.dir, message: m, packet: t.packet, since: t.now}
	c.packet.Data = nil
	if r := f.reverse(); r != nil {
		c.answer = r.mark()
	}
	g.calls = append(g.calls, c)
	t.links.calls.add(&c.place, c)
}

// endCall forgets a request.
func (t *Tracker) endCall(c *call) {
	if i := slices.Index(c.group.calls, c); i >= 0 {
		c.group.calls = slices.Delete(c.group.calls, i, i+1)
	}
	t.links.calls.remove(&c.place)
}
