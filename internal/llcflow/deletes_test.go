package llcflow

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/llc"
)

// logHas reports whether one of a side's outputs begins so.
func (s *pairSide) logHas(prefix string) bool {
	return slices.ContainsFunc(s.log, func(w string) bool { return strings.HasPrefix(w, prefix) })
}

// TestDeleteLinkQueue loses two links of three at once: a server, which is in charge, tells of one after the other (RFC 7609 §3.5.5.3), a
// client gives notice of both at once.
func TestDeleteLinkQueue(t *testing.T) {
	p := newTriplet(t)
	release := p.hold(lost("client", llc.TypeDeleteLink, true))
	p.server.fail(3)
	p.server.fail(2)
	p.run()
	if n := p.server.count("DELETE LINK"); n != 1 {
		t.Errorf("the server sent %v", p.server.sent)
	}
	release()
	if n := p.server.count("DELETE LINK"); n != 2 || len(p.server.lc.deletes) > 0 {
		t.Errorf("then the server sent %v", p.server.sent)
	}
	p = newTriplet(t)
	p.lose = lost("client", llc.TypeConfirmRKey, true)
	p.server.do(p.server.lc.ConfirmRMB(p.now, 9, p.server.tokens(9), nil))
	p.run()
	p.server.fail(3)
	p.server.fail(2)
	if n := p.server.count("DELETE LINK"); n != 0 {
		t.Errorf("while CONFIRM RKEY is under way the server sent %v", p.server.sent)
	}
	release = p.hold(lost("client", llc.TypeDeleteLink, true))
	p.server.do(p.server.lc.HandleMessage(p.now, 1, llc.ConfirmRKey{Header: llc.Header{Reply: true}, RToken: p.server.token(9, 1)}, nil, nil))
	p.run()
	if n := p.server.count("DELETE LINK"); n != 1 {
		t.Errorf("when it is over the server sent %v", p.server.sent)
	}
	release()
	p = newTriplet(t)
	release = p.hold(lost("client", llc.TypeDeleteLink, false))
	p.client.fail(3)
	p.client.fail(2)
	if got := strings.Join(p.client.sent, ", "); got != "1:DELETE LINK, 1:DELETE LINK" {
		t.Errorf("the client sent %s", got)
	}
	release()
	// Two answers besides: the server orders the ends that the client has asked for, and nothing is
	// asked again.
	if n := p.client.count("DELETE LINK"); n != 4 || len(p.client.lc.deletes) > 0 {
		t.Errorf("then the client sent %v", p.client.sent)
	}
	p.pass(5 * time.Minute)
	p.check("in the end", p.server.links(), RedundancySymmetric)
}

