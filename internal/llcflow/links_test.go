package llcflow

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// versions are both, by name.
var linkVersions = map[string]bool{"v1": true, "v2": false}

// TestAddLink makes second links between hosts with one RNIC or two each, RFC 7609 §3.5.1.6.
func TestAddLink(t *testing.T) {
	for version, v1 := range linkVersions {
		for _, tt := range []struct {
			server, client int
			links          string
			want           Redundancy
		}{
			{1, 1, "1:1-1", RedundancySingle}, // it would be parallel
			{2, 2, "1:1-1 2:2-2", RedundancySymmetric},
			{1, 2, "1:1-1 2:1-2a", RedundancyAsymmetric},
			{2, 1, "1:1-1 2:2-1a", RedundancyAsymmetric},
		} {
			p := newLinkPair(t, pairOptions{v1: v1, server: tt.server, client: tt.client})
			p.check(version, tt.links, tt.want)
			for _, s := range []*pairSide{p.server, p.client} {
				if got := strings.Join(s.steps, ", "); !strings.HasSuffix(got, "step confirmed, step up") {
					t.Errorf("%s, %d and %d RNICs: the %s's steps are %s", version, tt.server, tt.client, s.name, got)
				}
				if lost := slices.ContainsFunc(s.log, func(w string) bool { return strings.HasPrefix(w, "lost") }); lost {
					t.Errorf("%s: %v", version, s.log)
				}
			}
		}
	}
}

// TestAddLinkMaximum makes as many links as both allow, and numbers them one after the other.
func TestAddLinkMaximum(t *testing.T) {
	p := newLinkPair(t, pairOptions{v1: true, server: 8, client: 8, max: 8})
	p.pass(time.Minute)
	p.check("8 links", "1:1-1 2:2-2 3:3-3 4:4-4 5:5-5 6:6-6 7:7-7 8:8-8", RedundancySymmetric)
	// An RMB then has 7 RTokens more than a CONFIRM RKEY begins with.
	p.client.do(p.client.lc.ConfirmRMB(p.now, 2, p.client.tokens(2), nil))
	p.run()
	p.check("an RMB on 8 links", p.server.links(), RedundancySymmetric)
	if got := strings.Join(p.client.answers, ""); got != "confirmed(2)" {
		t.Errorf("the RMB: %s", got)
	}

	p = newLinkPair(t, pairOptions{server: 4, client: 4})
	p.pass(time.Minute)
	p.check("version 2", "1:1-1 2:2-2", RedundancySymmetric)
	p = newLinkPair(t, pairOptions{server: 4, client: 4, max: 1})
	p.pass(time.Hour)
	p.check("at most one", "1:1-1", RedundancySingle)
	if slices.Contains(p.server.sent, "1:ADD LINK") {
		t.Error("ADD LINK where one link is allowed")
	}
}

// TestAddLinkNumbers does not use a number again before all others were used.
func TestAddLinkNumbers(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2})
	seen := map[llc.LinkNum]int{1: 1, 2: 1}
	for i := range 300 {
		newest := p.server.lc.Links()[1].Num
		p.client.fail(newest)
		p.run()
		p.pass(time.Minute)
		if len(p.server.lc.Links()) != 2 {
			t.Fatalf("round %d: links %s", i, p.server.links())
		}
		num := p.server.lc.Links()[1].Num
		if seen[num]++; num == 0 || seen[num] > 1 && len(seen) < 255 {
			t.Fatalf("round %d: number %d again after %d others", i, num, len(seen))
		}
		for _, b := range p.server.lc.own {
			if len(b.tokens) > 3 || len(b.told) > 3 { // links 1 and num, and one before
				t.Fatalf("round %d: an RMB is known on %d links, and told on %d", i, len(b.tokens), len(b.told))
			}
		}
	}
}

