package llcflow

import (
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// lost returns a linkPair.lose that loses one kind of messages: from is "server" or "client".
func lost(from string, kind llc.Type, reply bool) func(s *pairSide, o SendLLC) bool {
	return func(s *pairSide, o SendLLC) bool {
		return s.name == from && o.Message.Type() == kind && o.Message.Head().Reply == reply
	}
}

// TestC7 has the rows of RFC 7609 C.7.1 for timeouts: an answer that does not come.
func TestC7(t *testing.T) {
	first := func(lose func(s *pairSide, o SendLLC) bool) func(t *testing.T, v1 bool) *linkPair {
		return func(t *testing.T, v1 bool) *linkPair {
			p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2, first: func(p *linkPair) { p.lose = lose }})
			p.pass(30 * time.Second)
			return p
		}
	}
	// later loses messages in a group that has lost its second link before.
	later := func(lose func(s *pairSide, o SendLLC) bool) func(t *testing.T, v1 bool) *linkPair {
		return func(t *testing.T, v1 bool) *linkPair {
			p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
			p.pass(20 * time.Second)
			p.lose = lose
			p.server.fail(2)
			p.run()
			p.pass(8 * time.Second)
			return p
		}
	}
	three := func(do func(p *linkPair), lose func(s *pairSide, o SendLLC) bool) func(t *testing.T, v1 bool) *linkPair {
		return func(t *testing.T, v1 bool) *linkPair {
			p := newLinkPair(t, pairOptions{v1: true, server: 3, client: 3, max: 3})
			p.pass(20 * time.Second)
			p.check("three links", "1:1-1 2:2-2 3:3-3", RedundancySymmetric)
			p.server.log, p.client.log = nil, nil
			p.lose = lose
			do(p)
			p.run()
			p.pass(5 * time.Second)
			p.lose = nil
			p.pass(3 * time.Minute)
			return p
		}
	}
	onLink := func(num llc.LinkNum, lose func(s *pairSide, o SendLLC) bool) func(s *pairSide, o SendLLC) bool {
		return func(s *pairSide, o SendLLC) bool { return o.Link == num && lose(s, o) }
	}
	for _, tt := range []struct {
		name   string
		play   func(t *testing.T, v1 bool) *linkPair
		only   string // "v1"
		failed bool   // the first contact, and the group
		links  string // at the end; "": any, but quiet
		client string // its state, and its actions on links
	}{
		{"ADD LINK from server (first contact)", first(lost("server", llc.TypeAddLink, false)), "", true, "", "Active: "},
		{"ADD LINK reply from client, lost (first contact)", first(lost("client", llc.TypeAddLink, true)), "", true, "", "Ended: ending peer silent, ended"},
		{"ADD LINK CONTINUATION from server (first contact)", first(lost("server", llc.TypeAddLinkCont, false)), "v1", true, "", "Ended: ending peer silent, ended"},
		{"ADD LINK CONTINUATION reply from client (first contact)", first(lost("client", llc.TypeAddLinkCont, true)), "v1", true, "", "Ended: ending peer silent, ended"},
		{"CONFIRM LINK from server (first contact, second link)", first(onLink(2, lost("server", llc.TypeConfirmLink, false))), "", false, "", "Active: close(2), up(3)"},
		{"CONFIRM LINK reply from client (first contact, second link)", first(onLink(2, lost("client", llc.TypeConfirmLink, true))), "", false, "", "Active: close(2), up(3)"},
		{"ADD LINK from server (not first contact)", later(lost("server", llc.TypeAddLink, false)), "", false, "1:1-1", "Active: up(2), down(2) LOST, close(2)"},
		{"ADD LINK reply from client (not first contact)", later(lost("client", llc.TypeAddLink, true)), "", false, "1:1-1", "Active: up(2), down(2) LOST, close(2), close(3), close(4), close(5)"},
		{"ADD LINK CONTINUATION (not first contact)", later(lost("server", llc.TypeAddLinkCont, false)), "v1", false, "1:1-1", "Active: up(2), down(2) LOST, close(2), close(3), close(4), close(5)"},
		{"ADD LINK CONTINUATION reply (not first contact)", later(lost("client", llc.TypeAddLinkCont, true)), "v1", false, "1:1-1", "Active: up(2), down(2) LOST, close(2), close(3), close(4), close(5)"},
		{"CONFIRM LINK from server (not first contact)", later(lost("server", llc.TypeConfirmLink, false)), "", false, "1:1-1", "Active: up(2), down(2) LOST, close(2), close(3)"},
		{"CONFIRM LINK reply (not first contact)", later(lost("client", llc.TypeConfirmLink, true)), "", false, "1:1-1", "Active: up(2), down(2) LOST, close(2), close(3)"},
		{"DELETE LINK from client (one link)", three(func(p *linkPair) { p.client.fail(3) }, onLink(1, lost("client", llc.TypeDeleteLink, false))), "", false, "", "Active: down(3) link failed: retries, close(3), up(4)"},
		{"DELETE LINK from server (one link)", three(func(p *linkPair) { p.server.fail(3) }, onLink(1, lost("server", llc.TypeDeleteLink, false))), "", false, "", "Active: down(3) LOST, close(3), down(1) LOST, close(1), up(4), up(5)"},
		{"DELETE LINK reply from client (one link)", three(func(p *linkPair) { p.server.fail(3) }, onLink(1, lost("client", llc.TypeDeleteLink, true))), "", false, "", "Active: down(3) LOST, close(3), down(1) LOST, close(1), up(4), up(5)"},
		{"TEST LINK from client", three(func(p *linkPair) { p.client.do(p.client.lc.Suspect(p.now, 2, nil)) }, onLink(2, lost("client", llc.TypeTestLink, false))), "", false, "", "Active: down(2) peer silent, close(2), up(4)"},
		{"TEST LINK from server", three(func(p *linkPair) { p.server.do(p.server.lc.Suspect(p.now, 2, nil)) }, onLink(2, lost("server", llc.TypeTestLink, false))), "", false, "", "Active: down(2) LOST, close(2), up(4)"},
	} {
		for version, v1 := range linkVersions {
			if tt.only != "" && tt.only != version {
				continue
			}
			t.Run(tt.name+", "+version, func(t *testing.T) {
				p := tt.play(t, v1)
				for _, s := range []*pairSide{p.server, p.client} {
					ended := s.lc.State() == StateEnded
					up := strings.Contains(strings.Join(s.steps, ", "), "step up")
					if s == p.server && (ended != tt.failed || up == tt.failed) {
						t.Errorf("the %s is in state %v, %v, steps %v, %v", s.name, s.lc.State(), s.lc.Failure(), s.steps, s.log)
					}
				}
				want := strings.ReplaceAll(tt.client, "LOST", "deleted by peer: lost path (0x00010000)")
				if got := p.client.lc.State().String() + ": " + strings.Join(p.client.log, ", "); got != want {
					t.Errorf("the client: %s, want %s", got, want)
				}
				if tt.failed {
					return
				}
				if got := p.server.links(); tt.links != "" && got != tt.links {
					t.Errorf("the server has the links %q, want %q; sent %v", got, tt.links, p.server.sent)
				}
				p.lose = nil
				p.pass(10 * time.Minute)
				if tt.only == "" && strings.Contains(tt.name, "one link") || strings.Contains(tt.name, "TEST LINK") {
					p.check("in the end", p.server.links(), RedundancySymmetric)
					if n := len(p.server.lc.Links()); n != 3 {
						t.Errorf("%d links in the end", n)
					}
					return
				}
				p.check("in the end", p.server.links(), RedundancySymmetric)
			})
		}
	}
	// A link over which DELETE LINK is not answered fails as well.
	p := three(func(p *linkPair) { p.server.fail(3) }, onLink(1, lost("server", llc.TypeDeleteLink, false)))(t, true)
	if got := strings.Join(p.server.log, ", "); !strings.Contains(got, "down(1) peer silent") {
		t.Errorf("DELETE LINK on link 1 is not answered: %s", got)
	}
	// With the last link the group ends.
	p = newLinkPair(t, pairOptions{server: 2, client: 2})
	p.lose = func(s *pairSide, o SendLLC) bool { return true }
	p.server.fail(2)
	p.pass(5 * time.Second)
	if p.server.lc.State() != StateEnded || p.server.lc.Failure().Kind != EndSilent {
		t.Errorf("nothing is answered: %v, %v", p.server.lc.State(), p.server.lc.Failure())
	}
	p = newLinkPair(t, pairOptions{server: 2, client: 2})
	p.client.fail(2)
	p.client.fail(1)
	p.server.fail(1)
	p.server.fail(2)
	p.run()
	if p.server.lc.State() != StateEnded || p.client.lc.State() != StateEnded {
		t.Errorf("both links are lost: %v, %v", p.server.lc.State(), p.client.lc.State())
	}
}

