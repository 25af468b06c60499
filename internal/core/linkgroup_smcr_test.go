package core

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// linkedPeer is how a peer presents itself in tests: as instance 1 of the host with the MAC and the address n.
func linkedPeer(n byte) clc.ParamsR {
	return clc.ParamsR{
		PeerID: wire.PeerID{0, 1, 2, 0, 0, 0, 0, n}, GID: wire.GID{10: 0xff, 11: 0xff, 12: 10, 15: n}, MAC: wire.MAC{2, 5: n},
		QPN: wire.QPN(0x100) + wire.QPN(n), RMBEIndex: 1, MTU: wire.MTU1024,
	}
}

// asServer is the request of a connection that p asks for.
func asServer(id wire.LinkID, p clc.ParamsR) JoinRequest {
	return JoinRequest{Role: RoleServer, ID: id, MaxConns: 3, Choice: Choice{
		Mode: SMCR, Version: clc.V2, PeerID: p.PeerID, GID: p.GID, MAC: p.MAC,
	}}
}

// asLinkClient is the request of a connection to p with an Accept that names p.
func asLinkClient(id wire.LinkID, p clc.ParamsR, first bool) JoinRequest {
	q := asServer(id, p)
	q.Role, q.Choice.R, q.Choice.FirstContact = RoleClient, &p, first
	return q
}

// joined returns the group of a join that must have one.
func joined(t *testing.T, j Join, wantID wire.LinkID, wantFirst bool) *LinkGroup {
	t.Helper()
	if j.Group == nil || j.Group.ID != wantID || j.FirstContact != wantFirst || j.Wait || j.Why != clc.DiagNone {
		t.Fatalf("JoinLinks = %+v, want group %d, first contact %t", j, wantID, wantFirst)
	}
	return j.Group
}

func notJoined(t *testing.T, j Join, wait bool, why clc.Diagnosis) {
	t.Helper()
	if j.Group != nil || j.Wait != wait || j.Why != why {
		t.Errorf("JoinLinks = %+v, want no group, wait %t, %v", j, wait, why)
	}
}

func confirmed(p clc.ParamsR) Result {
	return Result{Mode: SMCR, Version: clc.V2, MaxConns: 255, R: &p}
}

func TestLinksServer(t *testing.T) {
	g := NewGroups(20)
	a, b := linkedPeer(1), linkedPeer(2)
	lg := joined(t, g.JoinLinks(asServer(1, a)), 1, true)
	g.Confirm(lg, confirmed(a))
	g.SetLinks(lg, []GroupLink{{Num: 1, Peer: peerEnd(&a)}})
	j := g.JoinLinks(asServer(2, a))
	joined(t, j, 1, false)
	if j.Link.Num != 1 || j.Link.Peer.QPN != a.QPN {
		t.Errorf("the link to name is %+v", j.Link)
	}
	joined(t, g.JoinLinks(asServer(3, b)), 3, true) // another host, and nobody waits for the first
	restarted := a
	restarted.PeerID[1]++
	for name, change := range map[string]func(q *JoinRequest){
		"VLAN":        func(q *JoinRequest) { q.VLAN = 7 },
		"PNETID":      func(q *JoinRequest) { q.PNETID = "NET1" },
		"version":     func(q *JoinRequest) { q.Choice.Version = clc.V1 },
		"peer ID":     func(q *JoinRequest) { q.Choice.PeerID = restarted.PeerID },
		"another GID": func(q *JoinRequest) { q.Choice.GID = wire.GID{15: 99} },
	} {
		q := asServer(9, a)
		change(&q)
		if j := g.JoinLinks(q); !j.FirstContact {
			t.Errorf("another %s: %+v, want a group of its own", name, j)
		} else {
			g.Drop(j.Group)
		}
	}
	joined(t, g.JoinLinks(asServer(4, a)), 1, false)
	joined(t, g.JoinLinks(asServer(5, a)), 5, true) // 1 has its 3
	g.Leave(epoch, lg)
	joined(t, g.JoinLinks(asServer(6, a)), 1, false)
	g.Leave(epoch, lg)
	g.SetFull(lg, true)
	notJoined(t, g.JoinLinks(asServer(6, a)), true, 0) // for 5
	g.SetFull(lg, false)
	g.SetLinks(lg, nil)
	notJoined(t, g.JoinLinks(asServer(6, a)), true, 0)

	q := asServer(7, a)
	q.Choice.Version, q.VLAN = clc.V1, 1
	v1 := joined(t, g.JoinLinks(q), 7, true)
	g.Confirm(v1, confirmed(a))
	q.Choice.MAC[0] = 9
	joined(t, g.JoinLinks(q), 7, true) // in version 1 the MAC counts too
}