// TestAddLinkContinuation has more RMBs than ADD LINK CONTINUATION has room for, another number on each side.
func TestAddLinkContinuation(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 1, client: 1})
		for i := range RMBID(9) {
			p.server.do(p.server.lc.ConfirmRMB(p.now, 2+i, p.server.tokens(2+i), nil))
			if i < 4 {
				p.client.do(p.client.lc.ConfirmRMB(p.now, 2+i, p.client.tokens(2+i), nil))
			}
		}
		p.run()
		p.pass(2 * time.Second)
		p.server.sent = nil
		p.addRNIC(p.client)
		p.addRNIC(p.server)
		p.pass(time.Minute)
		p.check(version, strings.TrimSpace(p.server.links()), RedundancySymmetric)
		conts := 0
		for _, m := range p.server.sent {
			if strings.HasSuffix(m, "ADD LINK CONTINUATION") {
				conts++
			}
		}
		if v1 && conts < 5 || !v1 && conts > 0 {
			t.Errorf("%s: %d continuations", version, conts)
		}
	}
	// A count that does not go on where it was: the link that carries it is out of sync.
	p := newLinkPair(t, pairOptions{v1: true, server: 2, client: 2, first: func(p *linkPair) {
		p.lose = func(from *pairSide, o SendLLC) bool {
			m, ok := o.Message.(llc.AddLinkCont)
			if ok && m.Reply {
				m.Remaining = 5
				m.RKeys = append(m.RKeys, llc.RKeyPair{})
				p.server.do(p.server.lc.HandleMessage(p.now, 1, m, nil, nil))
				m.Remaining = 4
				p.server.do(p.server.lc.HandleMessage(p.now, 1, m, nil, nil))
			}
			return ok && m.Reply
		}
	}})
	if p.server.lc.State() != StateEnded || p.server.lc.Failure().Kind != EndViolation {
		t.Errorf("counts that do not fit: %v, %v", p.server.lc.State(), p.server.lc.Failure())
	}
}

// addRNIC gives a side another RNIC.
func (p *linkPair) addRNIC(s *pairSide) {
	host := s.rnics[0].MAC[4]
	s.rnics = append(s.rnics, pairRNIC(host, byte(len(s.rnics)+1)))
	s.do(s.lc.SetRNICs(p.now, s.rnics, nil))
	p.run()
}

// TestAddLinkNewRNIC attempts another link when a side has another RNIC, RFC 7609 C.8, and replaces an asymmetric link by a
// symmetric one.
func TestAddLinkReplacesAsymmetric(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 1})
		p.check(version, "1:1-1 2:2-1a", RedundancyAsymmetric)
		p.pass(2 * time.Second)
		p.addRNIC(p.client)
		p.pass(5 * time.Second)
		p.check(version+", the client has a second", "1:1-1 3:2-2", RedundancySymmetric)
		if n := p.client.count("DELETE LINK"); n != 1 { // the answer
			t.Errorf("%s: the client sent %d DELETE LINK", version, n)
		}
		if !slices.Contains(p.client.log, "down(2) deleted by peer: asymmetric link no longer needed (0x00050000), orderly") {
			t.Errorf("%s: the asymmetric link: %v", version, p.client.log)
		}

		p = newLinkPair(t, pairOptions{v1: v1, server: 1, client: 2})
		p.pass(2 * time.Second)
		p.addRNIC(p.server)
		p.pass(5 * time.Second)
		if p.server.lc.Redundancy() != RedundancySymmetric || len(p.server.lc.Links()) != 2 {
			t.Errorf("%s, the server has a second: %s", version, p.server.links())
		}
		p.check(version, p.server.links(), RedundancySymmetric)
	}
}

// TestAddLinkRefused has offers that a client must not take: RFC 7609 §3.5.1.6.1.
func TestAddLinkRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		client int
		change func(m *llc.AddLink)
		reason llc.RejectReason
	}{
		"the same RNICs":         {1, func(m *llc.AddLink) { m.GID, m.MAC = pairRNIC(1, 1).GID, pairRNIC(1, 1).MAC }, llc.RejectNoPath},
		"our own address":        {2, func(m *llc.AddLink) { m.GID = pairRNIC(2, 1).GID }, llc.RejectNoPath},
		"a number in use":        {2, func(m *llc.AddLink) { m.Link = 1 }, llc.RejectNoPath},
		"number 0":               {2, func(m *llc.AddLink) { m.Link = 0 }, llc.RejectNoPath},
		"an MTU that is none":    {2, func(m *llc.AddLink) { m.MTU = 9 }, llc.RejectMTU},
		"a queue pair we lack":   {2, nil, llc.RejectNoPath},
		"a second asymmetric":    {1, nil, llc.RejectNoPath},
		"more than the maximum":  {2, nil, llc.RejectNoPath},
		"an address of the RNIC": {1, func(m *llc.AddLink) { m.GID, m.MAC = pairRNIC(1, 9).GID, pairRNIC(1, 1).MAC }, llc.RejectNoPath},
	} {
		p := newLinkPair(t, pairOptions{server: 1, client: 1})
		c := p.client
		for len(c.rnics) < tt.client {
			c.rnics = append(c.rnics, pairRNIC(2, byte(len(c.rnics)+1)))
		}
		c.lc.rnics = c.rnics
		m := llc.AddLink{Header: llc.Header{Form: llc.V2}, MAC: pairRNIC(1, 5).MAC, GID: pairRNIC(1, 5).GID, QPN: 0x99, Link: 50, MTU: wire.MTU1024}
		switch name {
		case "a queue pair we lack":
			c.noLinks = true
		case "a second asymmetric":
			c.lc.links = append(c.lc.links, &controlLink{num: 9, slot: 1, local: endOf(c.rnics[0]), peer: endOf(pairRNIC(1, 4))})
		case "more than the maximum":
			c.lc.links = append(c.lc.links, &controlLink{num: 9, slot: 1, local: endOf(c.rnics[1]), peer: endOf(pairRNIC(1, 4))})
		}
		if tt.change != nil {
			tt.change(&m)
		}
		before := len(c.lc.links)
		var reply llc.AddLink
		p.lose = func(from *pairSide, o SendLLC) bool {
			reply, _ = o.Message.(llc.AddLink)
			return true
		}
		c.do(c.lc.HandleMessage(p.now, 1, m, nil, nil))
		if !reply.Rejected || reply.Reason != tt.reason || len(c.lc.links) != before || c.lc.State() != StateActive {
			t.Errorf("%s: %v, %d links", name, reply, len(c.lc.links))
		}
	}
}

