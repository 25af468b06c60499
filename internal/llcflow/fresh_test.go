package llcflow

import (
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// TestAddLinkFreshKept gives a side its second RNIC back while a link is being made without it, which then comes to nothing or is asymmetric: the
// next attempt is made soon, and not when the timer for failures says so.
func TestAddLinkFreshKept(t *testing.T) {
	for version, v1 := range linkVersions {
		for _, tt := range []struct {
			name string
			lost llc.Type // of the client
			late bool     // it arrives after all
		}{
			{"ADD LINK has no answer", llc.TypeAddLink, false},
			{"CONFIRM LINK has no answer", llc.TypeConfirmLink, false},
			{"the link is asymmetric", llc.TypeConfirmLink, true},
		} {
			p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2, first: func(p *linkPair) { p.client.lc.cfg.RetryInterval = -1 }}) // it does not ask
			p.pass(linkSteady)
			p.server.do(p.server.lc.SetRNICs(p.now, p.server.rnics[:1], nil))
			held := 0
			release := p.hold(func(s *pairSide, o SendLLC) bool {
				match := s == p.client && o.Message.Type() == tt.lost
				if match {
					held++
				}
				return match && held == 1
			})
			for _, s := range []*pairSide{p.server, p.client} {
				s.fail(2)
			}
			p.run()
			p.pass(AddLinkPause)
			if p.server.lc.add.phase == addNone {
				t.Fatalf("%s, %s: no link is being made", version, tt.name)
			}
			p.server.lc.retry.soon = 0 // it has tried often
			p.server.do(p.server.lc.SetRNICs(p.now, p.server.rnics, nil))
			if tt.late {
				release()
			}
			p.pass(ConfirmLinkTimeout + 2*AddLinkPause)
			if p.client.lc.Redundancy() != RedundancySymmetric || p.server.lc.Redundancy() != RedundancySymmetric {
				t.Errorf("%s, %s: %s and %s", version, tt.name, p.server.links(), p.client.links())
			}
		}
		// The client has its back, and asks a server for it that has no timer.
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2, first: func(p *linkPair) { p.server.lc.cfg.RetryInterval = -1 }})
		p.pass(linkSteady)
		p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics[:1], nil))
		p.hold(func(s *pairSide, o SendLLC) bool { return s == p.server && o.Message.Type() == llc.TypeConfirmLink })
		p.server.fail(2)
		p.run()
		p.pass(AddLinkPause)
		if p.client.lc.add.phase == addNone {
			t.Fatalf("%s: no link is being made", version)
		}
		p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics, nil))
		p.pass(ConfirmLinkTimeout - time.Second)
		p.lose = nil
		p.pass(time.Second + 2*AddLinkPause)
		if p.client.lc.Redundancy() != RedundancySymmetric || p.server.lc.Redundancy() != RedundancySymmetric {
			t.Errorf("%s, core.RNIC of the client: %s and %s", version, p.server.links(), p.client.links())
		}
	}
}

// TestAddLinkHintOvertakes has an asymmetric link that is made for the client, as its reply to CONFIRM LINK was acknowledged, and not yet for the server: the
// client's word that it has another RNIC, which comes over another queue pair, is not lost.
func TestAddLinkHintOvertakes(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 1, client: 1})
		p.pass(2 * time.Second)
		var deliver func()
		p.lose = func(s *pairSide, o SendLLC) bool {
			if s != p.client || o.Message.Type() != llc.TypeConfirmLink {
				return false
			}
			deliver = func() { p.server.do(p.server.lc.HandleMessage(p.now, o.Link, o.Message, nil, nil)) }
			p.queue = append(p.queue, func() { p.client.do(p.client.lc.Sent(p.now, o.Tag, nil)) })
			return true
		}
		p.addRNIC(p.server)
		p.pass(AddLinkPause)
		p.lose = nil
		if p.client.lc.Redundancy() != RedundancyAsymmetric || p.server.lc.add.phase != addConfirming {
			t.Fatalf("%s: the client has %s, the server is in phase %d", version, p.client.links(), p.server.lc.add.phase)
		}
		p.addRNIC(p.client)
		p.lose = func(s *pairSide, o SendLLC) bool { // it says it once
			return s == p.client && (o.Message.Type() == llc.TypeAddLink && p.server.lc.add.phase == addNone || o.Message.Type() == llc.TypeRequestAddLink)
		}
		deliver()
		p.run()
		p.pass(2 * AddLinkPause)
		if p.client.lc.Redundancy() != RedundancySymmetric || p.server.lc.Redundancy() != RedundancySymmetric {
			t.Errorf("%s: %s and %s", version, p.server.links(), p.client.links())
		}
	}
}

