package llcflow

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/llc"
)

// leaving reports whether a link is in use and about to end.
func (s *pairSide) leaving(num llc.LinkNum) bool {
	return slices.ContainsFunc(s.lc.Links(), func(l core.GroupLink) bool { return l.Num == num && l.Leaving })
}

// left says that connections have left a link.
func (s *pairSide) left(num llc.LinkNum) {
	s.p.t.Helper()
	s.do(s.lc.LinkLeft(s.p.now, num, nil))
	s.p.run()
}

// takeLog returns the log of a side, and clears it.
func (s *pairSide) takeLog() string {
	got := strings.Join(append(slices.Clone(s.log), s.sent...), ", ")
	s.log, s.sent = nil, nil
	return got
}

// newLeavers is a pair with two links. Its connections stay on them until a test moves them.
func newLeavers(t *testing.T) *linkPair {
	p := newLinkPair(t, pairOptions{server: 2, client: 2})
	p.pass(20 * time.Second)
	p.check("two links", "1:1-1 2:2-2", RedundancySymmetric)
	for _, s := range []*pairSide{p.server, p.client} {
		s.stays = true
		s.takeLog()
	}
	return p
}

// TestLinkLeaving ends a link in order, for an operator of either side: connections leave it first, at the server and then at the client, at the latest after
// LinkLeaveTimeout each.
func TestLinkLeaving(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		for _, late := range []bool{false, true} {
			name := by
			if late {
				name += ", late"
			}
			p := newLeavers(t)
			leave := func(s *pairSide) {
				t.Helper()
				if !late {
					s.left(1)
					return
				}
				p.pass(LinkLeaveTimeout)
				if s.log != nil || s.sent != nil {
					t.Errorf("%s: the %s did %s too early", name, s.name, s.takeLog())
				}
				p.now = s.lc.Deadline()
				s.do(s.lc.Advance(p.now, nil))
				p.run()
			}
			step := func(when string, s *pairSide, want string) {
				t.Helper()
				if got := s.takeLog(); got != want {
					t.Errorf("%s, %s: the %s did %q, want %q", name, when, s.name, got, want)
				}
			}
			if by == "server" {
				p.server.do(p.server.lc.DeleteLink(p.now, 1, nil))
			} else {
				p.client.do(p.client.lc.DeleteLink(p.now, 1, nil))
				step("first", p.client, "2:DELETE LINK")
			}
			p.run()
			step("first", p.server, "leaving(1)")
			if !p.server.leaving(1) || p.client.leaving(1) || p.server.leaving(2) {
				t.Errorf("%s: leaving at the server %t, at the client %t", name, p.server.leaving(1), p.client.leaving(1))
			}
			leave(p.server)
			step("when they have left at the server", p.server, "down(1) operator, orderly, 2:DELETE LINK")
			step("when they have left at the server", p.client, "leaving(1)")
			if !p.client.leaving(1) {
				t.Errorf("%s: not leaving at the client", name)
			}
			leave(p.client)
			step("when they have left at the client", p.client, "down(1) deleted by peer: operator initiated (0x00020000), orderly, close(1), 2:DELETE LINK")
			step("when they have left at the client", p.server, "close(1)")
			p.check(name, "2:2-2", RedundancySingle)
		}
	}
}

// TestLinkLeavingReasons has a link end at once where that is not in order, even if the flag says
// so.
func TestLinkLeavingReasons(t *testing.T) {
	for _, tt := range []struct {
		m       llc.DeleteLink
		leaving bool
	}{
		{llc.DeleteLink{Orderly: true, Reason: llc.DeleteOperator}, true},
		{llc.DeleteLink{Orderly: true, Reason: llc.DeleteProgram}, true},
		{llc.DeleteLink{Orderly: true, Reason: llc.DeleteAsymmetric}, true},
		{llc.DeleteLink{Orderly: true, Reason: llc.DeleteLostPath}, false},
		{llc.DeleteLink{Orderly: true, Reason: llc.DeleteViolation}, false},
		{llc.DeleteLink{Orderly: true, Reason: 77}, false},
		{llc.DeleteLink{Reason: llc.DeleteOperator}, false},
		{llc.DeleteLink{Reason: llc.DeleteAsymmetric}, false},
	} {
		for i, by := range []string{"server", "client", "server", "client"} {
			p := newLeavers(t)
			p.lose = func(*pairSide, SendLLC) bool { return true }
			s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
			m := tt.m
			m.Header, m.Link = headV2, 2
			s.do(s.lc.HandleMessage(p.now, 1, m, nil, nil))
			if got := s.takeLog(); strings.HasPrefix(got, "leaving(2)") != tt.leaving || strings.Contains(got, "orderly") || strings.Contains(got, "down(2)") == tt.leaving {
				t.Errorf("%s: %v: %s", by, m, got)
			}
			if !tt.leaving {
				continue
			}
			// It is not in order any more. Linux net/smc has the flag all the same.
			m.Orderly, m.Reason = i > 1, llc.DeleteLostPath
			s.do(s.lc.HandleMessage(p.now, 1, m, nil, nil))
			if got := s.takeLog(); !strings.HasPrefix(got, "down(2) deleted by peer: lost path") || strings.Contains(got, "orderly") || s.leaving(2) {
				t.Errorf("%s: then the path is lost, %v: %s", by, m, got)
			}
		}
	}
}