// TestAddLinkParallel has a client that accepts a link that it must not accept: the server deletes
// the link over another one.
func TestAddLinkParallel(t *testing.T) {
	for version, v1 := range linkVersions {
		for name, peer := range map[string]core.RNIC{"parallel": pairRNIC(2, 1), "a reserved MTU": pairRNIC(2, 2), "to ourselves": pairRNIC(1, 1)} {
			p := newLinkPair(t, pairOptions{v1: v1, server: 1, client: 1, first: func(p *linkPair) {
				p.lose = func(from *pairSide, o SendLLC) bool {
					m, ok := o.Message.(llc.AddLink)
					if !ok || !m.Reply {
						return false
					}
					m.Rejected, m.MAC, m.GID, m.QPN, m.MTU = false, peer.MAC, peer.GID, 0x77, wire.MTU1024
					if name == "a reserved MTU" {
						m.MTU = 9
					}
					p.queue = append(p.queue, func() { p.server.do(p.server.lc.HandleMessage(p.now, 1, m, nil, nil)) })
					return true
				}
			}})
			p.check(version+", "+name, "1:1-1", RedundancySingle)
			if got := strings.Join(p.server.log, ", "); got != "close(2)" || !slices.Contains(p.server.sent, "1:DELETE LINK") {
				t.Errorf("%s, %s: %s, sent %v", version, name, got, p.server.sent)
			}
		}
	}
}

// TestLinkLost loses a link, seen by either side: it is taken out of use there at once and by the peer's word at the other end,
// and made anew, asymmetric if an RNIC is gone.
func TestLinkLost(t *testing.T) {
	for version, v1 := range linkVersions {
		for _, who := range []string{"server", "client", "both"} {
			for _, num := range []llc.LinkNum{1, 2} {
				p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
				p.client.do(p.client.lc.ConfirmRMB(p.now, 2, p.client.tokens(2), nil))
				p.run()
				p.pass(20 * time.Second)
				p.server.log, p.client.log = nil, nil
				if who != "client" {
					p.server.fail(num)
				}
				if who != "server" {
					p.client.fail(num)
				}
				for _, s := range []*pairSide{p.server, p.client} {
					if got := strings.Join(s.log, ", "); strings.Contains(got, "close") || strings.Contains(got, "down") != (who == "both" || who == s.name) {
						t.Errorf("%s, link %d lost by %s: the %s did %q at once", version, num, who, s.name, got)
					}
				}
				p.run()
				for _, s := range []*pairSide{p.server, p.client} {
					got := strings.Join(s.log, ", ")
					if strings.Count(got, "down(") != 1 || strings.Count(got, "close(") != 1 || strings.Index(got, "close(") < strings.Index(got, "down(") {
						t.Errorf("%s, link %d lost by %s: the %s did %q", version, num, who, s.name, got)
					}
				}
				p.pass(5 * time.Second)
				p.check(version+", "+who, p.server.links(), RedundancySymmetric)
			}
		}
		// The client's RNIC is gone: an asymmetric link is left, until it is back.
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
		p.pass(20 * time.Second)
		p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics[:1], nil))
		p.client.fail(2)
		p.run()
		p.pass(5 * time.Second)
		p.check(version+", one RNIC", p.server.links(), RedundancyAsymmetric)
		p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics, nil))
		p.run()
		p.pass(5 * time.Second)
		p.check(version+", two RNICs", p.server.links(), RedundancySymmetric)
	}
}