// TestAddLinkFreshAnew has attempts come to nothing for long, so that they are rare, and then an
// RNIC come: attempts with it begin as in a new group.
func TestAddLinkFreshAnew(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2, first: func(p *linkPair) { p.server.noLinks = true }})
		p.pass(20 * time.Minute)
		p.server.opened = nil
		p.addRNIC(p.server)
		p.pass(AddLinkRetry + AddLinkPause)
		if n := len(p.server.opened); n != 2 {
			t.Errorf("%s: attempts at %v, want one at once and one after %v", version, p.server.opened, AddLinkRetry)
		}
	}
}

// TestAddLinkFreshFirst gives a side its second RNIC while the first contact makes a link without it. Nobody else speaks of it: the client's is told to
// a server that has no timer for another attempt, as Linux net/smc, and the server's is tried at once, not when the timer for failures says so.
func TestAddLinkFreshFirst(t *testing.T) {
	for version, v1 := range linkVersions {
		for _, tt := range []struct {
			name           string
			server, client int
			fresh          func(p *linkPair) *pairSide
		}{
			{"the client's", 2, 1, (*linkPair).atClient},
			{"the server's", 1, 2, (*linkPair).atServer},
		} {
			var release func()
			p := newLinkPair(t, pairOptions{v1: v1, server: tt.server, client: tt.client, first: func(p *linkPair) {
				p.server.lc.cfg.RetryInterval = -1
				release = p.hold(func(s *pairSide, o SendLLC) bool {
					return s == p.server && o.Link == 2 && o.Message.Type() == llc.TypeConfirmLink
				})
			}})
			for _, s := range []*pairSide{p.server, p.client} {
				if s.lc.State() != StateAdding || s.lc.add.phase != addConfirming {
					t.Fatalf("%s, %s: the %s is in state %v, phase %d", version, tt.name, s.name, s.lc.State(), s.lc.add.phase)
				}
			}
			p.addRNIC(tt.fresh(p))
			release()
			p.pass(3 * AddLinkPause)
			if p.client.lc.Redundancy() != RedundancySymmetric || p.server.lc.Redundancy() != RedundancySymmetric {
				t.Errorf("%s, %s: %s and %s", version, tt.name, p.server.links(), p.client.links())
			}
		}
	}
}