// TestDeleteLinkWish has a client's operator delete a link: it is in use until the server says so, or says that it does not
// have it.
func TestDeleteLinkWish(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2})
	p.pass(20 * time.Second)
	release := p.hold(lost("client", llc.TypeDeleteLink, false))
	p.client.log, p.server.log = nil, nil
	p.client.do(p.client.lc.DeleteLink(p.now, 2, nil))
	p.run()
	if got := p.client.links(); got != "1:1-1 2:2-2" || len(p.client.log) > 0 {
		t.Errorf("before the server's order: %s, %v", got, p.client.log)
	}
	release()
	if got := p.client.links(); got != "1:1-1" || !p.server.logHas("down(2) operator") || !p.client.logHas("down(2) deleted by peer: operator") {
		t.Errorf("after it: %s, %v and %v", got, p.client.log, p.server.log)
	}

	p = newLinkPair(t, pairOptions{server: 2, client: 2})
	p.lose = lost("client", llc.TypeDeleteLink, false)
	unknown := func(num llc.LinkNum) llc.DeleteLink {
		return llc.DeleteLink{Header: llc.Header{Form: llc.V2, Reply: true}, Link: num, Reason: llc.DeleteUnknownLink}
	}
	p.client.do(p.client.lc.DeleteLink(p.now, 2, nil))
	p.client.do(p.client.lc.HandleMessage(p.now, 1, unknown(2), nil, nil))
	if got := strings.Join(p.client.log, ", "); p.client.links() != "1:1-1" || !strings.HasSuffix(got, "down(2) deleted by peer: unknown link (0x00100000), close(2)") {
		t.Errorf("the server does not have the link: %s, %s", p.client.links(), got)
	}
	// The other link is lost meanwhile: the wish is for the last one, and the group stays without a word from the server.
	p = newLinkPair(t, pairOptions{server: 2, client: 2})
	p.lose = lost("client", llc.TypeDeleteLink, false)
	p.client.do(p.client.lc.DeleteLink(p.now, 1, nil))
	p.client.sent = nil
	p.client.fail(2)
	if p.client.sent[0] != "1:DELETE LINK" || p.client.links() != "1:1-1" {
		t.Errorf("the wish is sent as %v", p.client.sent)
	}
	p.client.do(p.client.lc.HandleMessage(p.now, 1, unknown(1), nil, nil))
	if p.client.links() != "1:1-1" || p.client.lc.State() != StateActive {
		t.Errorf("the last link: %s, %v", p.client.links(), p.client.lc.State())
	}
	// Of two wishes the server has one come true so: the other one is for the last link then, and not said again.
	p = newLinkPair(t, pairOptions{server: 2, client: 2})
	p.lose = lost("client", llc.TypeDeleteLink, false)
	for _, num := range []llc.LinkNum{1, 2} {
		p.client.do(p.client.lc.DeleteLink(p.now, num, nil))
	}
	p.client.sent = nil
	p.client.do(p.client.lc.HandleMessage(p.now, 2, unknown(1), nil, nil))
	if p.client.links() != "2:2-2" || len(p.client.sent) > 0 || len(p.client.lc.deletes) > 0 {
		t.Errorf("one of two wishes: %s, sent %v, deletes %v", p.client.links(), p.client.sent, p.client.lc.deletes)
	}
}

// TestDeleteLinkReasons has the reasons that a server's connections are told for the end of a link.
func TestDeleteLinkReasons(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 1})
	p.pass(2 * time.Second)
	p.addRNIC(p.client)
	if !p.server.logHas("down(2) asymmetric") {
		t.Errorf("an asymmetric link: %v", p.server.log)
	}
	for _, tt := range []struct {
		m    llc.DeleteLink
		want string
	}{
		{llc.DeleteLink{Orderly: true, Reason: llc.DeleteOperator}, "down(2) operator"},
		{llc.DeleteLink{Orderly: true, Reason: llc.DeleteLostPath}, "down(2) deleted by peer: lost path"},
		{llc.DeleteLink{Reason: llc.DeleteOperator}, "down(2) deleted by peer: operator"},
		{llc.DeleteLink{Reason: llc.DeleteLostPath}, "down(2) deleted by peer: lost path"},
	} {
		p := newLinkPair(t, pairOptions{server: 2, client: 2})
		tt.m.Header, tt.m.Link = headV2, 2
		p.server.do(p.server.lc.HandleMessage(p.now, 1, tt.m, nil, nil))
		if !p.server.logHas(tt.want) {
			t.Errorf("%v: %v, want %s", tt.m, p.server.log, tt.want)
		}
	}
}