func TestLinksClient(t *testing.T) {
	g := NewGroups(20)
	p := linkedPeer(1)
	notJoined(t, g.JoinLinks(asLinkClient(1, p, false)), false, clc.DiagSync)
	lg := joined(t, g.JoinLinks(asLinkClient(1, p, true)), 1, true)
	if lg.MaxConns != defaultMaxConns {
		t.Errorf("MaxConns = %d", lg.MaxConns)
	}
	g.Confirm(lg, confirmed(p))
	g.SetLinks(lg, []GroupLink{{Num: 1, Peer: peerEnd(&p)}})
	if j := g.JoinLinks(asLinkClient(2, p, false)); joined(t, j, 1, false) != lg || j.Link.Num != 1 {
		t.Errorf("JoinLinks = %+v", j)
	}
	other := p
	other.QPN++
	for name, change := range map[string]func(q *JoinRequest){
		"queue pair": func(q *JoinRequest) { q.Choice.R = &other },
		"role":       func(q *JoinRequest) { q.Role = RoleServer },
		"peer ID":    func(q *JoinRequest) { q.Choice.PeerID[0]++ },
		"version":    func(q *JoinRequest) { q.Choice.Version = clc.V1 },
	} {
		q := asLinkClient(9, p, false)
		change(&q)
		if j := g.JoinLinks(q); j.Group == lg {
			t.Errorf("another %s: joined", name)
		}
	}
	second := joined(t, g.JoinLinks(asLinkClient(3, other, true)), 3, true) // a parallel group
	g.Confirm(second, confirmed(other))
	if j := g.JoinLinks(asLinkClient(4, other, false)); j.Group != second {
		t.Errorf("the link of the second group leads to %+v", j)
	}
}

// TestLinksSerialised has 50 connections at once make one group on each side, and a first contact that stalls not hold
// up others for ever.
func TestLinksSerialised(t *testing.T) {
	server, client := NewGroups(8), NewGroups(8)
	s, c := linkedPeer(1), linkedPeer(2) // the server and the client, as the other sees them
	q := asServer(1, c)
	q.MaxConns = 255
	first := joined(t, server.JoinLinks(q), 1, true)
	for range 49 {
		notJoined(t, server.JoinLinks(q), true, 0)
	}
	joined(t, server.JoinLinks(asServer(60, linkedPeer(3))), 60, true) // other hosts do not wait
	cfirst := joined(t, client.JoinLinks(asLinkClient(1, s, true)), 1, true)
	server.Confirm(first, confirmed(c))
	for range 49 {
		if j := server.JoinLinks(q); j.Group != first {
			t.Fatalf("JoinLinks = %+v after the first contact", j)
		}
		notJoined(t, client.JoinLinks(asLinkClient(2, s, false)), true, 0) // its own end of the first contact comes later
	}
	client.Confirm(cfirst, confirmed(s))
	for range 49 {
		if j := client.JoinLinks(asLinkClient(2, s, false)); j.Group != cfirst {
			t.Fatalf("JoinLinks = %+v after the first contact", j)
		}
	}
	if first.Conns != 50 || cfirst.Conns != 50 || server.Len() != 2 || client.Len() != 1 {
		t.Errorf("connections %d and %d, groups %d and %d", first.Conns, cfirst.Conns, server.Len(), client.Len())
	}

	stalled := joined(t, server.JoinLinks(asServer(70, linkedPeer(4))), 70, true)
	q = asServer(71, linkedPeer(4))
	notJoined(t, server.JoinLinks(q), true, 0)
	q.Waited = true
	joined(t, server.JoinLinks(q), 71, true)
	server.Leave(epoch, stalled) // it has fallen back
	if stalled.Pending() && server.Len() != 3 {
		t.Errorf("%d groups", server.Len())
	}
	q = asLinkClient(72, s, false)
	pending := joined(t, client.JoinLinks(asLinkClient(73, linkedPeer(5), true)), 73, true)
	p5 := linkedPeer(5)
	q.Choice.R, q.Choice.PeerID, q.Waited = &p5, p5.PeerID, true
	notJoined(t, client.JoinLinks(q), false, clc.DiagSync)
	client.Leave(epoch, pending)
}