// TestRequestAddLinkAnswered has REQUEST ADD LINK arrive while a link is being made. Before the client's reply to ADD LINK that is the answer: "the
// client should consider the new Request to act as the response". Afterwards the client has asked knowing of it, and waits for a response (SMCv2 "SMC-Rv2 LLC
// Request Add Link Message", notes 6 and 7).
func TestRequestAddLinkAnswered(t *testing.T) {
	for _, first := range []bool{true, false} {
		for _, tt := range []struct {
			name    string
			held    llc.Type // of the client
			replies int
		}{
			{"ADD LINK is not replied to", llc.TypeAddLink, 0},
			{"CONFIRM LINK is not replied to", llc.TypeConfirmLink, 1},
		} {
			hold := func(p *linkPair) {
				added := false
				p.hold(func(s *pairSide, o SendLLC) bool {
					if s == p.server && o.Message.Type() == llc.TypeAddLink {
						added = true
					}
					return added && s == p.client && o.Message.Type() == tt.held
				})
			}
			p := newLinkPair(t, pairOptions{server: 2, client: 2, first: func(p *linkPair) {
				if first {
					hold(p)
				}
			}})
			if !first {
				p.pass(linkSteady)
				hold(p)
				p.server.fail(2)
				p.run()
			}
			if lc := p.server.lc; (lc.State() == StateAdding) != first || lc.add.phase < addRequested {
				t.Fatalf("%s, first contact %v: the server is in state %v, phase %d", tt.name, first, lc.State(), lc.add.phase)
			}
			request := llc.RequestAddLink{Header: headV2, GIDs: []wire.GID{p.client.rnics[0].GID, pairRNIC(2, 3).GID}}
			p.server.do(p.server.lc.HandleMessage(p.now, 1, request, nil, nil))
			if got := p.server.lc.retry.gids; !slices.Equal(got, request.GIDs) { // "refresh when a new Request Add Link is received" (SMCv2 p.77 note 7)
				t.Errorf("%s, first contact %v: the client's RNICs are %v, want %v", tt.name, first, got, request.GIDs)
			}
			if n := p.server.count("REQUEST ADD LINK"); n != tt.replies {
				t.Errorf("%s, first contact %v: %d replies, want %d", tt.name, first, n, tt.replies)
			}
		}
	}
	for late, openLate := range map[string]bool{"": false, ", which is known late": true} {
		p := newLinkPair(t, pairOptions{server: 2, client: 1, first: func(p *linkPair) { p.server.noLinks = true }})
		p.pass(2 * AddLinkPause)
		p.server.openLate = openLate
		request := llc.RequestAddLink{Header: headV2, GIDs: []wire.GID{p.client.rnics[0].GID, pairRNIC(2, 2).GID}}
		for range 2 {
			p.server.do(p.server.lc.HandleMessage(p.now, 1, request, nil, nil))
			if !openLate {
				break // the second one would find nothing under way
			}
		}
		if openLate {
			if p.server.lc.add.phase != addOpening || p.server.count("REQUEST ADD LINK") != 0 {
				t.Fatalf("phase %d, sent %v", p.server.lc.add.phase, p.server.sent)
			}
			p.server.do(p.server.lc.LinkOpened(p.now, p.server.lc.add.link.num, core.LinkEnd{}, nil, nil))
		}
		if n := p.server.count("REQUEST ADD LINK"); n != 1 {
			t.Errorf("no queue pair for ADD LINK%s: %d replies, want 1", late, n)
		}
	}
}

// TestAddLinkFreshAskedAgain drops the first requests of a client whose RNIC is back, as Linux net/smc does where an exchange of its own has
// begun: the client asks again, in a group of one link and in an asymmetric one.
func TestAddLinkFreshAskedAgain(t *testing.T) {
	for version, v1 := range linkVersions {
		for name, asymmetric := range map[string]bool{"single": false, "asymmetric": true} {
			p, hints := forgetfulServer(t, v1)
			p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics[:1], nil))
			p.server.noLinks = !asymmetric
			p.client.fail(2)
			p.pass(2 * singleTries * AddLinkPause)
			p.server.noLinks = false
			want := map[bool]Redundancy{false: RedundancySingle, true: RedundancyAsymmetric}[asymmetric]
			if got := p.client.lc.Redundancy(); got != want {
				t.Fatalf("%s, %s: %v", version, name, got)
			}
			before := hints()
			p.lose = func(s *pairSide, o SendLLC) bool {
				kind := o.Message.Type()
				return s == p.client && (kind == llc.TypeAddLink || kind == llc.TypeRequestAddLink) && hints() < before+freshTries
			}
			p.client.do(p.client.lc.SetRNICs(p.now, p.client.rnics, nil))
			p.pass(freshTries * AddLinkPause)
			p.pass(ConfirmLinkTimeout)
			if p.client.lc.Redundancy() != RedundancySymmetric || p.server.lc.Redundancy() != RedundancySymmetric {
				t.Errorf("%s, %s: asked %d times: %s and %s", version, name, hints()-before, p.server.links(), p.client.links())
			}
		}
	}
}