// TestDeleteLinkGuards has the links that an operator may not delete.
func TestDeleteLinkGuards(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) { p.lose = lost("client", llc.TypeAddLink, true) }})
	no := func(name string, s *pairSide, num llc.LinkNum) {
		t.Helper()
		before := len(s.lc.deletes)
		if outs := s.lc.DeleteLink(p.now, num, nil); len(outs) > 0 || len(s.lc.deletes) != before {
			t.Errorf("%s: %s", name, controlWords(p.now, outs))
		}
	}
	if p.server.lc.State() != StateAdding {
		t.Fatal(p.server.lc.State())
	}
	no("first contact", p.server, 1)
	p = newTriplet(t)
	no("a link that is not there", p.server, 77)
	p.lose = func(*pairSide, SendLLC) bool { return true }
	p.server.fail(2)
	no("a link that failed", p.server, 2)
	p.server.fail(1)
	no("the last link", p.server, 3)
	p.server.do(p.server.lc.End(p.now, EndOperator, nil))
	no("a group that ends", p.server, 3)
	if got := p.server.lc.Redundancy(); got != RedundancyNone {
		t.Errorf("a group that ends is %v", got)
	}
}

// TestLinkLostUnderExchange loses the link that carries an exchange: it begins anew over another one at once, "once the link group
// configuration stabilizes" (RFC 7609 p.25).
func TestLinkLostUnderExchange(t *testing.T) {
	// DELETE LINK goes on over another link.
	for _, by := range []string{"server", "client"} {
		p := newTriplet(t)
		s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
		p.lose = func(*pairSide, SendLLC) bool { return true }
		s.fail(3)
		s.fail(1)
		if got := strings.Join(s.sent, ", "); !strings.HasPrefix(got, "1:DELETE LINK, 2:DELETE LINK") || s.lc.deletes[0].tries != 1 {
			t.Errorf("%s: sent %s", by, got)
		}
	}
	// ADD LINK is given up, and attempted again; a confirmation on the new link does not need the
	// old one.
	for _, kind := range []llc.Type{llc.TypeAddLinkCont, llc.TypeConfirmLink} {
		for _, by := range []string{"server", "client"} {
			p := newTriplet(t)
			s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
			p.hold(lost(s.other.name, kind, by == "server"))
			p.server.fail(3)
			p.run()
			if s.lc.add.via == nil || s.lc.add.via.num != 1 {
				t.Fatalf("%s: no link is made", by)
			}
			s.log = nil
			s.fail(1)
			if up := kind == llc.TypeConfirmLink; up != (s.lc.link(4) != nil && s.lc.link(4).state == linkAdding) {
				t.Errorf("%v, %s: link 4 goes on: %t, want %t", kind, by, !up, up)
			}
			if kind == llc.TypeAddLinkCont && by == "server" && s.lc.deleteOf(4) == nil {
				t.Errorf("the client is not told of the end of link 4")
			}
			if kind == llc.TypeAddLinkCont && by == "client" && !s.logHas("close(4)") {
				t.Errorf("the client waits for the end of link 4: %v", s.log)
			}
			p.lose = nil
			p.run()
			p.pass(10 * time.Minute)
			p.check("in the end", p.server.links(), RedundancySymmetric)
			if n := len(p.server.lc.Links()); n != 3 {
				t.Errorf("%v, %s: %d links in the end", kind, by, n)
			}
		}
	}
}