// TestLinksZeroPeer finds the group of a Linux client: its Proposals do not tell its identity.
func TestLinksZeroPeer(t *testing.T) {
	g := NewGroups(8)
	p := linkedPeer(1)
	q := asServer(1, p)
	q.Choice.PeerID, q.Choice.MAC = zeroPeer, wire.MAC{}
	lg := joined(t, g.JoinLinks(q), 1, true)
	notJoined(t, g.JoinLinks(q), true, 0)
	g.Confirm(lg, confirmed(p))
	joined(t, g.JoinLinks(q), 1, false)
	joined(t, g.JoinLinks(asServer(2, p)), 1, false) // and when it does say
	if _, ok := lg.ConfirmedLink(clc.V2, &p); !ok {
		t.Error("its later Confirm names no link")
	}
}

func TestLinksConfirm(t *testing.T) {
	g := NewGroups(8)
	p := linkedPeer(1)
	lg := joined(t, g.JoinLinks(asServer(1, p)), 1, true)
	g.Confirm(lg, confirmed(p))
	g.SetLinks(lg, []GroupLink{{Num: 1, Peer: peerEnd(&p)}})
	for name, change := range map[string]func(p *clc.ParamsR){
		"peer ID":    func(p *clc.ParamsR) { p.PeerID[0]++ },
		"GID":        func(p *clc.ParamsR) { p.GID[15]++ },
		"queue pair": func(p *clc.ParamsR) { p.QPN++ },
	} {
		lie := p
		change(&lie)
		if l, ok := lg.ConfirmedLink(clc.V2, &lie); ok {
			t.Errorf("another %s: %+v", name, l)
		}
	}
	lie := p
	lie.MAC[0]++
	if _, ok := lg.ConfirmedLink(clc.V1, &lie); ok {
		t.Error("another MAC in version 1")
	}
	if l, ok := lg.ConfirmedLink(clc.V2, &lie); !ok || l.Num != 1 {
		t.Errorf("another MAC in version 2: %+v, %t", l, ok)
	}
}

// TestLinksFormer finds a group by a link that it has lost just now, which a CLC message may name that was on its way meanwhile; but
// by none that was lost long ago, nor one that has no link left.
func TestLinksFormer(t *testing.T) {
	g := NewGroups(8)
	p := linkedPeer(1)
	server := joined(t, g.JoinLinks(asServer(1, p)), 1, true)
	client := joined(t, g.JoinLinks(asLinkClient(2, p, true)), 2, true)
	for _, lg := range []*LinkGroup{server, client} {
		g.Confirm(lg, confirmed(p))
		for n := range MaxFormerLinks + 2 { // each replaces the one before
			next := p
			next.QPN += wire.QPN(n)
			g.SetLinks(lg, []GroupLink{{Num: llc.LinkNum(n + 1), Peer: peerEnd(&next)}})
		}
	}
	lost, long := p, p
	lost.QPN += MaxFormerLinks
	if l, ok := server.ConfirmedLink(clc.V2, &lost); !ok || l.Num != MaxFormerLinks+1 {
		t.Errorf("a Confirm for a link that was lost: %+v, %t", l, ok)
	}
	if l, ok := server.ConfirmedLink(clc.V2, &long); ok {
		t.Errorf("a Confirm for one that was lost long ago: %+v", l)
	}
	joined(t, g.JoinLinks(asLinkClient(3, lost, false)), 2, false)
	notJoined(t, g.JoinLinks(asLinkClient(4, long, false)), false, clc.DiagSync)
	g.SetLinks(client, nil)
	notJoined(t, g.JoinLinks(asLinkClient(5, lost, false)), false, clc.DiagSync)
}