// TestDeleteLinkOrderly ends links for an operator of either side, over the other link.
func TestDeleteLinkOrderly(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		p := newLinkPair(t, pairOptions{server: 2, client: 2})
		p.pass(20 * time.Second)
		s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
		s.sent = nil
		s.do(s.lc.DeleteLink(p.now, 1, nil))
		if s.sent[0] != "2:DELETE LINK" {
			t.Errorf("%s: sent %v", by, s.sent)
		}
		p.run()
		for _, s := range []*pairSide{p.server, p.client} {
			if got := strings.Join(s.log, ", "); !strings.Contains(got, "down(1)") || !strings.Contains(got, "close(1)") {
				t.Errorf("%s: the %s did %s", by, s.name, got)
			}
		}
		if p.server.links() != "2:2-2" || p.client.links() != "2:2-2" {
			t.Errorf("%s: links %s and %s", by, p.server.links(), p.client.links())
		}
		s.do(s.lc.DeleteLink(p.now, 2, nil)) // the last one stays
		p.run()
		if len(s.lc.Links()) == 0 {
			t.Errorf("%s: the last link was deleted", by)
		}
	}
}

// TestAddLinkFlapping has a link that fails as soon as it is there: attempts get rarer, and the group stays.
func TestAddLinkFlapping(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
		p.server.sent = nil
		for range 600 { // ten minutes
			if links := p.client.lc.Links(); len(links) > 1 {
				p.client.fail(links[1].Num)
				p.run()
			}
			p.pass(time.Second)
		}
		n := 0
		for _, m := range p.server.sent {
			if strings.HasSuffix(m, ":ADD LINK") {
				n++
			}
		}
		if n > 20 || p.server.lc.State() != StateActive || p.client.lc.State() != StateActive {
			t.Errorf("%s: %d attempts, %v, %v", version, n, p.server.lc.State(), p.client.lc.State())
		}
		// A link that holds is the end of it.
		for range 2 * int(AddLinkPauseMax/time.Second) {
			p.pass(time.Second)
		}
		p.server.sent = nil
		links := p.client.lc.Links()
		if len(links) != 2 {
			t.Fatalf("%s: %d links, want 2", version, len(links))
		}
		p.client.fail(links[1].Num)
		p.run()
		for range 3 * int(AddLinkPause/time.Second) {
			p.pass(time.Second)
		}
		if links := p.client.lc.Links(); len(links) != 2 {
			t.Errorf("%s: no link soon after one that held", version)
		}
	}
}

// TestElementOn finds the element of a connection on each link.
func TestElementOn(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2})
	c, s := p.client.lc, p.server.lc
	for _, num := range []llc.LinkNum{1, 2} {
		el, ok := c.ElementOn(1, num)
		if want := s.own[1].tokens[num]; !ok || el.RKey != want.RKey || el.VA != want.VA {
			t.Errorf("on link %d: %+v, %t, want %v", num, el, ok, want)
		}
	}
	if _, ok := c.ElementOn(2, 1); ok {
		t.Error("an element of nobody")
	}
	// A later connection: its Accept names the second link.
	p.server.do(s.ConfirmRMB(p.now, 5, p.server.tokens(5), nil))
	p.run()
	l := s.Links()[1]
	token := p.server.token(5, l.Num)
	el, why, _ := c.TakeElement(&clc.ParamsR{GID: l.Local.GID, QPN: l.Local.QPN, RKey: token.RKey, RMBAddr: token.VA, RMBEIndex: 1}, 7, nil)
	if why != clc.DiagNone || el.RKey != token.RKey {
		t.Errorf("TakeElement = %+v, %v", el, why)
	}
	if el, ok := c.ElementOn(7, 1); !ok || el.RKey != p.server.token(5, 1).RKey {
		t.Errorf("on link 1: %+v, %t", el, ok)
	}
	p.client.fail(1)
	if _, ok := c.ElementOn(7, 1); ok {
		t.Error("an element on a link that has failed")
	}
	if _, ok := c.ElementOn(7, 2); !ok {
		t.Error("no element on the link that is left")
	}
}