// TestDeleteLinkUnasked has DELETE LINK that fits nothing. There is one for link 0, which is no
// link, and the answer to a request that was not sent yet. Another comes before the first link is
// confirmed, and one is for the only link.
func TestDeleteLinkUnasked(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		p := newLinkPair(t, pairOptions{server: 2, client: 2})
		s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
		outs := s.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: headV2}, nil, nil)
		if m, ok := sentOf(outs)[0].(llc.DeleteLink); !ok || m.Reason != llc.DeleteUnknownLink || s.links() != "1:1-1 2:2-2" {
			t.Errorf("the %s is to delete link 0: %s", by, controlWords(p.now, outs))
		}
	}
	// While the first link is confirmed.
	p := newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) { p.lose = lost("server", llc.TypeConfirmLink, false) }})
	for _, orderly := range []bool{false, true} {
		outs := p.server.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: headV2, Link: 1, Orderly: orderly}, nil, nil)
		if len(outs) > 0 || len(p.server.lc.deletes) > 0 || p.server.lc.State() != StateConfirming {
			t.Errorf("before the first link is confirmed: %s", controlWords(p.now, outs))
		}
	}
	// While the second one is attempted: the first contact is over first.
	p = newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) { p.lose = lost("client", llc.TypeAddLink, true) }})
	outs := p.server.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: headV2, Link: 1}, nil, nil)
	if len(outs) > 0 || p.server.lc.State() != StateAdding || p.server.lc.links[0].state != linkActive {
		t.Errorf("while ADD LINK is under way: %s", controlWords(p.now, outs))
	}
	// The only link: with it the group ends, in order or not.
	for _, orderly := range []bool{false, true} {
		p := newLinkPair(t, pairOptions{server: 1, client: 1})
		p.server.do(p.server.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: headV2, Link: 1, Orderly: orderly}, nil, nil))
		if p.server.lc.State() != StateEnding || p.server.logHas("down") || !p.server.logHas("ending deleted by peer") {
			t.Errorf("the only link, orderly %t: %v, %v", orderly, p.server.lc.State(), p.server.log)
		}
	}
	// A link that is being ended.
	p = newTriplet(t)
	p.lose = func(*pairSide, SendLLC) bool { return true }
	p.server.fail(3)
	outs = p.server.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: headV1, Link: 3}, nil, nil)
	if len(outs) > 0 || len(p.server.lc.deletes) != 1 {
		t.Errorf("a link that is being deleted: %s", controlWords(p.now, outs))
	}
	// A link that is being made: the client has waited in vain.
	p = newTriplet(t)
	p.lose = lost("server", llc.TypeConfirmLink, false)
	p.server.fail(3)
	p.run()
	outs = p.server.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: headV1, Link: 4}, nil, nil)
	if m := sentOf(outs); p.server.lc.add.phase != addNone || len(m) != 1 || m[0].(llc.DeleteLink).Link != 4 {
		t.Errorf("a link that is being made: %s", controlWords(p.now, outs))
	}
	// The answer to a request that waits for the end of another exchange.
	p = newTriplet(t)
	p.hold(lost("client", llc.TypeAddLinkCont, true))
	p.server.fail(3)
	p.run()
	p.server.do(p.server.lc.DeleteLink(p.now, 2, nil))
	outs = p.server.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: llc.Header{Reply: true}, Link: 2}, nil, nil)
	if len(outs) > 0 || p.server.lc.deleteOf(2) == nil {
		t.Errorf("an answer before the question: %s", controlWords(p.now, outs))
	}
}

// TestDeleteLinkAnswers sends the answer on the link of the request (RFC 7609 p.29), unless that is the one to be deleted.
func TestDeleteLinkAnswers(t *testing.T) {
	for _, tt := range []struct{ num, via, want llc.LinkNum }{{3, 2, 2}, {3, 1, 1}, {2, 2, 1}, {1, 1, 2}, {1, 3, 3}} {
		p := newTriplet(t)
		outs := p.client.lc.HandleMessage(p.now, tt.via, llc.DeleteLink{Header: headV1, Link: tt.num}, nil, nil)
		if o, ok := outs[0].(SendLLC); !ok || o.Link != tt.want {
			t.Errorf("link %d is to be deleted, over %d: %s, want it on %d", tt.num, tt.via, controlWords(p.now, outs), tt.want)
		}
	}
}

