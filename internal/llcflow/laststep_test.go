package llcflow

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/llc"
)

// lastStep is a pair that is about to have a second link: the client's reply to CONFIRM LINK is on its way. release has it arrive.
func lastStep(t *testing.T, v1 bool) (p *linkPair, release func()) {
	t.Helper()
	p = newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
	p.pass(20 * time.Second)
	release = p.hold(lost("client", llc.TypeConfirmLink, true))
	p.server.fail(2)
	p.run()
	p.pass(AddLinkPause)
	if p.client.lc.add.phase != addReplied || p.server.lc.add.phase != addConfirming {
		t.Fatalf("phases %d and %d", p.client.lc.add.phase, p.server.lc.add.phase)
	}
	for _, s := range []*pairSide{p.server, p.client} {
		s.log = nil
	}
	return p, release
}

// TestLastLinkLostInConfirm loses the last link in use while another one is all but made. The group goes on over that, as neither side knows whether the other one has it
// already; and ends if it comes to nothing.
func TestLastLinkLostInConfirm(t *testing.T) {
	for version, v1 := range linkVersions {
		for _, who := range []string{"server", "client", "both"} {
			for _, then := range []string{"reply", "reply late", "no reply", "new link lost", "offered anew"} {
				name := version + ", link 1 lost by " + who + ", " + then
				p, release := lastStep(t, v1)
				sides := []*pairSide{p.server, p.client}
				if who != "both" {
					sides = []*pairSide{map[string]*pairSide{"server": p.server, "client": p.client}[who]}
				}
				for _, s := range sides {
					s.do(s.lc.Suspect(p.now, 1, nil)) // the answer will not come
					s.fail(1)
					s.fail(1)
					if len(s.log) > 0 || s.lc.State() != StateActive {
						t.Errorf("%s: at once, %v, %v", name, s.lc.State(), s.log)
					}
				}
				held := p.lose
				p.lose = func(s *pairSide, o SendLLC) bool { return o.Link == 1 || held != nil && held(s, o) }
				p.queue = nil
				switch then {
				case "reply late":
					p.pass(ConfirmLinkTimeout - time.Second)
					fallthrough
				case "reply":
					held = nil
					gone := p.lose
					release()
					p.lose = gone
					p.run()
					p.pass(time.Millisecond)
					for _, s := range []*pairSide{p.server, p.client} {
						if got := s.links(); !strings.HasPrefix(got, "3:2-2") || !s.logHas("up(3)") || !s.logHas("down(1)") || !s.logHas("close(1)") {
							t.Errorf("%s: the %s has the links %q, %v", name, s.name, got, s.log)
						}
					}
					p.lose = nil
					p.pass(5 * time.Minute)
					p.check(name, p.server.links(), RedundancySymmetric)
					continue
				case "no reply":
					p.pass(ConfirmLinkTimeout)
				case "new link lost":
					for _, s := range sides {
						s.fail(3)
					}
				case "offered anew":
					if who == "server" {
						continue
					}
					m := llc.AddLink{Header: llc.Header{Form: p.client.lc.form}, MAC: pairRNIC(1, 2).MAC, GID: pairRNIC(1, 2).GID, QPN: 9, Link: 4, MTU: 3}
					if outs := p.client.lc.HandleMessage(p.now, 1, m, nil, nil); len(sentOf(outs)) > 0 || len(outs) == 0 || outs[len(outs)-1] != (GroupEnded{}) {
						t.Errorf("%s: %s", name, controlWords(p.now, outs))
					} else {
						p.client.do(outs)
					}
					sides = []*pairSide{p.client}
				}
				for _, s := range sides {
					if s.lc.State() != StateEnded || s.lc.Failure().Kind != EndLinkFailed || !slices.Equal(s.log, []string{"ending link failed: retries", "ended"}) {
						t.Errorf("%s: the %s is in state %v, %v, %v", name, s.name, s.lc.State(), s.lc.Failure(), s.log)
					}
				}
			}
		}
	}
}

// TestReplyArrived has a server lose the first link and say so over the second one, before the client has looked whether its reply to CONFIRM LINK has arrived: the
// link is up, as the server uses it.
func TestReplyArrived(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2, first: func(p *linkPair) {
			p.lose = func(s *pairSide, o SendLLC) bool {
				if o.Tag&0xff != tagAdded {
					return false
				}
				p.queue = append(p.queue, func() { p.server.do(p.server.lc.HandleMessage(p.now, o.Link, o.Message, nil, nil)) })
				return true
			}
		}})
		if p.client.lc.add.phase != addReplied || p.server.lc.State() != StateActive {
			t.Fatalf("%s: phase %d, %v", version, p.client.lc.add.phase, p.server.lc.State())
		}
		p.server.fail(1)
		p.run()
		p.client.do(p.client.lc.Sent(p.now, tagAdded|2<<8, nil)) // and nobody minds
		p.lose = nil
		for _, s := range []*pairSide{p.server, p.client} {
			if got := s.links(); got != "2:2-2" || s.lc.State() != StateActive {
				t.Errorf("%s: the %s has the links %q, %v, %v", version, s.name, got, s.lc.State(), s.lc.Failure())
			}
		}
		p.pass(5 * time.Minute)
		p.check(version, p.server.links(), RedundancySymmetric)
	}
}