// TestC7DeleteAll sends DELETE LINK for all links again over another one when the first fails.
func TestC7DeleteAll(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		p := newLinkPair(t, pairOptions{server: 2, client: 2})
		s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
		p.lose = func(from *pairSide, o SendLLC) bool { return from == s && o.Link == 1 }
		s.sent = nil
		s.do(s.lc.End(p.now, EndOperator, nil))
		s.fail(1)
		p.run()
		if got := strings.Join(s.sent, " "); got != "1:DELETE LINK 2:DELETE LINK" || s.other.lc.State() != StateEnded || s.lc.State() != StateEnded {
			t.Errorf("%s: sent %s, states %v and %v", by, got, s.lc.State(), s.other.lc.State())
		}
	}
}

// TestC7DeleteAllTimeout sends DELETE LINK for all links and has no answer, nor word of its arrival: the group ends after GroupEndTimeout all the same, and not before.
func TestC7DeleteAllTimeout(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		p := newLinkPair(t, pairOptions{server: 2, client: 2})
		s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
		p.lose = func(from *pairSide, o SendLLC) bool { return true }
		s.do(s.lc.End(p.now, EndOperator, nil))
		p.pass(GroupEndTimeout - time.Millisecond)
		if s.lc.State() != StateEnding || s.count("DELETE LINK") != 1 {
			t.Errorf("%s: before it is time %v, sent %v", by, s.lc.State(), s.sent)
		}
		p.pass(2 * time.Millisecond)
		if s.lc.State() != StateEnded || s.lc.Failure().Kind != EndOperator {
			t.Errorf("%s: %v, %v", by, s.lc.State(), s.lc.Failure())
		}
	}
}

