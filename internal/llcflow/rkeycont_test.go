package llcflow

import (
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/llc"
)

// TestConfirmRKeyContinuation tells of an RMB on eight links: the tokens in CONFIRM RKEY
// CONTINUATION are known, and counts that do not go on where they were, or come without a
// beginning, are nothing. A link that is not named in the end is lost.
func TestConfirmRKeyContinuation(t *testing.T) {
	const key = 0x9000
	start := func() (*linkPair, func(m llc.Message) []llc.Message) {
		p := newLinkPair(t, pairOptions{v1: true, server: 8, client: 8, max: 8})
		p.pass(time.Minute)
		p.server.log = nil
		return p, func(m llc.Message) []llc.Message {
			outs := p.server.lc.HandleMessage(p.now, 1, m, nil, nil)
			p.server.do(outs)
			return sentOf(outs)
		}
	}
	others := func(from, to llc.LinkNum) (list []llc.LinkRToken) {
		for num := from; num <= to; num++ {
			list = append(list, llc.LinkRToken{Link: num, RToken: llc.RToken{RKey: key, VA: uint64(num)}})
		}
		return list
	}
	first := llc.ConfirmRKey{Header: headV1, RToken: llc.RToken{RKey: key, VA: 1}, Remaining: 7, Others: others(2, 3)}
	cont := func(left uint8, list []llc.LinkRToken) llc.ConfirmRKeyCont {
		return llc.ConfirmRKeyCont{Header: headV1, Remaining: left, RTokens: list}
	}
	p, take := start()
	if m := take(cont(5, others(4, 6))); len(m) > 0 {
		t.Errorf("a continuation of nothing: %v", m)
	}
	if m := take(first); len(m) != 1 || m[0].(llc.ConfirmRKey).Negative {
		t.Errorf("CONFIRM RKEY: %v", m)
	}
	for _, left := range []uint8{0, 4, 6, 255} {
		if m := take(cont(left, others(4, 6))); len(m) > 0 {
			t.Errorf("%d left in place of 5: %v", left, m)
		}
	}
	if m := take(cont(5, others(4, 6))); len(m) != 1 {
		t.Errorf("5 left: %v", m)
	}
	if m := take(cont(5, others(4, 6))); len(m) > 0 {
		t.Errorf("5 left again: %v", m)
	}
	if m := take(cont(2, others(7, 8))); len(m) != 1 || len(p.server.log) > 0 {
		t.Errorf("2 left: %v, %v", m, p.server.log)
	}
	if m := take(cont(2, others(7, 8))); len(m) > 0 {
		t.Errorf("2 left again: %v", m)
	}
	for _, l := range p.server.lc.links {
		b := p.server.lc.peer.find(0, key)
		if token, ok := b.on(l.slot); !ok || token.VA != uint64(l.num) {
			t.Errorf("on link %d: %v, %t", l.num, token, ok)
		}
	}
	// Links that are not named, and such as there are not.
	p, take = start()
	take(first)
	take(cont(5, others(4, 6)))
	take(cont(2, []llc.LinkRToken{{Link: 0, RToken: llc.RToken{RKey: key, VA: 77}}, {Link: 99, RToken: llc.RToken{RKey: key}}}))
	got := strings.Join(p.server.log, ", ")
	if !strings.Contains(got, "down(7) protocol violation") || !strings.Contains(got, "down(8) protocol violation") || strings.Count(got, "down(") != 2 {
		t.Errorf("without links 7 and 8: %s", got)
	}
	if token, _ := p.server.lc.peer.find(0, key).on(0); token.VA != 1 {
		t.Errorf("link 0 is taken for link 1: %v", token)
	}
	// Of our own one, answers that do not fit.
	p, take = start()
	p.lose = lost("client", llc.TypeConfirmRKeyCont, true)
	reply := cont(5, others(4, 6))
	reply.Reply = true
	take(reply) // nobody has asked
	p.server.sent = nil
	p.server.do(p.server.lc.ConfirmRMB(p.now, 9, p.server.tokens(9), nil))
	p.run()
	if n := p.server.count("CONFIRM RKEY CONTINUATION"); n != 1 {
		t.Fatalf("sent %v", p.server.sent)
	}
	for _, left := range []uint8{0, 2, 4, 255} {
		reply.Remaining = left
		if m := take(reply); len(m) > 0 || len(p.server.answers) > 0 {
			t.Errorf("an answer with %d left: %v, %v", left, m, p.server.answers)
		}
	}
	reply.Remaining = 5
	if m := take(reply); len(m) != 1 {
		t.Errorf("the right answer: %v", m)
	}
	reply.Remaining = 2
	take(reply)
	if got := strings.Join(p.server.answers, ", "); got != "confirmed(9)" {
		t.Errorf("the RMB: %s", got)
	}
}

