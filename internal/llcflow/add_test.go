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

var headV1, headV2 = llc.Header{Form: llc.V1}, llc.Header{Form: llc.V2}

// TestAddLinkRetry has a server with a second RNIC that takes no link. The server tries again by
// its timer, less and less often (RFC 7609 C.8), and soon after a link was lost that had held.
func TestAddLinkRetry(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2, first: func(p *linkPair) { p.server.noLinks = true }})
		p.pass(20 * time.Minute)
		var gaps []time.Duration
		for i := 1; i < len(p.server.opened); i++ {
			gaps = append(gaps, p.server.opened[i]-p.server.opened[i-1])
		}
		want := []time.Duration{AddLinkRetry, 2 * AddLinkRetry, 4 * AddLinkRetry, 8 * AddLinkRetry, 16 * AddLinkRetry, AddLinkRetryMax}
		if len(gaps) < len(want) || !slices.Equal(gaps[:len(want)], want) {
			t.Errorf("%s: attempts after %v, want %v", version, gaps, want)
		}
		p.server.noLinks = false
		for end := p.now.Add(AddLinkRetryMax); p.now.Before(end) && len(p.server.lc.Links()) < 2; {
			p.pass(time.Second)
		}
		p.check(version+", later", p.server.links(), RedundancySymmetric)

		// A link that held is no failure of those that were attempted before.
		loseSteady(t, version, p)
		p.check(version+", in place of the lost one", p.server.links(), RedundancySymmetric)

		// The client has another RNIC, and does not say so: the server finds out.
		p = newLinkPair(t, pairOptions{v1: v1, server: 2, client: 1})
		p.client.rnics = append(p.client.rnics, pairRNIC(2, 2))
		p.client.lc.rnics = p.client.rnics
		p.pass(AddLinkRetry + time.Second)
		p.check(version+", asymmetric before", p.server.links(), RedundancySymmetric)
	}
	p := newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) {
		p.server.noLinks, p.server.lc.cfg.RetryInterval = true, -1
	}})
	p.pass(time.Hour)
	if len(p.server.opened) != 1 {
		t.Errorf("never again: attempts at %v", p.server.opened)
	}
	p.server.noLinks = false
	p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics[:1], nil))
	p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics, nil))
	p.run()
	p.check("when the client asks", p.server.links(), RedundancySymmetric)
}

// TestAddLinkAskAgain has a client with a second link that is not confirmed in time. The server has
// no timer, as Linux net/smc, and the client asks for the link: by a timer, less and less often,
// and not when the link has come up meanwhile.
func TestAddLinkAskAgain(t *testing.T) {
	for version, v1 := range linkVersions {
		kind := map[bool]string{true: "ADD LINK", false: "REQUEST ADD LINK"}[v1]
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2, first: func(p *linkPair) {
			p.server.lc.cfg.RetryInterval = -1
			confirmed := false // the first link is to be
			p.lose = func(s *pairSide, o SendLLC) bool {
				first := !confirmed
				confirmed = confirmed || o.Message.Type() == llc.TypeConfirmLink
				return !first && s == p.server && o.Message.Type() == llc.TypeConfirmLink
			}
		}})
		hints := func() (n int) {
			if n = p.client.count(kind); v1 { // replies are of the same type
				n -= p.server.count(kind)
			}
			return n
		}
		p.pass(2 * time.Minute)
		if n := hints(); n != 3 || p.client.lc.State() != StateActive { // after 10, 20 and 40 seconds, each with its 5 of waiting
			t.Errorf("%s: asked %d times in two minutes", version, n)
		}
		p.lose = nil
		p.pass(2 * time.Minute)
		p.check(version, p.server.links(), RedundancySymmetric)
		before := hints()
		p.pass(time.Hour)
		if n := hints(); n != before {
			t.Errorf("%s: asked %d times more for a link that is there", version, n-before)
		}
	}
}

// forgetfulServer has no timer for another attempt, as Linux net/smc, and each side two RNICs and links.
func forgetfulServer(t *testing.T, v1 bool) (p *linkPair, hints func() int) {
	p = newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2, first: func(p *linkPair) { p.server.lc.cfg.RetryInterval = -1 }})
	p.pass(time.Minute)
	p.check("at first", "1:1-1 2:2-2", RedundancySymmetric)
	return p, func() (n int) {
		for _, w := range p.client.sent {
			if kind := w[2:]; v1 && kind == "ADD LINK" || kind == "REQUEST ADD LINK" {
				n++
			}
		}
		return n
	}
}

