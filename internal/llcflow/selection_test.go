package llcflow

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// groupOf returns a group in use with links such as "1-1 2-2", which are the numbers of an RNIC of ours and of the peer's. Those with a
// mark are failed "!", or being made "?".
func groupOf(t *testing.T, role core.Role, links, rnics string, most int) *LinkControl {
	p := newLinkPair(t, pairOptions{v1: true, server: 1, client: 1, max: llc.MaxLinks})
	lc, us := p.server.lc, byte(1)
	if role == core.RoleClient {
		lc, us = p.client.lc, 2
	}
	lc.links, lc.rnics, lc.failed, lc.maxLinks = nil, nil, nil, most
	for i, w := range strings.Fields(links) {
		l := &controlLink{num: llc.LinkNum(i + 1), slot: uint8(i)}
		switch w[len(w)-1] {
		case '!':
			l.state = linkFailed
		case '?':
			l.state = linkAdding
		}
		l.local, l.peer = endOf(pairRNIC(us, w[0]-'0')), endOf(pairRNIC(3-us, w[2]-'0'))
		lc.links = append(lc.links, l)
	}
	for _, w := range strings.Fields(rnics) {
		lc.rnics = append(lc.rnics, pairRNIC(us, w[0]-'0'))
	}
	return lc
}

// TestAddLinkPlan has the links that a server attempts: RFC 7609 §3.5.1.6, C.8.
func TestAddLinkPlan(t *testing.T) {
	for _, tt := range []struct {
		links, rnics, gids string
		most               int
		first              bool
		want               string // RNIC of ours, and of the client's that it would like
	}{
		{"1-1", "1 2", "", 2, false, "2 -"},
		{"1-1", "1 2", "1 2", 2, false, "2 2"},
		{"1-1", "1 2", "1 3 2", 2, false, "2 3"},
		{"1-1 2-2!", "1 2", "1 2", 2, false, "2 2"},
		{"1-1", "1", "", 2, true, "1 -"}, // "it will attempt to set up the second SMC-R link over that one RNIC"
		{"1-1", "1", "", 2, false, "none"},
		{"1-1", "1", "1", 2, false, "none"},
		{"1-1", "1", "1 2", 2, false, "1 2"},
		{"2-1", "1 2", "1", 2, false, "1 -"},
		{"1-1 2-1", "1 2", "1", 2, false, "2 -"}, // the asymmetric link may be replaced
		{"1-1 1-2", "1", "1 2 3", 2, true, "none"},
		{"1-1 1-2", "1", "1 2 3", 2, false, "none"},
		{"1-1 2-2", "1 2 3", "1 2 3", 2, true, "none"},
		{"1-1 2-2", "1 2 3", "1 2 3", 3, true, "3 3"},
		{"1-1!", "1 2", "", 2, true, "none"},
		{"1-1 2-2 3-3! 3-3! 3-3! 3-3! 3-3! 3-3!", "1 2 3", "", 8, true, "3 -"},
		{"1-1 2-2 3-3! 3-3! 3-3! 3-3! 3-3! 3-3! 3-3!", "1 2 3", "", 8, true, "none"}, // no place in the table of the peer's RMBs
	} {
		lc := groupOf(t, core.RoleServer, tt.links, tt.rnics, tt.most)
		for _, w := range strings.Fields(tt.gids) {
			lc.retry.gids = append(lc.retry.gids, pairRNIC(2, w[0]-'0').GID)
		}
		got := "none"
		if local, target, ok := lc.plan(epoch, tt.first); ok {
			got = fmt.Sprintf("%d -", local.MAC[5])
			if !target.IsZero() {
				got = fmt.Sprintf("%d %d", local.MAC[5], target[13])
			}
		}
		if got != tt.want {
			t.Errorf("links %s, RNICs %s, the client's %s, at most %d, first %t: %s, want %s", tt.links, tt.rnics, tt.gids, tt.most, tt.first, got, tt.want)
		}
	}
}