// TestLinkLeavingRepeated has a server ask again while connections leave: it is answered once, where it has asked last.
func TestLinkLeavingRepeated(t *testing.T) {
	p := newTriplet(t)
	c := p.client
	c.stays = true
	p.lose = func(*pairSide, SendLLC) bool { return true }
	m := llc.DeleteLink{Header: headV1, Orderly: true, Link: 3, Reason: llc.DeleteOperator}
	for _, via := range []llc.LinkNum{1, 2} {
		c.do(c.lc.HandleMessage(p.now, via, m, nil, nil))
		p.now = p.now.Add(LinkLeaveTimeout / 3)
	}
	c.left(3)
	if got := c.takeLog(); got != "leaving(3), down(3) deleted by peer: operator initiated (0x00020000), orderly, close(3), 2:DELETE LINK" {
		t.Errorf("the client did %s", got)
	}
	// The link over which it has asked is lost meanwhile.
	p = newTriplet(t)
	c = p.client
	c.stays = true
	p.lose = func(*pairSide, SendLLC) bool { return true }
	c.do(c.lc.HandleMessage(p.now, 1, m, nil, nil))
	c.fail(1)
	c.takeLog()
	c.left(3)
	if got := c.takeLog(); !strings.Contains(got, "2:DELETE LINK") || strings.Contains(got, "1:") {
		t.Errorf("link 1 is lost: the client did %s", got)
	}
}

// TestLinkLeavingFails has the link fail while connections leave it: nothing is waited for.
func TestLinkLeavingFails(t *testing.T) {
	p := newLeavers(t)
	p.client.do(p.client.lc.HandleMessage(p.now, 2, llc.DeleteLink{Header: headV2, Orderly: true, Link: 1, Reason: llc.DeleteOperator}, nil, nil))
	p.client.fail(1)
	if got := p.client.takeLog(); got != "leaving(1), down(1) link failed: retries, close(1), 2:DELETE LINK" {
		t.Errorf("the client did %s", got)
	}
	p = newLeavers(t)
	p.server.do(p.server.lc.DeleteLink(p.now, 1, nil))
	p.server.fail(1)
	if got := p.server.takeLog(); got != "leaving(1), down(1) link failed: retries, 2:DELETE LINK" {
		t.Errorf("the server did %s", got)
	}
	p.run()
	p.pass(time.Minute)
	p.check("in the end", p.server.links(), RedundancySymmetric)

	// The peer is told that the end is not in order any more, no matter which side wanted it, and
	// has its connections wait no longer either.
	for _, by := range []string{"server", "client"} {
		for _, notices := range []string{"server", "client"} {
			p := newLeavers(t)
			sides := map[string]*pairSide{"server": p.server, "client": p.client}
			sides[by].do(sides[by].lc.DeleteLink(p.now, 1, nil))
			p.run()
			sides[notices].fail(1)
			p.run()
			for _, s := range sides {
				if s.leaving(1) || !s.logHas("down(1)") {
					t.Errorf("by the %s, the %s notices: the %s did %s", by, notices, s.name, s.takeLog())
				}
			}
			if want := "down(1) deleted by peer: lost path"; !sides[notices].other.logHas(want) {
				t.Errorf("by the %s, the %s notices: the other one did %s, want %s", by, notices, sides[notices].other.takeLog(), want)
			}
			p.pass(time.Minute)
			p.check("in the end", p.server.links(), RedundancySymmetric)
		}
	}
}