// TestAddLinkSteady loses links that have held for a while, one after the other: each time the next one is attempted at once.
func TestAddLinkSteady(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
		for range 3 * freeFlaps {
			loseSteady(t, version, p)
		}
	}
}

// loseSteady loses the second link when it has held for a while, and wants the server to attempt another one at once.
func loseSteady(t *testing.T, version string, p *linkPair) {
	t.Helper()
	p.pass(linkSteady)
	p.server.opened = nil
	lost := p.now.Sub(epoch)
	p.client.fail(p.client.lc.Links()[1].Num)
	p.run()
	p.pass(2 * AddLinkPause)
	if len(p.server.opened) != 1 || p.server.opened[0] > lost+AddLinkPause {
		t.Fatalf("%s: a link that held was lost at %v, attempts at %v", version, lost, p.server.opened)
	}
}

// TestAddLinkAskAfterLoss has a server fail in its one attempt at a link that was lost, and the
// client ask for the link. The client asks no matter which side has noticed the loss, and also if
// the server does not hear that the new link was confirmed. It does not ask for a link that an
// operator has ended.
func TestAddLinkAskAfterLoss(t *testing.T) {
	for version, v1 := range linkVersions {
		for name, lost := range map[string]func(p *linkPair){
			"by the client": func(p *linkPair) { p.client.fail(2) },
			"by the server": func(p *linkPair) { p.server.fail(2) },
		} {
			p, _ := forgetfulServer(t, v1)
			p.server.noLinks = true
			lost(p)
			p.pass(5 * time.Second)
			p.check(version+", lost "+name, "1:1-1", RedundancySingle)
			p.server.noLinks = false
			p.pass(AddLinkRetry)
			if got := p.server.lc.Redundancy(); got != RedundancySymmetric {
				t.Errorf("%s, lost %s: still %v", version, name, got)
			}
		}

		p, _ := forgetfulServer(t, v1)
		unheard := 0
		p.lose = func(s *pairSide, o SendLLC) bool {
			_, confirm := o.Message.(llc.ConfirmLink)
			if confirm && s == p.client {
				unheard++
				return true
			}
			return false
		}
		p.client.fail(2)
		p.pass(ConfirmLinkTimeout + 2*time.Second)
		if unheard == 0 {
			t.Errorf("%s: the client has confirmed %d times", version, unheard)
		}
		p.lose = nil
		p.pass(2 * AddLinkRetry)
		if got := p.server.lc.Redundancy(); got != RedundancySymmetric {
			t.Errorf("%s, not confirmed: still %v", version, got)
		}

		p, hints := forgetfulServer(t, v1)
		before := hints()
		p.server.do(p.server.lc.DeleteLink(p.now, 2, nil))
		p.pass(time.Hour)
		p.check(version+", an operator's wish", "1:1-1", RedundancySingle)
		if n := hints() - before; n != 0 {
			t.Errorf("%s: asked %d times for a link that the server's operator has ended", version, n)
		}
	}
}

// TestAddLinkAskLonger has requests for a link dropped, as Linux net/smc does with some: they come
// less and less often, and end with the link that they are for. A server that has taken its RNIC
// for an asymmetric link is not asked all the time.
func TestAddLinkAskLonger(t *testing.T) {
	for version, v1 := range linkVersions {
		p, hints := forgetfulServer(t, v1)
		p.server.noLinks = true
		p.client.fail(2)
		p.pass(time.Second)
		before := hints()
		p.lose = func(s *pairSide, o SendLLC) bool {
			kind := o.Message.Type()
			return s == p.client && (kind == llc.TypeAddLink || kind == llc.TypeRequestAddLink)
		}
		p.pass(time.Hour)
		if n := hints() - before; n < singleTries || n > singleTries+15 { // every second, and then after 10, 20, 40, 80, 160 seconds, and 300 each
			t.Errorf("%s: asked %d times in an hour", version, n)
		}
		p.lose, p.server.noLinks = nil, false
		p.pass(AddLinkRetryMax)
		if got := p.server.lc.Redundancy(); got != RedundancySymmetric {
			t.Errorf("%s: still %v", version, got)
		}
		before = hints()
		p.pass(time.Hour)
		if n := hints() - before; n != 0 {
			t.Errorf("%s: asked %d times for a link that is there", version, n)
		}

		p.server.do(p.server.lc.SetRNICs(p.now, p.server.rnics[:1], nil))
		p.client.fail(p.client.lc.Links()[1].Num)
		p.pass(time.Minute)
		p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics[:1], nil)) // and is back
		p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics, nil))
		p.pass(time.Minute)
		if got := p.client.lc.Redundancy(); got != RedundancyAsymmetric {
			t.Errorf("%s: %v with one core.RNIC of the server's", version, got)
		}
		before = hints()
		p.pass(time.Hour)
		if n := hints() - before; n > 1 {
			t.Errorf("%s: asked %d times for what the server does not have", version, n)
		}
	}
}

