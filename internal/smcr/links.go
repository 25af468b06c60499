package smcr

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// groupLinks are the links of a group, and the steps when one comes or goes. The group's mu guards
// them, but for upCount. Which connection writes over which link is in spread.go.
type groupLinks struct {
	group   *group
	upCount atomic.Int32 // links that connections may use, see groupLink.counts

	all       []*groupLink // never empty
	failovers uint64       // links that were lost while there were others
	moved     uint64       // connections that went on over another link then
}

// add makes our end of a link on a device that the caller has acquired, and that is the group's
// from now on, also after an error. g.mu is held, or nobody else knows the group.
func (s *groupLinks) add(n *rnic.Device, num llc.LinkNum) (*groupLink, error) {
	l := &groupLink{group: s.group, rnic: n, num: num}
	var err error
	if l.net, err = s.group.net.NewLink(n.Verbs()); err == nil {
		if err = n.AddUser(l); err != nil {
			l.net.Close()
		}
	}
	if err != nil {
		n.Release()
		return nil, err
	}
	s.all = append(s.all, l)
	return l, nil
}

// beginFirst readies our end of the link of a first contact: r has the peer's. A client's queue
// pair knows that already.
func (s *groupLinks) beginFirst(r core.Result) (*groupLink, error) {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	l := s.all[0]
	if r.Role == core.RoleServer {
		l.num = 1 // as llcflow has it
		if err := l.net.ReadyToReceive(peerOf(r.R)); err != nil {
			return nil, err
		}
		if err := l.net.ReadyToSend(); err != nil {
			return nil, err
		}
	}
	l.know(peerOf(r.R))
	return l, nil
}

// drop takes away a link. g.mu is held.
func (s *groupLinks) drop(l *groupLink) {
	s.all = slices.DeleteFunc(s.all, func(x *groupLink) bool { return x == l })
	l.rnic.RemoveUser(l)
	l.net.Close()
	l.rnic.Release()
}

// get returns the link with a number: 0 is the link of the first contact; nil if there is none.
// g.mu is held.
func (s *groupLinks) get(num llc.LinkNum) *groupLink {
	for _, l := range s.all {
		if l.num == num || num == 0 || l.num == 0 {
			return l
		}
	}
	return nil
}

// of returns the link of the data path's link, nil if it was closed. g.mu is held.
func (s *groupLinks) of(net *link.Link) *groupLink {
	for _, l := range s.all {
		if l.net == net {
			return l
		}
	}
	return nil
}

// numberOf returns the number of the link that a connection writes over, 0 if there is none.
func (s *groupLinks) numberOf(c *binding) uint8 {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	if c.link == nil {
		return 0
	}
	if l := s.of(c.link.Link()); l != nil {
		return uint8(l.num)
	}
	return 0
}

// main returns the link that is named to peers: the first one that connections may use, or that is
// left. g.mu is held.
func (s *groupLinks) main() *groupLink {
	for _, l := range s.all {
		if l.up && !s.leaves(l) { // rule: TestLeavingUnused: !s.leaves(l) -> true
			return l
		}
	}
	for _, l := range s.all {
		if l.up {
			return l
		}
	}
	return s.all[0]
}

// named returns the link that a later contact's message of ours names. A client names the link that
// the server's message has named, if it can: Linux net/smc takes the RKey of a Confirm for one of
// that link, whatever else the Confirm says.
//
// A server that has lost links names the newest one. Linux net/smc looks whether the memory of a
// connection is registered on the link that is named, and if so registers it on no other, which may
// have been made since it was used first; but it tells the keys of all. A write with such a key
// ends the link group. Where the newest link is named the memory is registered on all of them.
func (s *groupLinks) named(server *clc.ParamsR) *groupLink {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	return s.toName(server)
}

// toName is named with g.mu held.
func (s *groupLinks) toName(server *clc.ParamsR) *groupLink {
	if ctl := s.group.ctl; server != nil && ctl != nil {
		for _, x := range ctl.Links() {
			// An IPv4 address has two forms, and the message about the link may have had the other
			// one: SMCv2 pp.57-59 note 4.
			if x.Peer.GID.Addr() != server.GID.Addr() || x.Peer.QPN != server.QPN { // rule: TestNamedLink: x.Peer.GID.Addr() != server.GID.Addr() -> x.Peer.GID != server.GID
				continue
			}
			if l := s.get(x.Num); l != nil && l.up {
				return l // rule: TestNamedLink: return l -> return s.main()
			}
		}
	}
	best := s.main()
	if s.failovers > 0 {
		for _, l := range s.all {
			if l.up && l.num > best.num && !s.leaves(l) { // rule: TestLeavingUnused: !s.leaves(l) -> true
				best = l // rule: internal/host TestSMCRNamedNewest: best = l -> _ = l
			}
		}
	}
	return best
}