// TestAddLinkAccept has which RNIC a client takes for a link that is offered, RFC 7609 §3.5.1.6.1.
func TestAddLinkAccept(t *testing.T) {
	for _, tt := range []struct {
		links, rnics string
		most         int
		offer        byte // the server's RNIC
		target       byte // of ours; 0: none
		want         string
	}{
		{"1-1", "1 2", 2, 2, 0, "2"},  // symmetric
		{"1-1", "1", 2, 2, 0, "1"},    // asymmetric: we have one RNIC
		{"1-1", "1 2", 2, 1, 0, "2"},  // asymmetric: the server has one
		{"1-1", "1", 2, 1, 0, "none"}, // parallel
		{"1-1", "1 2 3", 2, 2, 3, "3"},
		{"1-1", "1 2 3", 2, 2, 2, "2"},
		{"1-1", "1 2 3", 2, 2, 1, "2"},
		{"1-1", "1 2 3", 2, 2, 9, "2"},
		{"1-1 2-1", "1 2", 2, 1, 0, "none"}, // parallel to the asymmetric one
		{"1-1 2-1", "1 2 3", 2, 1, 0, "none"},
		{"1-1 2-1", "1 2", 2, 3, 0, "2"}, // symmetric, the asymmetric one is to go
		{"1-1 1-2", "1 2", 2, 2, 0, "2"},
		{"1-1 1-2", "1", 2, 3, 0, "none"}, // a second asymmetric one
		{"1-1 2-2", "1 2 3", 2, 3, 0, "none"},
		{"1-1 2-2", "1 2 3", 3, 3, 0, "3"},
		{"1-1 2-2!", "1 2", 2, 2, 0, "2"},
		{"1-1", "2", 2, 2, 0, "2"},
		{"1-1", "", 2, 2, 0, "none"},
		{"1-1 2-2 3-3! 3-3! 3-3! 3-3! 3-3! 3-3! 3-3!", "1 2 3", 8, 3, 0, "none"},
	} {
		lc := groupOf(t, core.RoleClient, tt.links, tt.rnics, tt.most)
		r := pairRNIC(1, tt.offer)
		m := llc.AddLink{Header: llc.Header{Form: llc.V2}, GID: r.GID, MAC: r.MAC, QPN: 0x99, Link: 20, MTU: wire.MTU1024}
		if tt.target != 0 {
			m.TargetGID = pairRNIC(2, tt.target).GID
		}
		got := "none"
		if local, ok := lc.accept(epoch, m); ok {
			got = fmt.Sprint(local.MAC[5])
		}
		if got != tt.want {
			t.Errorf("links %s, RNICs %s, at most %d, offered %d for %d: %s, want %s", tt.links, tt.rnics, tt.most, tt.offer, tt.target, got, tt.want)
		}
	}
}

// TestAddLinkFits has the links that a client may have answered with: none that is parallel to another one (RFC 7609 C.7.1), and no second
// asymmetric one (§2.2.1).
func TestAddLinkFits(t *testing.T) {
	for _, tt := range []struct {
		links string
		link  string
		want  bool
	}{
		{"1-1", "2-2", true},
		{"1-1", "1-2", true},
		{"1-1", "2-1", true},
		{"1-1", "1-1", false},
		{"1-1 2-2", "2-2", false},
		{"1-1 2-1", "2-1", false}, // parallel to the asymmetric one
		{"1-1 2-1", "3-1", false}, // a second asymmetric one, for their end
		{"1-1 1-2", "1-3", false}, // and for ours
		{"1-1 2-1", "2-2", true},  // in place of the asymmetric one
		{"1-1 1-2", "2-2", true},
		{"1-1 2-2!", "2-2", true},
	} {
		lc := groupOf(t, core.RoleServer, tt.links, "1 2 3", 3)
		link := &controlLink{num: 20, local: endOf(pairRNIC(1, tt.link[0]-'0')), peer: endOf(pairRNIC(2, tt.link[2]-'0'))}
		if got := lc.fits(link); got != tt.want {
			t.Errorf("%s beside %s: %t, want %t", tt.link, tt.links, got, tt.want)
		}
		link.peer = endOf(pairRNIC(1, 9))
		if lc.rnics = append(lc.rnics, pairRNIC(1, 9)); lc.fits(link) {
			t.Errorf("a link to ourselves beside %s", tt.links)
		}
	}
}

// TestSameRNIC tells RNICs apart by address and MAC. Not each message has a MAC.
func TestSameRNIC(t *testing.T) {
	a, b := endOf(pairRNIC(1, 1)), endOf(pairRNIC(1, 2))
	second := core.LinkEnd{GID: b.GID, MAC: a.MAC}
	noMAC, noMAC2 := core.LinkEnd{GID: a.GID}, core.LinkEnd{GID: b.GID}
	for i, tt := range []struct {
		a, b core.LinkEnd
		want bool
	}{{a, a, true}, {a, b, false}, {a, second, true}, {b, second, true}, {a, noMAC, true}, {a, noMAC2, false}, {noMAC, noMAC2, false}} {
		if got := sameRNIC(tt.a, tt.b); got != tt.want {
			t.Errorf("pair %d: %t, want %t", i, got, tt.want)
		}
	}
}