// TestC7ClientWaits has CONFIRM LINK for the second link of a first contact get lost: the client says DELETE LINK, and opens the connection to its application when the
// server has said so as well.
func TestC7ClientWaits(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) {
		p.lose = func(s *pairSide, o SendLLC) bool {
			return s == p.server && (o.Message.Type() == llc.TypeConfirmLink && o.Link == 2 || o.Message.Type() == llc.TypeDeleteLink)
		}
	}})
	up := func() bool { return strings.Contains(strings.Join(p.client.steps, ", "), "step up") }
	p.pass(ConfirmLinkTimeout + time.Millisecond)
	if n := p.client.count("DELETE LINK"); n != 1 || up() {
		t.Errorf("after %v: sent %v, steps %v", ConfirmLinkTimeout, p.client.sent, p.client.steps)
	}
	release := p.hold(lost("server", llc.TypeDeleteLink, false))
	p.pass(LLCTimeout)
	if up() {
		t.Errorf("without a word of the server: steps %v", p.client.steps)
	}
	release()
	if !up() || p.client.lc.State() != StateActive {
		t.Errorf("%v, %v, steps %v", p.client.lc.State(), p.client.lc.Failure(), p.client.steps)
	}
}

// TestC71 has the rows of RFC 7609 C.7.1 for messages that are not as they must be. ADD LINK with an MTU that is none is in
// TestAddLinkRefused, the reply that makes a parallel link in TestAddLinkParallel, the wrong count of ADD LINK CONTINUATION in
// TestAddLinkContinuation; DELETE RKEY and unknown types are in control_test.go.
func TestC71(t *testing.T) {
	t.Run("CONFIRM LINK with other link information", func(t *testing.T) {
		for _, from := range []string{"server", "client"} {
			wrong := true
			p := newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) {
				p.lose = func(s *pairSide, o SendLLC) bool {
					m, ok := o.Message.(llc.ConfirmLink)
					if !ok || o.Link != 2 || s.name != from || !wrong {
						return false
					}
					wrong = false
					m.QPN++
					p.queue = append(p.queue, func() { s.other.do(s.other.lc.HandleMessage(p.now, 2, m, nil, nil)) })
					return true
				}
			}})
			p.pass(time.Second)
			if got := p.server.links(); got != "1:1-1" || p.client.links() != "1:1-1" {
				t.Errorf("from %s: links %s and %s", from, got, p.client.links())
			}
			p.pass(time.Minute)
			p.check("in the end, "+from, p.server.links(), RedundancySymmetric)
		}
	})
	t.Run("link group command on a link that the client has asked to delete", TestDeleteLinkIgnores)
	t.Run("DELETE LINK for a link that does not exist", func(t *testing.T) {
		for _, from := range []string{"server", "client"} {
			p := newLinkPair(t, pairOptions{server: 2, client: 2})
			to := map[string]*pairSide{"server": p.client, "client": p.server}[from]
			outs := to.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: llc.Header{Form: llc.V2}, Link: 77}, nil, nil)
			m, _ := sentOf(outs)[0].(llc.DeleteLink)
			if !m.Reply || m.Reason != llc.DeleteUnknownLink || m.Link != 77 {
				t.Errorf("from %s: %v", from, m)
			}
		}
	})
	t.Run("CONFIRM RKEY without one of the links", func(t *testing.T) {
		for _, from := range []string{"server", "client"} {
			p := newLinkPair(t, pairOptions{server: 2, client: 2})
			p.pass(20 * time.Second)
			to := map[string]*pairSide{"server": p.client, "client": p.server}[from]
			m := llc.ConfirmRKey{Header: llc.Header{Form: llc.V2}, RToken: llc.RToken{RKey: 0x555}}
			to.do(to.lc.HandleMessage(p.now, 1, m, nil, nil))
			if got := strings.Join(to.log, ", "); !strings.Contains(got, "down(2)") || strings.Contains(got, "down(1)") {
				t.Errorf("from %s: %s", from, got)
			}
			p.run()
			p.pass(5 * time.Second)
			p.check("in the end, "+from, p.server.links(), RedundancySymmetric)
		}
	})
	t.Run("TEST LINK reply with other data", func(t *testing.T) {
		p := newLinkPair(t, pairOptions{server: 2, client: 2})
		p.lose = lost("client", llc.TypeTestLink, false)
		p.server.lc.Suspect(p.now, 2, nil)
		p.server.do(p.server.lc.HandleMessage(p.now, 2, llc.TestLink{Header: llc.Header{Form: llc.V2, Reply: true}, UserData: [16]byte{9}}, nil, nil))
		if got := strings.Join(p.server.log, ", "); !strings.Contains(got, "down(2) protocol violation") || p.server.lc.State() != StateActive {
			t.Errorf("%s, %v", got, p.server.lc.State())
		}
	})
	t.Run("a message that is out of sync", func(t *testing.T) {
		p := newLinkPair(t, pairOptions{server: 2, client: 2})
		p.client.do(p.client.lc.HandleMessage(p.now, 2, llc.ConfirmLink{Header: llc.Header{Form: llc.V2}, Link: 2}, nil, nil))
		if got := strings.Join(p.client.log, ", "); !strings.Contains(got, "down(2) protocol violation") || p.client.links() != "1:1-1" {
			t.Errorf("%s, %s", got, p.client.links())
		}
	})
}