// TestAddLinkHints has a client say that it has another RNIC: when that helps, and the server heed it, when that does.
func TestAddLinkHints(t *testing.T) {
	for version, v1 := range linkVersions {
		kind := map[bool]string{true: "ADD LINK", false: "REQUEST ADD LINK"}[v1]
		hint := func(p *linkPair) llc.Message {
			if v1 {
				return llc.AddLink{Header: headV1, MAC: pairRNIC(2, 3).MAC, GID: pairRNIC(2, 3).GID}
			}
			return llc.RequestAddLink{Header: headV2, GIDs: []wire.GID{pairRNIC(2, 1).GID, pairRNIC(2, 3).GID}}
		}
		// The client.
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
		p.client.sent = nil
		p.addRNIC(p.client)
		if n := p.client.count(kind); n > 0 {
			t.Errorf("%s: a client of a full group asks for another link", version)
		}
		p = newLinkPair(t, pairOptions{v1: v1, server: 1, client: 1})
		p.client.sent = nil
		again := p.client.rnics[0]
		again.GID[15] = 77
		p.client.do(p.client.lc.SetRNICs(p.now, []core.RNIC{p.client.rnics[0], again}, nil))
		if n := p.client.count(kind); n > 0 {
			t.Errorf("%s: a client asks for a link over the core.RNIC that it has one over", version)
		}
		p.client.do(p.client.lc.SetRNICs(p.now, []core.RNIC{p.client.rnics[0], again, pairRNIC(2, 2)}, nil))
		if n := p.client.count(kind); n != 1 {
			t.Errorf("%s: a client with another core.RNIC asks %d times", version, n)
		}
		p = newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
		p.pass(2 * time.Second)
		release := p.hold(lost("server", llc.TypeConfirmLink, false))
		p.server.fail(2)
		p.run()
		if p.client.lc.add.phase == addNone {
			t.Fatal("no link is made")
		}
		p.client.sent = nil
		p.addRNIC(p.client)
		if n := p.client.count(kind); n > 0 {
			t.Errorf("%s: a client asks for a link while one is made", version)
		}
		release()

		// The server. One hint is one attempt, the next is not before a pause.
		p = newLinkPair(t, pairOptions{v1: v1, server: 1, client: 1})
		p.pass(2 * time.Second)
		p.server.opened = nil
		for range 100 {
			p.server.do(p.server.lc.HandleMessage(p.now, 1, hint(p), nil, nil))
			p.run()
			p.pass(AddLinkPause / 10)
		}
		if n := len(p.server.opened); n < 10 || n > 11 {
			t.Errorf("%s: %d attempts within 10 s for 100 hints", version, n)
		}
		// A full group does not.
		p = newLinkPair(t, pairOptions{v1: v1, server: 3, client: 2})
		p.pass(2 * time.Second)
		p.server.opened = nil
		p.server.do(p.server.lc.HandleMessage(p.now, 1, hint(p), nil, nil))
		p.run()
		p.pass(time.Minute)
		if len(p.server.opened) > 0 {
			t.Errorf("%s: a full group has attempts at %v", version, p.server.opened)
		}
		// While a link is made the hint is answered by that.
		p = newLinkPair(t, pairOptions{v1: v1, server: 1, client: 1})
		p.pass(2 * time.Second)
		release = p.hold(lost("client", llc.TypeAddLink, true))
		p.server.do(p.server.lc.HandleMessage(p.now, 1, hint(p), nil, nil))
		p.run()
		p.server.do(p.server.lc.HandleMessage(p.now, 1, hint(p), nil, nil))
		p.server.opened = nil
		if p.server.lc.retry.hinted {
			t.Errorf("%s: a hint is kept while a link is made", version)
		}
		release()
		p.pass(AddLinkRetry / 2)
		if len(p.server.opened) > 0 {
			t.Errorf("%s: a hint while a link was made has attempts at %v", version, p.server.opened)
		}
	}
	// A request says where the client would like to have the link.
	p := newLinkPair(t, pairOptions{server: 2, client: 1})
	var target wire.GID
	p.lose = func(s *pairSide, o SendLLC) bool {
		if m, ok := o.Message.(llc.AddLink); ok && !m.Reply {
			target = m.TargetGID
		}
		return false
	}
	p.pass(2 * time.Second)
	p.addRNIC(p.client)
	if target != pairRNIC(2, 2).GID {
		t.Errorf("the link that was requested is for %v", target)
	}
	p.check("as requested", p.server.links(), RedundancySymmetric)
}