// TestAddLinkRoutes has pairs of RNICs between which there is no route. No side uses them, nor waits for a link between them; and a client says of its end
// of a link whether a router is on the way.
func TestAddLinkRoutes(t *testing.T) {
	ours, near, far := controlRNIC(3), controlRNIC(4).GID, controlRNIC(6).GID
	target := func(routes ...core.PairRoute) (wire.GID, bool) {
		b := newControlBench(t, core.RoleServer, "t", func(c *Config) { c.Result.PeerGIDs = []wire.GID{controlPeer.GID, far, near} })
		for _, r := range routes {
			b.lc.SetRoutes([]core.PairRoute{r})
		}
		local, target, ok := b.lc.plan(b.now, true)
		if ok && !sameRNIC(endOf(local), endOf(ours)) {
			t.Errorf("with %+v the server's end is %v", routes, local)
		}
		return target, ok
	}
	none := func(peer wire.GID) core.PairRoute { return core.PairRoute{Local: ours.GID, Peer: peer, None: true} }
	for _, tt := range []struct {
		routes []core.PairRoute
		want   wire.GID
	}{
		{nil, far},
		{[]core.PairRoute{none(far)}, near},
		{[]core.PairRoute{none(far), none(near)}, wire.GID{}},
		{[]core.PairRoute{none(far), {Local: ours.GID, Peer: far}}, far}, // the newest counts
	} {
		if got, ok := target(tt.routes...); !ok || got != tt.want {
			t.Errorf("with %+v the server wants %v, %v; want %v", tt.routes, got, ok, tt.want)
		}
	}

	// A server with one RNIC attempts a link in a first contact all the same: Linux net/smc awaits ADD LINK for 3 seconds.
	b := newControlBench(t, core.RoleServer, "r", func(c *Config) { c.Result.PeerGIDs = []wire.GID{controlPeer.GID, far} })
	b.lc.SetRoutes([]core.PairRoute{{Local: controlOurs.GID, Peer: far, None: true}})
	b.play("start sent-confirm")
	offers := 0
	for _, m := range sentOf(b.do("confirm-reply")) {
		if a, ok := m.(llc.AddLink); ok && a.GID == controlOurs.GID {
			offers++
		}
	}
	if offers != 1 {
		t.Errorf("a server whose one core.RNIC does not reach the client's other one sends %d ADD LINK in a first contact, want 1", offers)
	}

	for _, tt := range []struct {
		name   string
		routes []core.PairRoute
		want   string // "rejected", or the content of the reply
	}{
		{"nothing known", nil, "direct"},
		{"direct", []core.PairRoute{{Local: ours.GID, Peer: near, Direct: true}}, "direct"},
		{"a router", []core.PairRoute{{Local: ours.GID, Peer: near}}, "indirect"},
		{"no route", []core.PairRoute{none(near), {Local: controlOurs.GID, Peer: near, None: true}}, "rejected"},
		{"no route from one", []core.PairRoute{none(near)}, "asymmetric"},
	} {
		b := newControlBench(t, core.RoleClient, "t")
		b.play("start confirm sent-confirm")
		b.lc.SetRoutes(tt.routes)
		m := b.message("add-new").(llc.AddLink)
		m.Direct = true
		var open OpenLink
		outs := b.lc.HandleMessage(b.now, 0, m, nil, nil)
		for _, o := range outs {
			if x, ok := o.(OpenLink); ok {
				open = x
			}
		}
		switch tt.want {
		case "asymmetric":
			if open.GID != controlOurs.GID {
				t.Errorf("%s: the client's end is %v, want the core.RNIC of the first link, %v", tt.name, open.GID, controlOurs.GID)
			}
			continue
		case "rejected":
			if sent := sentOf(outs); open.Link != 0 || len(sent) != 1 || !sent[0].(llc.AddLink).Rejected {
				t.Errorf("%s: the client answers %v with an end at %v, want a rejection", tt.name, sent, open.GID)
			}
			continue
		}
		local := endOf(ours)
		local.QPN, local.MTU = 0x77, wire.MTU1024
		sent := sentOf(b.lc.LinkOpened(b.now, 2, local, nil, nil))
		reply, ok := sent[0].(llc.AddLink)
		if !ok || reply.Rejected || reply.Direct != (tt.want == "direct") {
			t.Errorf("%s: the client answers %v, want a reply that says %s", tt.name, sent[0], tt.want)
		}
		// With a router on the way the MAC is "informational": SMCv2 p.83.
		c := b.message("confirm-new").(llc.ConfirmLink)
		c.MAC[5]++
		rejected := false
		for _, m := range sentOf(b.lc.HandleMessage(b.now, 2, c, nil, nil)) {
			if d, ok := m.(llc.DeleteLink); ok && d.Link == 2 {
				rejected = true
			}
		}
		if rejected != (tt.want == "direct") {
			t.Errorf("%s: another MAC in CONFIRM LINK was refused: %v", tt.name, rejected)
		}
	}
}