// TestDeleteLinkIgnores has a client ignore messages on a link after it has asked for the link's
// end.
func TestDeleteLinkIgnores(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2})
	p.lose = func(*pairSide, SendLLC) bool { return true }
	p.client.fail(2)
	p.client.sent = nil
	// A server answers: the client is not to wait.
	q := newLinkPair(t, pairOptions{server: 2, client: 2})
	q.lose = func(*pairSide, SendLLC) bool { return true }
	q.server.fail(2)
	q.server.sent = nil
	q.server.do(q.server.lc.HandleMessage(q.now, 2, llc.ConfirmRKey{Header: headV2, RToken: llc.RToken{RKey: 0x555}}, nil, nil))
	if n := q.server.count("CONFIRM RKEY"); n != 1 {
		t.Errorf("the server sent %v", q.server.sent)
	}
	for _, m := range []llc.Message{
		llc.ConfirmRKey{Header: llc.Header{Form: llc.V2}, RToken: llc.RToken{RKey: 0x555}},
		llc.DeleteRKey{Header: llc.Header{Form: llc.V2}, RKeys: []wire.RKey{0x100}},
		llc.AddLink{Header: llc.Header{Form: llc.V2}, GID: pairRNIC(1, 5).GID, Link: 9, MTU: 3},
	} {
		p.client.do(p.client.lc.HandleMessage(p.now, 2, m, nil, nil))
	}
	if len(p.client.sent) > 0 {
		t.Errorf("answered with %v", p.client.sent)
	}
	p.client.do(p.client.lc.HandleMessage(p.now, 2, llc.DeleteLink{Header: llc.Header{Form: llc.V2}, All: true}, nil, nil))
	if p.client.lc.State() != StateEnded {
		t.Errorf("DELETE LINK for all: %v", p.client.lc.State())
	}
}

// TestDeleteLinkCrossing has both sides delete the same link, and different ones.
func TestDeleteLinkCrossing(t *testing.T) {
	for _, nums := range [][2]llc.LinkNum{{2, 2}, {2, 3}, {1, 2}, {1, 1}} {
		p := newLinkPair(t, pairOptions{v1: true, server: 3, client: 3, max: 3})
		p.pass(20 * time.Second)
		p.server.do(p.server.lc.DeleteLink(p.now, nums[0], nil))
		p.client.fail(nums[1])
		p.run()
		p.pass(3 * time.Minute)
		p.check("crossing", p.server.links(), RedundancySymmetric)
	}
}