// TestLinkOpenedLate has our end of a link made when nobody wants it any more.
func TestLinkOpenedLate(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) { p.client.openLate = true }})
	c := p.client.lc
	offer := llc.AddLink{Header: headV2, MAC: pairRNIC(1, 2).MAC, GID: pairRNIC(1, 2).GID, QPN: 0x99, Link: 3, MTU: wire.MTU1024}
	outs := c.HandleMessage(p.now, 1, offer, nil, nil) // the server has given up link 2
	if got := controlWords(p.now, outs); !strings.HasPrefix(got, "close(2), open(3)") {
		t.Fatalf("another ADD LINK: %s", got)
	}
	end := core.LinkEnd{GID: pairRNIC(2, 2).GID, QPN: 0x44, MTU: wire.MTU1024}
	if got := controlWords(p.now, c.LinkOpened(p.now, 2, end, nil, nil)); got != "close(2)" {
		t.Errorf("link 2 is open: %s", got)
	}
	if got := sentOf(c.LinkOpened(p.now, 3, end, nil, nil)); len(got) != 1 || got[0].(llc.AddLink).Rejected {
		t.Errorf("link 3 is open: %v", got)
	}
	if got := controlWords(p.now, c.LinkOpened(p.now, 3, end, nil, nil)); got != "close(3)" {
		t.Errorf("link 3 is open once more: %s", got)
	}
}

// TestAddLinkAborted ends the making of a link before the peer has heard of it: nor does it hear of its end.
func TestAddLinkAborted(t *testing.T) {
	p := newTriplet(t)
	p.server.openLate = true
	p.server.fail(3)
	p.run()
	p.pass(2 * time.Second)
	s := p.server.lc
	if s.add.phase != addOpening {
		t.Fatalf("phase %d", s.add.phase)
	}
	via := s.add.via.num
	p.server.sent, p.server.log = nil, nil
	p.server.fail(via)
	p.run()
	p.pass(time.Second)
	if got := p.server.count("DELETE LINK"); got != 1 { // for the one that carried it
		t.Errorf("sent %v", p.server.sent)
	}
	if got := strings.Join(p.server.log, ", "); !strings.Contains(got, "close(4)") {
		t.Errorf("the server did %s", got)
	}
}

// TestAddLinkTokens has an RMB that is not registered with the queue pair of the new link: the peer is not told of it.
func TestAddLinkTokens(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) { p.server.openLate = true }})
	end := core.LinkEnd{GID: pairRNIC(1, 2).GID, MAC: pairRNIC(1, 2).MAC, QPN: 0x44, MTU: wire.MTU1024}
	outs := p.server.lc.LinkOpened(p.now, 2, end, nil, nil)
	if m, ok := sentOf(outs)[0].(llc.AddLink); !ok || len(m.RKeys) > 0 {
		t.Errorf("sent %v", sentOf(outs))
	}
	p.server.do(outs)
	p.run()
	if _, ok := p.client.lc.ElementOn(1, 2); ok || p.client.links() != "1:1-1 2:2-2" {
		t.Errorf("the client has links %s, and an element on the second: %t", p.client.links(), ok)
	}
}

// TestAddLinkSecondAsymmetric has a client answer with an RNIC that makes a second asymmetric link: the server deletes it.
func TestAddLinkSecondAsymmetric(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 1})
		p.check(version, "1:1-1 2:2-1a", RedundancyAsymmetric)
		p.pass(2 * time.Second)
		p.server.sent, p.server.log = nil, nil
		p.lose = func(s *pairSide, o SendLLC) bool {
			m, ok := o.Message.(llc.AddLink)
			if ok && m.Reply {
				m.Rejected, m.GID, m.MAC, m.QPN = false, pairRNIC(2, 1).GID, pairRNIC(2, 1).MAC, 0x77
				p.queue = append(p.queue, func() { p.server.do(p.server.lc.HandleMessage(p.now, o.Link, m, nil, nil)) })
			}
			return ok && m.Reply
		}
		p.server.do(p.server.lc.SetRNICs(p.now, []core.RNIC{pairRNIC(1, 1), pairRNIC(1, 3)}, nil))
		p.run()
		p.lose = nil
		p.check(version, "1:1-1 2:2-1a", RedundancyAsymmetric)
		if got := strings.Join(p.server.log, ", "); got != "close(3)" || p.server.count("DELETE LINK") != 1 {
			t.Errorf("%s: %s, sent %v", version, got, p.server.sent)
		}
	}
}

