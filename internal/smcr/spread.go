package smcr

import (
	"cmp"
	"errors"
	"slices"

	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
)

// SpreadConnections and SpreadBytes are policies: the measure by which links are to be loaded
// alike.
const (
	SpreadConnections = "connections" // that write over them
	SpreadBytes       = "bytes"       // that these have written
)

// A spread decides which connection writes over which link of a group. It is how the connections
// are spread over the links now, and is good for as long as g.mu is held. newSpread looks at each
// connection once; each move changes the loads.
//
// A connection begins on the link with the least load. When a link comes some connections of the
// others move to it, so that all have the same load, by Config.Spread. An asymmetric link has no
// connections while there is another one: it shares a device with that. Nor has a link that is
// about to end.
type spread struct {
	group *group
	links []spreadLink // that may be used, in the order of llcflow's list
}

type spreadLink struct {
	*groupLink
	rank int // links of the lowest rank are used
	load uint64
}

// newSpread returns the current spread of a group. g.mu is held.
func newSpread(g *group) *spread {
	s := &spread{group: g}
	for _, x := range g.ctl.Links() {
		if l := g.links.get(x.Num); l != nil && l.up {
			rank := 0
			switch {
			case x.Leaving:
				rank = 2 // rule: TestLeavingUnused: rank = 2 -> rank = 0
			case x.Asymmetric:
				rank = 1
			}
			s.links = append(s.links, spreadLink{l, rank, 0})
		}
	}
	if len(s.links) > 1 { // else nobody compares
		for _, c := range g.conns.all {
			if c.link != nil && !c.detached {
				s.add(c.link.Link(), s.weight(c))
			}
		}
	}
	return s
}

// weight is the load that a connection adds to its link. By bytes one that has written nothing
// counts too, so that new ones do not all begin on one link.
func (s *spread) weight(c *binding) uint64 {
	if s.group.fabric.cfg.Spread == SpreadBytes { // rule: internal/host TestSMCRSpread
		return idleWeight + c.link.Delivered()
	}
	return 1
}

// on returns the entry of a link, nil if it is none to be used.
func (s *spread) on(l *link.Link) *spreadLink {
	for i := range s.links {
		if s.links[i].net == l {
			return &s.links[i]
		}
	}
	return nil
}

// add adds to the load of a link.
func (s *spread) add(l *link.Link, weight uint64) {
	if x := s.on(l); x != nil {
		x.load += weight
	}
}

// pick returns the link for a connection to write over, with its element there, and none of those
// that have been tried; nil if there is none.
func (s *spread) pick(owner llcflow.Owner, tried []*spreadLink) (best *spreadLink, at llcflow.Element) {
	for i := range s.links {
		x := &s.links[i]
		if x.net.Err() != nil || slices.Contains(tried, x) {
			continue
		}
		if best != nil && (x.rank > best.rank || x.rank == best.rank && x.load >= best.load) {
			continue
		}
		if el, ok := s.group.ctl.ElementOn(owner, x.num); ok {
			best, at = x, el
		}
	}
	return best, at
}

// move has a connection of a weight go on over a link.
func (s *spread) move(c *binding, to *spreadLink, el llcflow.Element, weight uint64) error {
	from := c.link.Link()
	if err := c.link.Move(to.net, link.RMBToken{RKey: el.RKey, Addr: el.VA}); err != nil {
		return err
	}
	if !c.detached {
		if x := s.on(from); x != nil {
			x.load -= min(x.load, weight)
		}
		to.load += weight
	}
	return nil
}

// moveAll moves the connections that write over a link to other links. It returns how many it has
// moved, and the connections for which there is no link. A link may fail after it was picked, and
// with it the move: then another one is picked, as long as there is one.
func (s *spread) moveAll(from *groupLink) (moved int, stuck []*binding) {
	s.links = slices.DeleteFunc(s.links, func(x spreadLink) bool { return x.groupLink == from })
	var tried []*spreadLink
	for owner, c := range s.group.conns.all {
		if c.link == nil || c.link.Link() != from.net {
			continue
		}
		weight := s.weight(c)
		to, el := s.pick(owner, nil)
		for tried = tried[:0]; to != nil && s.move(c, to, el, weight) != nil; to, el = s.pick(owner, tried) {
			tried = append(tried, to)
		}
		if to == nil {
			stuck = append(stuck, c)
			continue
		}
		moved++
	}
	return moved, stuck
}

// namedTo returns the link on which a new connection is to begin where links were lost, nil if that
// does not matter: the one that the handshake has named, on which a Linux peer has registered its
// memory in any case. g.mu is held.
func (s *groupLinks) namedTo(c *binding) (*groupLink, llcflow.Element) {
	if l := c.named; s.failovers > 0 && l != nil && l.up && l.net.Err() == nil { // rule: internal/host TestSMCRNamedNewest
		if el, ok := s.group.ctl.ElementOn(c.owner, l.num); ok && !s.leaves(l) { // rule: TestLeavingUnused: !s.leaves(l) -> true
			return l, el
		}
	}
	return nil, llcflow.Element{}
}

// begin has a new connection write over one of the links, by a function that attaches it. A link
// may fail after it was picked: then another one is, as in moveAll. g.mu is held.
func (s *groupLinks) begin(c *binding, attach func(l *groupLink, el llcflow.Element) error) error {
	if l, el := s.namedTo(c); l != nil {
		if err := attach(l, el); !errors.Is(err, link.ErrNotReady) {
			return err
		}
	}
	now := newSpread(s.group)
	var tried []*spreadLink
	for to, el := now.pick(c.owner, nil); to != nil; to, el = now.pick(c.owner, tried) {
		if err := attach(to.groupLink, el); !errors.Is(err, link.ErrNotReady) { // rule: TestAttachAnew: !errors.Is(err, link.ErrNotReady) -> true
			return err
		}
		tried = append(tried, to)
	}
	// The group ends: bytes that have come before can be read. Without it TestSMCROneShot loses
	// bytes now and then.
	return attach(s.main(), *c.element)
}

// balance spreads connections when a link has come, the heaviest first: each move leaves the link
// that had more with no less.
func (s *spread) balance() {
	type moving struct {
		owner  llcflow.Owner
		weight uint64
	}
	var all []moving
	for owner, c := range s.group.conns.all {
		if c.link != nil && !c.detached {
			all = append(all, moving{owner, s.weight(c)})
		}
	}
	slices.SortFunc(all, func(a, b moving) int {
		return cmp.Or(-cmp.Compare(a.weight, b.weight), cmp.Compare(a.owner, b.owner))
	})
	for _, x := range all {
		c := s.group.conns.all[x.owner]
		from := s.on(c.link.Link())
		to, el := s.pick(x.owner, nil)
		if from == nil || to == nil || to == from {
			continue
		}
		if from.load > to.load+x.weight { // rule: internal/host TestSMCRSpread
			_ = s.move(c, to, el, x.weight) // else it stays
		}
	}
}