// TestExchangeOnLostLink loses the link that carries CONFIRM RKEY or DELETE RKEY: it begins anew over another one.
func TestExchangeOnLostLink(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		p := newTriplet(t)
		s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
		p.lose = lost(s.other.name, llc.TypeConfirmRKey, true)
		s.do(s.lc.ConfirmRMB(p.now, 9, s.tokens(9), nil))
		p.run()
		p.lose = nil
		s.fail(1)
		p.run()
		p.pass(time.Second)
		if got := strings.Join(s.answers, ", "); got != "confirmed(9)" {
			t.Errorf("%s: CONFIRM RKEY: %s", by, got)
		}
		p.pass(time.Minute)
		p.check("confirmed", p.server.links(), RedundancySymmetric)

		s.answers = nil
		p.lose = lost(s.other.name, llc.TypeDeleteRKey, true)
		s.do(s.lc.DeleteRMB(p.now, 9, true, nil))
		p.run()
		p.lose = nil
		s.fail(s.lc.exchange.via)
		p.run()
		p.pass(time.Second)
		if got := strings.Join(s.answers, ", "); got != "deleted(9)" {
			t.Errorf("%s: DELETE RKEY: %s", by, got)
		}
		// Not wanted any more while it is being told of.
		s.answers = nil
		p.pass(time.Minute)
		p.lose = lost(s.other.name, llc.TypeConfirmRKey, true)
		s.do(s.lc.ConfirmRMB(p.now, 10, s.tokens(10), nil))
		p.run()
		s.do(s.lc.DeleteRMB(p.now, 10, true, nil))
		p.lose = nil
		s.fail(s.lc.exchange.via)
		p.run()
		p.pass(time.Second)
		if got := strings.Join(s.answers, ", "); got != "deleted(10)" {
			t.Errorf("%s: an RMB that is not wanted any more: %s", by, got)
		}
		p.pass(time.Minute)
		p.check("in the end", p.server.links(), RedundancySymmetric)
	}
}

// TestMaxLinksOfClient has a client allow fewer links than its server: "this lower value then becomes the final negotiated maximum" (RFC
// 7609 p.22), in version 1. 0 says nothing.
func TestMaxLinksOfClient(t *testing.T) {
	for client, want := range map[uint8]int{0: 3, 1: 1, 2: 2, 3: 3, 8: 3} {
		p := newLinkPair(t, pairOptions{v1: true, server: 3, client: 3, max: 3, first: func(p *linkPair) {
			p.lose = func(s *pairSide, o SendLLC) bool {
				m, ok := o.Message.(llc.ConfirmLink)
				if !ok || s != p.client {
					return false
				}
				m.MaxLinks = client
				p.queue = append(p.queue, func() {
					p.server.do(p.server.lc.HandleMessage(p.now, o.Link, m, nil, nil))
					p.client.do(p.client.lc.Sent(p.now, o.Tag, nil))
				})
				return true
			}
		}})
		p.pass(time.Minute)
		if n := len(p.server.lc.Links()); n != want {
			t.Errorf("at most %d for the client, 3 for the server: %d links", client, n)
		}
	}
}