// TestAddLinkSlow has many RMBs told of one after the other, each answer nearly too late, while the group has other timers.
func TestAddLinkSlow(t *testing.T) {
	p := newLinkPair(t, pairOptions{v1: true, server: 1, client: 2})
	p.pass(2 * time.Second)
	for i := range RMBID(9) {
		p.server.do(p.server.lc.ConfirmRMB(p.now, 2+i, p.server.tokens(2+i), nil))
	}
	p.run()
	slow := 0
	p.lose = func(s *pairSide, o SendLLC) bool {
		if o.Message.Type() != llc.TypeAddLinkCont || s != p.client {
			return false
		}
		slow++
		p.now = p.now.Add(LLCTimeout - time.Millisecond)
		p.server.lc.timer = p.now
		p.server.do(p.server.lc.Advance(p.now, nil)) // "too early is harmless"
		return false
	}
	p.addRNIC(p.server)
	p.check("slow", "1:1-1 3:2-2", RedundancySymmetric)
	if slow != 5 {
		t.Errorf("%d answers", slow)
	}
}

// TestAddLinkContinuationLies has ADD LINK CONTINUATION of the wrong direction, or for another
// link, while its turn is: a message that is no answer is out of sync, an answer that nobody awaits
// is nothing.
func TestAddLinkContinuationLies(t *testing.T) {
	for _, tt := range []struct {
		to   string
		m    llc.AddLinkCont
		lost bool // the link that carries it
	}{
		{"server", llc.AddLinkCont{Header: headV1, Link: 4, Remaining: 1, RKeys: make([]llc.RKeyPair, 1)}, true},
		{"server", llc.AddLinkCont{Header: llc.Header{Reply: true}, Link: 9}, false},
		{"client", llc.AddLinkCont{Header: llc.Header{Reply: true}, Link: 4}, false},
		{"client", llc.AddLinkCont{Header: headV1, Link: 9}, true},
	} {
		p := newTriplet(t)
		p.server.fail(3)
		from := map[string]string{"server": "client", "client": "server"}[tt.to]
		release := p.hold(lost(from, llc.TypeAddLinkCont, from == "client"))
		p.run()
		p.pass(AddLinkPause)
		to := map[string]*pairSide{"server": p.server, "client": p.client}[tt.to]
		if to.lc.add.phase != addTelling {
			t.Fatalf("to %s: phase %d", tt.to, to.lc.add.phase)
		}
		before := to.lc.add
		via := to.lc.add.via.num
		to.do(to.lc.HandleMessage(p.now, via, tt.m, nil, nil))
		down := slices.ContainsFunc(to.log, func(w string) bool { return strings.HasPrefix(w, "down(1) protocol violation") })
		if down != tt.lost || !tt.lost && (to.lc.add.phase != before.phase || to.lc.add.owed != before.owed) {
			t.Errorf("%s gets %v: phase %d, %v", tt.to, tt.m, to.lc.add.phase, to.log)
		}
		release()
		p.pass(5 * time.Minute)
		p.check("in the end", p.server.links(), RedundancySymmetric)
	}
	// The client has more to tell than the server.
	p := newLinkPair(t, pairOptions{v1: true, server: 2, client: 1})
	for i := range RMBID(9) {
		p.client.do(p.client.lc.ConfirmRMB(p.now, 2+i, p.client.tokens(2+i), nil))
	}
	p.run()
	p.pass(2 * time.Second)
	p.addRNIC(p.client)
	p.check("more from the client", "1:1-1 3:2-2", RedundancySymmetric)
}