// TestLinkLeavingPatience has a peer be busy for a while, and be asked with TEST LINK whether it is there, when connections are to leave one of two links: the other one, which is the last one then,
// is given up no sooner than DELETE LINK says.
func TestLinkLeavingPatience(t *testing.T) {
	p := newLeavers(t)
	p.client.stays = false
	p.lose = func(*pairSide, SendLLC) bool { return true }
	s := p.server
	s.do(s.lc.DeleteLink(p.now, 1, nil))
	s.do(s.lc.Suspect(p.now, 2, nil))
	p.pass(TestLinkTimeout + LinkLeaveTimeout/2)
	p.lose = nil
	if got := s.takeLog(); s.lc.State() != StateActive || got != "leaving(1), down(1) operator, orderly, 2:TEST LINK, 2:DELETE LINK" {
		t.Errorf("the server is %v, and did %s", s.lc.State(), got)
	}
	p.pass(LLCTimeout)
	p.check("when the client answers", "2:2-2", RedundancySingle)

	// One that never answers is given up in the end.
	p = newLeavers(t)
	p.lose = func(*pairSide, SendLLC) bool { return true }
	s = p.server
	s.do(s.lc.DeleteLink(p.now, 1, nil))
	s.do(s.lc.Suspect(p.now, 2, nil))
	p.pass(LinkLeaveTimeout + deleteTries*LLCTimeout + time.Second)
	if s.lc.State() != StateEnded || s.lc.Failure().Kind != EndSilent {
		t.Errorf("without any answer the server is %v: %v", s.lc.State(), s.lc.Failure())
	}
}

// TestLinkLeavingCrossing has operators of both sides delete one of two links each, or the path of one be lost: the client's wish comes when the server has taken the other link
// away, but the client does not know yet. One link stays, and the group with it.
func TestLinkLeavingCrossing(t *testing.T) {
	for version, v1 := range linkVersions {
		for _, num := range []llc.LinkNum{1, 2} {
			for _, how := range []string{"operator", "failure"} {
				p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
				p.pass(20 * time.Second)
				other := 3 - num
				p.client.do(p.client.lc.DeleteLink(p.now, num, nil))
				wish := p.queue
				p.queue = nil
				if how == "operator" {
					p.server.do(p.server.lc.DeleteLink(p.now, other, nil))
				} else {
					p.server.fail(other)
				}
				p.queue = append(wish, p.queue...) // they cross
				p.run()
				name := version + ", " + how
				for _, s := range []*pairSide{p.server, p.client} {
					if s.lc.State() != StateActive || s.lc.link(num) == nil {
						t.Errorf("%s, the client deletes %d and the server %d: the %s is %v with the links %s", name, num, other, s.name, s.lc.State(), s.links())
					}
				}
				p.pass(time.Minute)
				p.check(name+", later", p.server.links(), RedundancySymmetric)
			}
		}
	}
}

// TestLinkLeavingLast has all links fail that do not leave: a client's group ends with that, as it has been told to end the others.
func TestLinkLeavingLast(t *testing.T) {
	p := newTriplet(t)
	c := p.client
	c.stays = true
	p.lose = func(*pairSide, SendLLC) bool { return true }
	for _, num := range []llc.LinkNum{3, 2} {
		c.do(c.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: headV1, Orderly: true, Link: num, Reason: llc.DeleteOperator}, nil, nil))
	}
	if !c.leaving(2) || !c.leaving(3) || c.leaving(1) {
		t.Fatalf("leaving %v", c.lc.Links())
	}
	c.do(c.lc.ConfirmRMB(p.now, 9, c.tokens(9), nil))
	c.fail(1)
	if c.lc.State() != StateEnded || c.lc.Failure().Kind != EndLinkFailed || c.count("DELETE LINK") != 2 || c.count("CONFIRM RKEY") != 0 {
		t.Errorf("%v, %v: %s", c.lc.State(), c.lc.Failure(), c.takeLog())
	}
	// The server has the last one end, too.
	p = newLeavers(t)
	c = p.client
	p.lose = func(*pairSide, SendLLC) bool { return true }
	for _, num := range []llc.LinkNum{1, 2} {
		c.do(c.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: headV2, Orderly: true, Link: num, Reason: llc.DeleteOperator}, nil, nil))
	}
	if c.lc.State() != StateEnding || c.count("DELETE LINK") != 2 {
		t.Errorf("%v: %s", c.lc.State(), c.takeLog())
	}
}

