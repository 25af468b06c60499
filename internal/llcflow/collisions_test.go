package llcflow

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// TestCollisions has the rows of RFC 7609 §3.5.5.3.1 to 3: a message that crosses an exchange. The
// exchange under way is held up by losing its answer, and given up in the end, so that the group
// must be quiet and symmetric again.
func TestCollisions(t *testing.T) {
	h := llc.Header{Form: llc.V2}
	v1 := llc.Header{Form: llc.V1}
	token := llc.RToken{RKey: 0x7777, VA: 0x70000}
	adding := func(p *linkPair) {
		p.lose = lost("client", llc.TypeAddLink, true)
		p.server.fail(2)
		p.run()
		p.pass(1500 * time.Millisecond)
		if p.server.lc.add.phase != addRequested {
			p.t.Fatal("no ADD LINK is under way")
		}
	}
	deleting := func(p *linkPair) {
		p.lose = lost("client", llc.TypeDeleteLink, true)
		p.server.fail(2)
		p.run()
	}
	confirming := func(side string) func(p *linkPair) {
		return func(p *linkPair) {
			s := map[string]*pairSide{"server": p.server, "client": p.client}[side]
			p.lose = lost(s.other.name, llc.TypeConfirmRKey, true)
			s.do(s.lc.ConfirmRMB(p.now, 9, s.tokens(9), nil))
			p.run()
			if s.lc.exchange.kind != exchangeConfirmRKey {
				p.t.Fatal("no CONFIRM RKEY is under way")
			}
		}
	}
	reply := func(m llc.Message) string { // the first words of a message
		return strings.Join(strings.Fields(m.String())[:3], " ")
	}
	for _, tt := range []struct {
		name    string
		begin   func(p *linkPair)
		to      string // whom the message reaches
		message llc.Message
		want    string // the first answer; "" for none
		v1      bool
		ended   bool
		queued  bool // DELETE LINK for a link that is in use: it is gone in the end
	}{
		{"ADD LINK / TEST LINK", adding, "server", llc.TestLink{Header: h}, "TEST LINK reply", false, false, false},
		{"ADD LINK / ADD LINK from client", adding, "server", llc.AddLink{Header: v1, GID: pairRNIC(2, 2).GID}, "", true, false, false},
		{"ADD LINK / REQUEST ADD LINK from client", adding, "server", llc.RequestAddLink{Header: h, GIDs: []wire.GID{pairRNIC(2, 2).GID}}, "", false, false, false},
		{"ADD LINK / DELETE LINK from client, one link", adding, "server", llc.DeleteLink{Header: h, Link: 1, Orderly: true}, "", false, true, false},
		{"ADD LINK / DELETE LINK from client, all", adding, "server", llc.DeleteLink{Header: h, All: true}, "DELETE LINK request", false, true, false},
		{"ADD LINK / CONFIRM RKEY from client", adding, "server", llc.ConfirmRKey{Header: h, RToken: token}, "CONFIRM RKEY reply", false, false, false},

		{"DELETE LINK / TEST LINK from client", deleting, "server", llc.TestLink{Header: h}, "TEST LINK reply", false, false, false},
		{"DELETE LINK / TEST LINK from server", deleting, "client", llc.TestLink{Header: h}, "TEST LINK reply", false, false, false},
		{"DELETE LINK / ADD LINK from client", deleting, "server", llc.AddLink{Header: v1, GID: pairRNIC(2, 2).GID}, "", true, false, false},
		{"DELETE LINK / DELETE LINK from client, the same link", deleting, "server", llc.DeleteLink{Header: h, Link: 2}, "", false, false, false},
		{"DELETE LINK / DELETE LINK from client, another link", deleting, "server", llc.DeleteLink{Header: h, Link: 1, Orderly: true}, "", false, true, false},
		{"DELETE LINK / DELETE LINK from client, all", deleting, "server", llc.DeleteLink{Header: h, All: true}, "DELETE LINK request", false, true, false},
		{"DELETE LINK / DELETE LINK from server, all", deleting, "client", llc.DeleteLink{Header: h, All: true}, "", false, true, false},
		{"DELETE LINK / CONFIRM RKEY from client", deleting, "server", llc.ConfirmRKey{Header: h, RToken: token}, "CONFIRM RKEY reply", false, false, false},

		{"CONFIRM RKEY / TEST LINK", confirming("server"), "server", llc.TestLink{Header: h}, "TEST LINK reply", false, false, false},
		{"CONFIRM RKEY / ADD LINK from client", confirming("server"), "server", llc.AddLink{Header: v1, GID: pairRNIC(2, 2).GID}, "", true, false, false},
		{"CONFIRM RKEY / ADD LINK from server", confirming("client"), "client",
			llc.AddLink{Header: h, MAC: pairRNIC(1, 1).MAC, GID: pairRNIC(1, 1).GID, QPN: 0x99, Link: 9, MTU: wire.MTU1024}, "ADD LINK reply", false, false, false},
		{"CONFIRM RKEY / DELETE LINK from client, one link", confirming("server"), "server", llc.DeleteLink{Header: h, Link: 2, Orderly: true}, "", false, false, true},
		{"CONFIRM RKEY / DELETE LINK from server, one link", confirming("client"), "client", llc.DeleteLink{Header: h, Link: 2}, "DELETE LINK reply", false, false, true},
		{"CONFIRM RKEY / DELETE LINK from client, all", confirming("server"), "server", llc.DeleteLink{Header: h, All: true}, "DELETE LINK request", false, true, false},
		{"CONFIRM RKEY / DELETE LINK from server, all", confirming("client"), "client", llc.DeleteLink{Header: h, All: true}, "", false, true, false},
		{"CONFIRM RKEY / CONFIRM RKEY of the other", confirming("client"), "client",
			llc.ConfirmRKey{Header: h, RToken: token, Remaining: 1, Others: []llc.LinkRToken{{Link: 2, RToken: token}}}, "CONFIRM RKEY reply", false, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newLinkPair(t, pairOptions{v1: tt.v1, server: 2, client: 2})
			p.pass(20 * time.Second)
			tt.begin(p)
			to := map[string]*pairSide{"server": p.server, "client": p.client}[tt.to]
			outs := to.lc.HandleMessage(p.now, 1, tt.message, nil, nil)
			got := ""
			if sent := sentOf(outs); len(sent) > 0 {
				got = reply(sent[0])
				if m, ok := sent[0].(llc.ConfirmRKey); ok {
					if refuse := !strings.HasPrefix(tt.name, "CONFIRM"); m.Negative != refuse || m.Retry != refuse {
						t.Errorf("answered with %v", m)
					}
				}
			}
			if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("answered with %q, want %q", got, tt.want)
			}
			to.do(outs)
			p.run()
			p.lose = nil
			p.pass(5 * time.Minute)
			if tt.ended {
				if to.lc.State() != StateEnded {
					t.Errorf("state %v", to.lc.State())
				}
				return
			}
			if to.lc.State() != StateActive {
				t.Fatalf("state %v, %v", to.lc.State(), to.lc.Failure())
			}
			if tt.queued && !slices.ContainsFunc(to.log, func(w string) bool { return w == "close(2)" }) {
				t.Errorf("link 2 was not deleted: %v", to.log)
			}
			for _, s := range []*pairSide{p.server, p.client} {
				lc := s.lc
				if lc.add.phase != addNone || len(lc.deletes) > 0 || lc.exchange.kind != exchangeNone || len(lc.wishes) > 0 {
					t.Errorf("the %s is not quiet: add %d, deletes %v, exchange %d", s.name, lc.add.phase, lc.deletes, lc.exchange.kind)
				}
			}
		})
	}
}