// TestDeleteLinkTimes has DELETE LINK asked again after LLCTimeout and not before, no matter when
// other timers end. The link over which it is not answered is given up after as long again, each
// link for itself.
func TestDeleteLinkTimes(t *testing.T) {
	p := newTriplet(t)
	p.lose = func(*pairSide, SendLLC) bool { return true }
	s := p.server
	s.fail(3)
	early := func(d time.Duration) {
		p.now = p.now.Add(d)
		s.lc.timer = p.now
		s.do(s.lc.Advance(p.now, nil))
	}
	early(LLCTimeout - time.Millisecond)
	if n := s.count("DELETE LINK"); n != 1 {
		t.Errorf("too early: %v", s.sent)
	}
	early(time.Millisecond)
	if got := strings.Join(s.sent, ", "); got != "1:DELETE LINK, 1:DELETE LINK" {
		t.Errorf("after %v: %s", LLCTimeout, got)
	}
	early(LLCTimeout)
	if got := strings.Join(s.sent, ", "); got != "1:DELETE LINK, 1:DELETE LINK, 2:DELETE LINK" || !s.logHas("down(1) peer silent") {
		t.Errorf("after twice that: %s, %v", got, s.log)
	}
	early(LLCTimeout)
	if s.lc.State() != StateActive || s.count("DELETE LINK") != 4 {
		t.Errorf("the next link is asked %v, %v", s.sent, s.lc.State())
	}
	early(LLCTimeout)
	if s.lc.State() != StateEnded || s.lc.Failure().Kind != EndSilent {
		t.Errorf("no link is left: %v, %v", s.lc.State(), s.lc.Failure())
	}
	// A client has asked for the end of two, and none is answered.
	p = newTriplet(t)
	p.lose = lost("client", llc.TypeDeleteLink, false)
	p.client.fail(3)
	p.client.fail(2)
	p.pass(wishTries*LLCTimeout + time.Second)
	if n := p.client.count("DELETE LINK"); p.client.lc.State() != StateActive || n != 2*wishTries+2 {
		t.Errorf("a client: %v, %v, asked %d times", p.client.lc.State(), p.client.lc.Failure(), n)
	}
}

// TestDeleteLinkBusy has a client not answer DELETE LINK over the last link, over which it says other things: it is asked six times. One that says nothing is
// asked twice, and so is one where there is another link.
func TestDeleteLinkBusy(t *testing.T) {
	for _, tt := range []struct {
		name  string
		heard bool
		links int // that are lost
		tries int
		ends  bool
	}{
		{"busy", true, 2, wishTries, true},
		{"silent", false, 2, deleteTries, true},
		{"another link", true, 1, deleteTries, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newTriplet(t)
			p.lose = func(*pairSide, SendLLC) bool { return true }
			s := p.server
			s.fail(3)
			if tt.links == 2 {
				s.fail(2)
			}
			for range tt.tries {
				if s.logHas("down(1)") || s.lc.State() != StateActive {
					t.Fatalf("given up after %v", s.sent)
				}
				p.now = p.now.Add(LLCTimeout)
				if tt.heard {
					s.lc.Heard(1, p.now.Add(-time.Millisecond))
				}
				s.lc.timer = p.now
				s.do(s.lc.Advance(p.now, nil))
			}
			if ended := s.lc.State() == StateEnded; ended != tt.ends || !ended && !s.logHas("down(1) peer silent") {
				t.Errorf("ended: %t, want %t; %v, sent %v", ended, tt.ends, s.log, s.sent)
			}
		})
	}
}

// TestDeleteLinkThenMore makes up to the maximum of symmetric links when an asymmetric one was in the way.
func TestDeleteLinkThenMore(t *testing.T) {
	p := newLinkPair(t, pairOptions{v1: true, server: 3, client: 1, max: 3})
	p.pass(2 * time.Second)
	for len(p.client.rnics) < 3 {
		p.client.rnics = append(p.client.rnics, pairRNIC(2, byte(len(p.client.rnics)+1)))
	}
	p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics, nil)) // which it tells of once
	p.run()
	p.pass(AddLinkRetryMax)
	p.check("in the end", p.server.links(), RedundancySymmetric)
	if n := len(p.server.lc.Links()); n != 3 {
		t.Errorf("links %s", p.server.links())
	}
}