// TestLinkLeavingSpared has a server lose the others while connections leave a link, which stays then, and can be deleted again later. Of two that are
// to end one stays.
func TestLinkLeavingSpared(t *testing.T) {
	p := newLeavers(t)
	s := p.server
	s.do(s.lc.DeleteLink(p.now, 1, nil))
	s.fail(2)
	p.run()
	if s.leaving(1) || s.lc.State() != StateActive || !strings.HasPrefix(s.links(), "1:1-1") {
		t.Errorf("links %s, leaving %t, %v", s.links(), s.leaving(1), s.lc.State())
	}
	p.pass(time.Minute)
	p.check("later", s.links(), RedundancySymmetric)
	s.takeLog()
	s.do(s.lc.DeleteLink(p.now, 1, nil))
	if got := s.takeLog(); got != "leaving(1)" {
		t.Errorf("then it did %s", got)
	}

	p = newLeavers(t)
	s = p.server
	for _, num := range []llc.LinkNum{1, 2} {
		s.do(s.lc.DeleteLink(p.now, num, nil))
	}
	if !s.leaving(1) || s.leaving(2) {
		t.Errorf("two of two are to end: %v", s.lc.Links())
	}
	p.client.stays = false
	s.left(1)
	p.check("one of two", "2:2-2", RedundancySingle)
}

// TestLinkLeavingQueue has a server end two links in order while a third one is lost: one is asked for at a time.
func TestLinkLeavingQueue(t *testing.T) {
	p := newLinkPair(t, pairOptions{v1: true, server: 4, client: 4, max: 4})
	p.pass(20 * time.Second)
	p.check("four links", "1:1-1 2:2-2 3:3-3 4:4-4", RedundancySymmetric)
	s := p.server
	s.stays = true
	s.takeLog()
	s.do(s.lc.DeleteLink(p.now, 2, nil))
	s.do(s.lc.DeleteLink(p.now, 3, nil))
	release := p.hold(lost("client", llc.TypeDeleteLink, true))
	s.fail(4)
	p.run()
	if got := s.takeLog(); got != "leaving(2), leaving(3), down(4) link failed: retries, 1:DELETE LINK" {
		t.Errorf("the server did %s", got)
	}
	s.left(2)
	s.left(3)
	if n := s.count("DELETE LINK"); n != 0 {
		t.Errorf("while one is asked for: %s", s.takeLog())
	}
	release()
	if n := s.count("DELETE LINK"); n != 2 || !strings.HasPrefix(s.links(), "1:1-1 5:") {
		t.Errorf("then links %s: %s", s.links(), s.takeLog())
	}
}

// TestLinkLeavingHolds has a client begin nothing of its own before it has answered, and no timer of it run out meanwhile.
func TestLinkLeavingHolds(t *testing.T) {
	p := newLeavers(t)
	c := p.client
	c.do(c.lc.HandleMessage(p.now, 2, llc.DeleteLink{Header: headV2, Orderly: true, Link: 1, Reason: llc.DeleteOperator}, nil, nil))
	c.takeLog()
	c.lc.again.at, c.lc.retry.at = p.now, p.now
	c.do(c.lc.DeleteLink(p.now, 1, nil)) // it ends anyway
	c.do(c.lc.ConfirmRMB(p.now, 9, c.tokens(9), nil))
	p.run()
	if d := c.lc.Deadline(); len(c.sent) > 0 || d.Sub(p.now) != LinkLeaveTimeout {
		t.Errorf("the client did %s, and waits for %v", c.takeLog(), d.Sub(p.now))
	}
	c.lc.retry.at = time.Time{}
	c.left(1)
	if got := strings.Join(c.sent, ", "); !strings.HasPrefix(got, "2:DELETE LINK, 2:CONFIRM RKEY") {
		t.Errorf("then it sent %s", got)
	}
}

// TestLinkLeavingUnasked says of links that connections have left them, of which nobody has asked that, or not any more.
func TestLinkLeavingUnasked(t *testing.T) {
	p := newLeavers(t)
	for _, s := range []*pairSide{p.server, p.client} {
		for _, num := range []llc.LinkNum{0, 1, 2, 77} {
			if outs := s.lc.LinkLeft(p.now, num, nil); len(outs) > 0 || s.leaving(num) {
				t.Errorf("%s, link %d: %s", s.name, num, controlWords(p.now, outs))
			}
		}
	}
	p.server.do(p.server.lc.DeleteLink(p.now, 1, nil))
	if outs := p.server.lc.LinkLeft(p.now, 0, nil); len(outs) > 0 {
		t.Errorf("link 0: %s", controlWords(p.now, outs))
	}
	p.server.do(p.server.lc.End(p.now, EndOperator, nil))
	if outs := p.server.lc.LinkLeft(p.now, 1, nil); len(outs) > 0 {
		t.Errorf("a group that ends: %s", controlWords(p.now, outs))
	}
}