// TestReplyArrivedRKey has a server tell of an RMB over the first link, before the client has looked whether its reply to CONFIRM LINK has arrived: it is taken at
// once, as Linux net/smc does not ask again.
func TestReplyArrivedRKey(t *testing.T) {
	for version, v1 := range linkVersions {
		for links := 1; links <= 2; links++ {
			var late Tag
			tag := []Tag{1: tagConfirm, 2: tagAdded}[links]
			p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2, max: uint8(links), first: func(p *linkPair) {
				p.lose = func(s *pairSide, o SendLLC) bool {
					if s == p.server || o.Tag&0xff != tag {
						return false
					}
					late = o.Tag
					p.queue = append(p.queue, func() { p.server.do(p.server.lc.HandleMessage(p.now, o.Link, o.Message, nil, nil)) })
					return true
				}
			}})
			lc := p.client.lc
			if links == 2 && lc.add.phase != addReplied || links == 1 && lc.State() != StateReplied || p.server.lc.State() != StateActive {
				t.Fatalf("%s, %d links: the client is in state %v, %d, the server in %v", version, links, lc.State(), lc.add.phase, p.server.lc.State())
			}
			p.server.do(p.server.lc.ConfirmRMB(p.now, 50, p.server.tokens(50), nil))
			p.run()
			if p.server.lc.own[50].state != rmbConfirmed || lc.peer.find(lc.main().slot, p.server.token(50, 1).RKey) == nil {
				t.Errorf("%s, %d links: the RMB is in state %d, sent %v", version, links, p.server.lc.own[50].state, tail(p.client.sent))
			}
			p.client.do(lc.Sent(p.now, late, nil)) // and nobody minds
			p.lose = nil
			p.run()
			if got := p.client.links(); lc.State() != StateActive || strings.Count(got, ":") != links {
				t.Errorf("%s, %d links: the client has the links %q, %v", version, links, got, lc.State())
			}
		}
	}
}

// TestAddLinkContinuationLate has a client give up a link that is being made while the server tells of its RMBs there: that is no violation, as the server has not
// heard of it.
func TestAddLinkContinuationLate(t *testing.T) {
	p := newLinkPair(t, pairOptions{v1: true, server: 2, client: 2})
	p.pass(20 * time.Second)
	release := p.hold(lost("server", llc.TypeAddLinkCont, false))
	p.server.fail(2)
	p.run()
	p.pass(AddLinkPause)
	if p.client.lc.add.phase != addTelling {
		t.Fatalf("phase %d", p.client.lc.add.phase)
	}
	p.client.fail(3)
	release()
	if p.client.lc.State() != StateActive || p.client.lc.link(3) != nil {
		t.Errorf("%v, %v, links %q", p.client.lc.State(), p.client.lc.Failure(), p.client.links())
	}
	p.pass(5 * time.Minute)
	p.check("in the end", p.server.links(), RedundancySymmetric)
}

// TestDeleteLinkNeeded has the end of an asymmetric link wait until another link is deleted, of which the client has to be told first, and a symmetric link get lost
// meanwhile: the asymmetric one is needed then, and stays.
func TestDeleteLinkNeeded(t *testing.T) {
	for _, lose := range []bool{false, true} {
		p := newLinkPair(t, pairOptions{server: 2, client: 1})
		p.pass(20 * time.Second)
		lc := p.server.lc
		release := p.hold(lost("client", llc.TypeDeleteLink, true))
		// Of a link between others, and of an asymmetric one.
		lc.links = append(lc.links, &controlLink{num: 9, slot: 5, state: linkFailed})
		lc.enqueue(linkDelete{num: 9, reason: llc.DeleteLostPath})
		lc.enqueue(linkDelete{num: 2, reason: llc.DeleteAsymmetric, orderly: true, surplus: true})
		another := &controlLink{num: 8, slot: 6, local: endOf(pairRNIC(1, 8)), peer: endOf(pairRNIC(2, 8))}
		if lc.links = append(lc.links, another); lose {
			another.state = linkFailed
		}
		p.server.do(lc.arm(lc.next(p.now, nil)))
		p.run()
		p.server.sent = nil
		release()
		if stays, tells := lc.link(2) != nil && lc.link(2).state == linkActive, p.server.count("DELETE LINK") > 0; stays != lose || tells == lose || lc.deleteOf(2) != nil && lose {
			t.Errorf("symmetric link lost %t: the asymmetric one stays: %t, sent %v, deletes %v", lose, stays, p.server.sent, lc.deletes)
		}
	}
}