// TestEndOverFailingLinks has links fail while the group ends: its last message goes over each that is left (RFC 7609 C.7.1), and
// without any the end is the end.
func TestEndOverFailingLinks(t *testing.T) {
	p := newTriplet(t)
	p.lose = func(*pairSide, SendLLC) bool { return true }
	s := p.server
	s.do(s.lc.End(p.now, EndOperator, nil))
	s.fail(2)
	s.fail(1)
	if got := strings.Join(s.sent, ", "); got != "1:DELETE LINK, 3:DELETE LINK" || s.lc.State() != StateEnding {
		t.Errorf("sent %s, %v", got, s.lc.State())
	}
	s.fail(3)
	if s.lc.State() != StateEnded {
		t.Errorf("no link is left: %v", s.lc.State())
	}
}

// TestDeleteLinkPatience has a client wait for the answer of a server that is busy making a link, which does not come up: the link
// over which it asks is good. One that does not answer at all is given up as soon as it does not answer TEST LINK, and one that answers
// that is asked for ever.
func TestDeleteLinkPatience(t *testing.T) {
	p := newTriplet(t)
	p.lose = lost("server", llc.TypeConfirmLink, false)
	p.server.fail(3)
	p.run()
	p.client.fail(1)
	p.run()
	p.pass(ConfirmLinkTimeout + 2*LLCTimeout)
	if p.client.logHas("down(2)") || p.server.logHas("down(2)") {
		t.Errorf("a good link was given up: %v, %v", p.client.log, p.server.log)
	}
	p.lose = nil
	p.pass(10 * time.Minute)
	p.check("in the end", p.server.links(), RedundancySymmetric)

	p = newTriplet(t)
	p.client.do(p.client.lc.DeleteLink(p.now, 3, nil))
	p.queue, p.lose = nil, lost("client", llc.TypeDeleteLink, false)
	p.pass(10 * time.Minute)
	if p.client.logHas("down(1)") || p.client.count("TEST LINK") == 0 {
		t.Errorf("only DELETE LINK is not answered: %v, sent %v", p.client.log, p.client.sent)
	}
	p = newTriplet(t)
	start := p.now
	p.client.do(p.client.lc.DeleteLink(p.now, 3, nil))
	p.queue, p.lose = nil, func(s *pairSide, o SendLLC) bool { return o.Link == 1 }
	for !p.client.logHas("down(1)") && p.now.Sub(start) < time.Minute {
		p.pass(100 * time.Millisecond)
	}
	if got := p.now.Sub(start).Truncate(time.Second); got != (deleteTries+1)*LLCTimeout {
		t.Errorf("nothing is answered: link 1 given up after %v", got)
	}
	// In a first contact an application waits, and a timer of the handshake ends before: deleteTries it is.
	p = newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) {
		p.lose = func(s *pairSide, o SendLLC) bool { return o.Link == 2 || o.Message.Type() == llc.TypeDeleteLink }
	}})
	p.pass(core.AddLinkStateTimeout)
	if p.client.lc.State() != StateEnded || p.client.count("DELETE LINK") != deleteTries {
		t.Errorf("first contact: %v, sent %v", p.client.lc.State(), p.client.sent)
	}
}

// TestDeleteLinkRightAway has a client lose a link while the server is busy with an exchange: "the server must delete the link right away", and the exchange on it
// begins anew, though the client is told later.
func TestDeleteLinkRightAway(t *testing.T) {
	for _, orderly := range []bool{false, true} {
		p := newLinkPair(t, pairOptions{server: 2, client: 2})
		p.pass(20 * time.Second)
		s := p.server
		p.lose = lost("client", llc.TypeConfirmRKey, true)
		s.do(s.lc.ConfirmRMB(p.now, 9, s.tokens(9), nil))
		p.run()
		s.takeLog()
		s.do(s.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: headV2, Orderly: orderly, Link: 2, Reason: llc.DeleteLostPath}, nil, nil))
		want := "down(2) deleted by peer: lost path (0x00010000)"
		if orderly {
			want = "" // "it can wait"
		}
		if got := s.takeLog(); got != want {
			t.Errorf("orderly %t: the server did %q, want %q", orderly, got, want)
		}
	}
}