// TestAddLinkFreshAfterFailure has an RNIC come while a link is being made without it, which comes to nothing: there is no path. The one that has
// come is tried then, and not when a link without it would be.
func TestAddLinkFreshAfterFailure(t *testing.T) {
	for version, v1 := range linkVersions {
		for _, who := range []string{"client", "server"} {
			p := newLinkPair(t, pairOptions{v1: v1, server: 1, client: 1})
			p.pass(2 * time.Second)
			var dead llc.LinkNum
			p.lose = func(s *pairSide, o SendLLC) bool {
				m, confirm := o.Message.(llc.ConfirmLink)
				if confirm && dead == 0 {
					dead = m.Link
				}
				return confirm && m.Link == dead
			}
			fresh := p.client
			if p.addRNIC(p.server); who == "server" {
				fresh = p.server
				p.addRNIC(p.client) // and the one that comes is a third
			}
			p.pass(2 * AddLinkPause)
			if p.client.lc.add.phase == addNone || p.server.lc.add.phase == addNone {
				t.Fatalf("%s: no link is being made", version)
			}
			p.addRNIC(fresh)
			p.pass(ConfirmLinkTimeout + AddLinkPause)
			if p.client.lc.Redundancy() != RedundancySymmetric || p.server.lc.Redundancy() != RedundancySymmetric {
				t.Errorf("%s, %s: %s and %s", version, who, p.server.links(), p.client.links())
			}
		}
	}
}

// TestElementOfFormerLink has a server lose a link on which a Confirm names an element that is on its way: the connection writes over
// the link that is left. An RMB that was deleted meanwhile is none of those.
func TestElementOfFormerLink(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2})
	c, s := p.client.lc, p.server.lc
	for _, id := range []RMBID{5, 6} {
		p.client.do(c.ConfirmRMB(p.now, id, p.client.tokens(id), nil))
	}
	p.run()
	l := c.Links()[0]
	p.server.fail(l.Num)
	p.run()
	if len(s.links) != 1 {
		t.Fatalf("the server has %d links, want one", len(s.links))
	}
	p.client.do(c.DeleteRMB(p.now, 6, true, nil))
	p.run()
	confirm := func(id RMBID, change func(r *clc.ParamsR)) (Element, clc.Diagnosis) {
		token := p.client.token(id, l.Num)
		r := clc.ParamsR{GID: l.Local.GID, QPN: l.Local.QPN, RKey: token.RKey, RMBAddr: token.VA, RMBEIndex: 1}
		change(&r)
		_, why, _ := s.TakeElement(&r, 7, nil)
		el, _ := s.ElementOn(7, s.links[0].num)
		return el, why
	}
	for name, change := range map[string]func(r *clc.ParamsR){
		"another queue pair": func(r *clc.ParamsR) { r.QPN++ },
		"another GID":        func(r *clc.ParamsR) { r.GID[15]++ },
		"another RKey":       func(r *clc.ParamsR) { r.RKey++ },
		"another address":    func(r *clc.ParamsR) { r.RMBAddr++ },
	} {
		if _, why := confirm(5, change); why != clc.DiagRToken {
			t.Errorf("%s: %v", name, why)
		}
	}
	if _, why := confirm(6, func(*clc.ParamsR) {}); why != clc.DiagRToken {
		t.Errorf("an RMB that was deleted: %v", why)
	}
	el, why := confirm(5, func(*clc.ParamsR) {})
	if want := p.client.token(5, s.links[0].num); why != clc.DiagNone || el.RKey != want.RKey || el.VA != want.VA {
		t.Errorf("element %+v, %v, want %+v", el, why, want)
	}
}

// TestAddLinkFreshMeanwhile gives a client another RNIC while a link is being made without it: the server is told afterwards, and not
// only when it tries again by itself.
func TestAddLinkFreshMeanwhile(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 1, client: 1})
		p.pass(2 * time.Second)
		release := p.hold(func(s *pairSide, o SendLLC) bool {
			_, confirm := o.Message.(llc.ConfirmLink)
			return confirm && s == p.server
		})
		p.addRNIC(p.server)
		p.pass(AddLinkPause)
		if p.client.lc.add.phase == addNone {
			t.Fatalf("%s: no link is being made", version)
		}
		p.addRNIC(p.client)
		release()
		p.pass(4 * time.Second)
		if p.client.lc.Redundancy() != RedundancySymmetric || p.server.lc.Redundancy() != RedundancySymmetric {
			t.Errorf("%s: %s and %s", version, p.server.links(), p.client.links())
		}
	}
}