// TestLinksRestart suspects the groups of a peer that may have started again, once the new one has shown that it is there.
func TestLinksRestart(t *testing.T) {
	g := NewGroups(8)
	p, elsewhere := linkedPeer(1), linkedPeer(1)
	elsewhere.GID[14] = 1 // a host that claims to be the same
	old := joined(t, g.JoinLinks(asServer(1, p)), 1, true)
	g.Confirm(old, confirmed(p))
	asClient := joined(t, g.JoinLinks(asLinkClient(2, p, true)), 2, true)
	g.Confirm(asClient, confirmed(p))
	other := joined(t, g.JoinLinks(asServer(3, elsewhere)), 3, true)
	g.Confirm(other, confirmed(elsewhere))
	p.PeerID[1]++
	next := joined(t, g.JoinLinks(asServer(4, p)), 4, true)
	if g.Len() != 4 {
		t.Errorf("%d groups before the first contact with the new one is confirmed", g.Len())
	}
	suspects := g.Confirm(next, confirmed(p))
	if !slices.Equal(suspects, []*LinkGroup{old, asClient}) || g.Len() != 4 { // it may be another program there
		t.Errorf("Confirm = %v, %d groups left", suspects, g.Len())
	}
	if suspects := g.Confirm(next, confirmed(p)); suspects != nil {
		t.Errorf("a second Confirm = %v", suspects)
	}
}

// TestLinksDoubt has a client that says it has lost the group. It may be another than the one that has it.
func TestLinksDoubt(t *testing.T) {
	g := NewGroups(8)
	p := linkedPeer(1)
	lg := joined(t, g.JoinLinks(asServer(1, p)), 1, true)
	g.Confirm(lg, confirmed(p))
	joined(t, g.JoinLinks(asServer(2, p)), 1, false)
	g.Doubt(lg)
	g.Leave(epoch, lg)
	joined(t, g.JoinLinks(asServer(3, p)), 3, true)
	if g.Len() != 2 || lg.Conns != 1 {
		t.Errorf("%d groups, %d connections in the first", g.Len(), lg.Conns)
	}
	g.Leave(epoch, lg)
	if idle := g.Advance(epoch.Add(ServerGroupIdleTimeout)); !slices.Equal(idle, []*LinkGroup{lg}) {
		t.Errorf("Advance = %v, want the first group", idle)
	}
}

// TestLinksAnswer asks the peer of a group whether it is there.
func TestLinksAnswer(t *testing.T) {
	g := NewGroups(8)
	p := linkedPeer(1)
	lg := joined(t, g.JoinLinks(asServer(1, p)), 1, true)
	g.Confirm(lg, confirmed(p))
	g.SetAnswer(lg, AnswerAwaited)
	notJoined(t, g.JoinLinks(asServer(2, p)), true, clc.DiagNone)
	g.SetAnswer(lg, AnswerNone)
	joined(t, g.JoinLinks(asServer(3, p)), 1, false)
	g.SetAnswer(lg, AnswerLate)
	other := joined(t, g.JoinLinks(asServer(4, p)), 4, true)
	g.Confirm(other, confirmed(p))
	joined(t, g.JoinLinks(asServer(5, p)), 4, false)
	g.SetAnswer(other, AnswerAwaited)
	g.SetAnswer(lg, AnswerNone) // after all
	joined(t, g.JoinLinks(asServer(6, p)), 1, false)
}