// TestConfirmLinkCrossesConfirmRKey has the last row of RFC 7609 §3.5.5.3.3, CONFIRM LINK of the other side while CONFIRM RKEY is under way: it is not queued but answered at
// once, as it is on a link of its own; and the RMB is told with the new link afterwards.
func TestConfirmLinkCrossesConfirmRKey(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2})
	p.pass(20 * time.Second)
	p.lose = lost("server", llc.TypeConfirmRKey, true)
	p.client.do(p.client.lc.ConfirmRMB(p.now, 9, p.client.tokens(9), nil))
	p.run()
	p.client.sent = nil
	p.server.fail(2)
	p.run()
	p.pass(AddLinkPause)
	if x := p.client.lc.exchange; x.kind != exchangeConfirmRKey || x.tries != 1 || p.client.count("CONFIRM LINK") != 1 || p.client.links() != "1:1-1 3:2-2" {
		t.Errorf("exchange %+v, sent %v, links %s", x, p.client.sent, p.client.links())
	}
	p.lose = nil
	p.pass(10 * time.Second)
	p.check("in the end", "1:1-1 3:2-2", RedundancySymmetric)
	if got := strings.Join(p.client.answers, ", "); got != "confirmed(9)" || !p.client.lc.own[9].told[3] {
		t.Errorf("the RMB: %s, told on %v", got, p.client.lc.own[9].told)
	}
}

// TestConfirmRKeyCrossesAddLink has a client tell of an RMB while the server makes a link: it is refused, told again with the new
// link, and known on all in the end; a connection that waits for it gets it.
func TestConfirmRKeyCrossesAddLink(t *testing.T) {
	for version, v1 := range linkVersions {
		for delay := range 12 { // messages between the beginning of ADD LINK and the RMB
			p := newLinkPair(t, pairOptions{v1: v1, server: 1, client: 2})
			p.pass(2 * time.Second)
			p.server.rnics = append(p.server.rnics, pairRNIC(1, 2))
			p.server.do(p.server.lc.SetRNICs(p.now, p.server.rnics, nil))
			for range min(delay, len(p.queue)) {
				f := p.queue[0]
				p.queue = p.queue[1:]
				f()
			}
			for _, s := range []*pairSide{p.client, p.server} {
				s.do(s.lc.ConfirmRMB(p.now, 9, s.tokens(9), nil))
			}
			p.run()
			p.pass(time.Second)
			p.check(version, p.server.links(), RedundancySymmetric)
			for _, s := range []*pairSide{p.client, p.server} {
				if got := strings.Join(s.answers, ", "); got != "confirmed(9)" {
					t.Errorf("%s after %d messages: the %s's RMB is %s", version, delay, s.name, got)
				}
			}
		}
	}
}

// TestFloodOfDeletes has a peer that deletes links while we add them, for ever.
func TestFloodOfDeletes(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2})
	p.server.sent = nil
	for range 1000 {
		for _, l := range p.server.lc.Links()[1:] {
			p.server.do(p.server.lc.HandleMessage(p.now, 1, llc.DeleteLink{Header: llc.Header{Form: llc.V2}, Link: l.Num}, nil, nil))
		}
		p.run()
		p.pass(100 * time.Millisecond)
	}
	n := 0
	for _, m := range p.server.sent {
		if strings.HasSuffix(m, ":ADD LINK") {
			n++
		}
	}
	if n > 102 || len(p.server.lc.links) > 3 || p.server.lc.State() != StateActive {
		t.Errorf("%d attempts in 100 s, %d links, %v", n, len(p.server.lc.links), p.server.lc.State())
	}
}