// fail makes all links fail.
func (s *groupLinks) fail(reason error) {
	s.group.mu.Lock()
	links := slices.Clone(s.all)
	s.group.mu.Unlock()
	for _, l := range links {
		l.net.Fail(reason)
	}
}

// tokens is where an RMB is on each link. g.mu is held.
func (s *groupLinks) tokens(m *ownRMB) map[llc.LinkNum]llc.RToken {
	tokens := make(map[llc.LinkNum]llc.RToken, len(s.all))
	for _, l := range s.all {
		if t, ok := m.rmb.Token(l.net); ok {
			tokens[l.num] = llc.RToken{RKey: t.RKey, VA: t.Addr}
		}
	}
	return tokens
}

// hear tells llcflow on which links anything has come since it was called last. g.mu is held.
func (s *groupLinks) hear(now time.Time) {
	for _, l := range s.all {
		if n := l.net.Heard(); n != l.heard {
			l.heard = n
			s.group.ctl.Heard(l.num, now)
		}
	}
}

// changed tells the table, by which later connections find the group. g.mu is held.
func (s *groupLinks) changed() {
	g := s.group
	links := g.ctl.Links()
	g.loop.afterwards(func() {
		g.fabric.mu.Lock()
		g.fabric.groups.SetLinks(g.lg, links)
		g.fabric.mu.Unlock()
	})
}

// The methods that follow carry out the decisions of llcflow for a link. g.mu is held.

// readyToSend has the link send: the peer is ready to receive. A client learns the number of its
// first link by it.
func (s *groupLinks) readyToSend(out llcflow.ReadyToSend) {
	l := s.get(out.Link)
	l.num = out.Link
	if err := l.net.ReadyToSend(); err != nil {
		s.group.linkFailed(out.Link, err)
	}
}

// sendLLC sends a message over a link. If there is no such link it could not be connected, and llcflow
// is about to hear that.
func (s *groupLinks) sendLLC(out llcflow.SendLLC) {
	l := s.get(out.Link)
	if l == nil { // rule: internal/host TestSMCRFirstContactLies
		return
	}
	b := out.Message.Append(nil)
	l.trace(b, true) // before the answer can be there
	if err := l.net.SendLLC(b, uint64(out.Tag)); err != nil {
		s.group.linkFailed(out.Link, err)
	}
}

// connectLink joins a link with its other end.
func (s *groupLinks) connectLink(out llcflow.ConnectLink) {
	l := s.get(out.Link)
	err := errOneLink
	if l != nil && l.num == out.Link {
		p := out.Peer
		err = l.reach(link.Peer{GID: p.GID, QPN: p.QPN, PSN: p.PSN, MTU: p.MTU})
		if err == nil && s.group.lg.Key.Role == core.RoleServer {
			err = l.net.ReadyToSend()
		}
	}
	if err != nil {
		s.group.linkFailed(out.Link, err)
	}
}

// linkUp takes a link into use.
func (s *groupLinks) linkUp(out llcflow.LinkUp) {
	g := s.group
	l := s.get(out.Link)
	l.up = true
	l.counts.Store(true)
	s.upCount.Add(1)
	g.fabric.cfg.Logger.Info("link added",
		"group", g.lg.ID, "link", out.Link, "local", l.rnic.Addr(), "peer", l.peer, "redundancy", g.ctl.Redundancy())
	s.changed()
	newSpread(g).balance()
	g.stalls.start()
}

// linkDown takes a link out of use, and moves its connections.
func (s *groupLinks) linkDown(out llcflow.LinkDown) {
	g := s.group
	l := s.get(out.Link)
	l.up, l.ended = false, true
	l.countOut()
	if !out.Orderly { // rule: TestLeaving: !out.Orderly -> true
		l.net.Fail(errLinkEnded) // the error is why it failed before, if it did
	}
	moved, stuck := newSpread(g).moveAll(l)
	for _, c := range stuck {
		c.link.GiveUp()
		if !c.detached {
			g.loop.afterwards(c.lost)
		}
	}
	moved += l.moved
	s.failovers++
	s.moved += uint64(moved)
	g.fabric.cfg.Owner.FailedOver()                              // rule: internal/host TestSMCRFailover
	g.fabric.cfg.Owner.Ended(endOfLink, groupEndReason(out.Why)) // rule: internal/host TestSMCRFailover
	g.fabric.cfg.Logger.Warn("link ended, connections go on over others",
		"group", g.lg.ID, "link", out.Link, "local", l.rnic.Addr(), "peer", l.peer, "why", out.Why.String(),
		"connections", moved, "left", l.left, "redundancy", g.ctl.Redundancy())
	s.changed()
}

// closeLink ends the parts of a link: the link of an exchange that came to nothing, or one that
// connections have left.
func (s *groupLinks) closeLink(out llcflow.CloseLink) {
	s.group.opener.dropSpare()
	if l := s.get(out.Link); l != nil && l.num == out.Link && len(s.all) > 1 {
		s.drop(l)
	}
}