func TestLinksLimit(t *testing.T) {
	g := NewGroups(2)
	a := joined(t, g.JoinLinks(asServer(1, linkedPeer(1))), 1, true)
	b := joined(t, g.JoinLinks(asLinkClient(2, linkedPeer(2), true)), 2, true)
	g.Confirm(a, confirmed(linkedPeer(1)))
	g.Confirm(b, confirmed(linkedPeer(2)))
	notJoined(t, g.JoinLinks(asServer(3, linkedPeer(3))), false, clc.DiagLimit)
	g.Leave(epoch.Add(1), a)
	g.Leave(epoch, b)
	if lg, _, why := g.ServerJoin(keyA, 9, 255); lg != nil || why != clc.DiagLimit {
		t.Errorf("ServerJoin = %v, %v: a group whose end nobody would learn of may not make room", lg, why)
	}
	j := g.JoinLinks(asServer(3, linkedPeer(3)))
	joined(t, j, 3, true)
	if !slices.Equal(j.Ended, []*LinkGroup{b}) {
		t.Errorf("Ended = %v, want the group that was idle longest", j.Ended)
	}
}

// TestLinksLinux follows the connections of two Linux kernels that have a group with two links: a
// later Accept names another address than the Proposal was for, and a Confirm another link's end.
func TestLinksLinux(t *testing.T) {
	server, client := NewGroups(4), NewGroups(4)
	var s, c *LinkGroup
	var links, ends []GroupLink
	for _, x := range coretest.LinuxExchanges(t) {
		if x.Accept.R == nil || x.Name[:16] != "smcrv2-two-links" {
			continue
		}
		sq := JoinRequest{Role: RoleServer, ID: 1, MaxConns: 255, Choice: Choice{
			Mode: SMCR, Version: clc.V2, PeerID: x.Proposal.PeerID, GID: x.Proposal.Ext.GID, MAC: x.Proposal.MAC,
		}}
		cq := JoinRequest{Role: RoleClient, ID: 1, Choice: Choice{
			Mode: SMCR, Version: clc.V2, PeerID: x.Accept.R.PeerID, GID: x.Accept.R.GID, R: x.Accept.R, FirstContact: x.Accept.FirstContact,
		}}
		sj, cj := server.JoinLinks(sq), client.JoinLinks(cq)
		if sj.FirstContact != x.Accept.FirstContact || cj.Group == nil || cj.FirstContact != x.Accept.FirstContact {
			t.Fatalf("%s: server %+v, client %+v", x.Name, sj, cj)
		}
		if x.Accept.FirstContact {
			s, c = sj.Group, cj.Group
			server.Confirm(s, Result{Mode: SMCR, Version: clc.V2, R: x.Confirm.R})
			client.Confirm(c, Result{Mode: SMCR, Version: clc.V2, R: x.Accept.R})
			// The second link, as ADD LINK has made it.
			links = []GroupLink{{Num: 1, Peer: peerEnd(x.Confirm.R)}, {Num: 2, Peer: LinkEnd{GID: gidOf("192.168.76.12"), QPN: 0x11}}}
			ends = []GroupLink{{Num: 1, Peer: peerEnd(x.Accept.R)}, {Num: 2, Peer: LinkEnd{GID: gidOf("192.168.76.11"), QPN: 0x11}}}
			server.SetLinks(s, links)
			client.SetLinks(c, ends)
			continue
		}
		want := links[0].Num
		if x.Accept.R.GID == gidOf("192.168.76.11") {
			want = links[1].Num
		}
		if cj.Link.Num != want {
			t.Errorf("%s: the Accept names link %d, want %d", x.Name, cj.Link.Num, want)
		}
		if l, ok := s.ConfirmedLink(clc.V2, x.Confirm.R); !ok || l.Num != want {
			t.Errorf("%s: the Confirm names link %+v, %t, want %d", x.Name, l, ok, want)
		}
	}
	if s == nil || s.Conns != 7 || c.Conns != 7 {
		t.Errorf("connections: server %+v, client %+v", s, c)
	}
}

func gidOf(addr string) wire.GID { return wire.GIDFromAddr(netip.MustParseAddr(addr)) }