// TestAddLinkLateCompletion has the reply to CONFIRM LINK complete on a link that was given up, while another one is made.
func TestAddLinkLateCompletion(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) {
		p.lose = func(s *pairSide, o SendLLC) bool { return o.Tag&0xff == tagAdded }
	}})
	c := p.client.lc
	if c.add.phase != addReplied {
		t.Fatalf("phase %d", c.add.phase)
	}
	offer := llc.AddLink{Header: headV2, MAC: pairRNIC(1, 2).MAC, GID: pairRNIC(1, 2).GID, QPN: 0x99, Link: 3, MTU: wire.MTU1024}
	p.client.do(c.HandleMessage(p.now, 1, offer, nil, nil))
	p.client.do(c.HandleMessage(p.now, 3, llc.ConfirmLink{Header: headV2, CacheSize: llc.NoEyecatcher, MAC: offer.MAC, GID: offer.GID, QPN: 0x99, Link: 3, MaxLinks: 2, MaxConns: 32}, nil, nil))
	if c.add.phase != addReplied || c.add.link.num != 3 {
		t.Fatalf("link %d, phase %d", c.add.link.num, c.add.phase)
	}
	if outs := c.Sent(p.now, tagAdded|2<<8, nil); len(outs) > 0 || c.add.phase != addReplied {
		t.Errorf("the completion on link 2: %s", controlWords(p.now, outs))
	}
	if got := controlWords(p.now, c.Sent(p.now, tagAdded|3<<8, nil)); !strings.Contains(got, "up(3)") {
		t.Errorf("the completion on link 3: %s", got)
	}
}

// TestAddLinkLateRMB has the answer to CONFIRM RKEY overtaken by ADD LINK, over another link: the client did not tell of the RMB with the
// new link, and does so afterwards.
func TestAddLinkLateRMB(t *testing.T) {
	p := newTriplet(t)
	release := p.hold(lost("server", llc.TypeConfirmRKey, true))
	p.client.do(p.client.lc.ConfirmRMB(p.now, 9, p.client.tokens(9), nil))
	p.run()
	p.server.fail(3)
	hold := p.lose
	p.lose = func(s *pairSide, o SendLLC) bool {
		if s == p.server && o.Link == 4 && o.Message.Type() == llc.TypeConfirmLink {
			release()
			return false
		}
		return hold(s, o)
	}
	p.run()
	p.check("told afterwards", "1:1-1 2:2-2 4:3-3", RedundancySymmetric)
	if got := strings.Join(p.client.answers, ", "); got != "confirmed(9)" {
		t.Errorf("the RMB: %s", got)
	}
}

// TestAddLinkOfOne has version 1 with one link at most on our side. A client answers ADD LINK all the same, with a rejection, whenever it comes; a
// server sends one that is to be rejected, unless the client allows one link too: Linux waits for it.
func TestAddLinkOfOne(t *testing.T) {
	one := func(c *Config) { c.Result.Version, c.Result.Release, c.MaxLinks = clc.V1, 0, 1 }
	for _, before := range []string{"start confirm", "start confirm sent-confirm"} {
		b := newControlBench(t, core.RoleClient, "t", one)
		b.play(before)
		sent := sentOf(b.do("add-new"))
		if len(sent) != 1 {
			t.Fatalf("after %q: %v, want a rejection", before, sent)
		}
		if m, ok := sent[0].(llc.AddLink); !ok || !m.Reply || !m.Rejected {
			t.Errorf("after %q: %v, want a rejection", before, sent[0])
		}
		b.do("sent-confirm")
		if b.lc.State() != StateActive || len(b.lc.Links()) != 1 {
			t.Errorf("after %q: %v with %d links", before, b.lc.State(), len(b.lc.Links()))
		}
	}
	for theirs, want := range map[uint8]int{0: 0, 1: 0, 2: 1} {
		b := newControlBench(t, core.RoleServer, "t", one)
		b.play("start sent-confirm")
		reply := b.message("confirm-reply").(llc.ConfirmLink)
		reply.MaxLinks = theirs
		sent := sentOf(b.lc.HandleMessage(b.now, 0, reply, nil, nil))
		if len(sent) != want || b.lc.State() != StateActive {
			t.Fatalf("client of %d links: %v in state %v", theirs, sent, b.lc.State())
		}
		if want == 0 {
			continue
		}
		m, ok := sent[0].(llc.AddLink)
		if !ok || m.Reply || m.MTU.Valid() || m.Link == 0 || m.Link == firstLink {
			t.Errorf("client of %d links: %v, want ADD LINK that nobody can take", theirs, sent[0])
		}
		for _, answer := range []string{"rejected", "accepted"} { // the latter is none of a client that keeps to the rules
			if outs := b.do(answer); len(sentOf(outs)) != 0 || len(b.lc.Links()) != 1 {
				t.Errorf("after %s: %s", answer, controlWords(b.now, outs))
			}
		}
	}
}
