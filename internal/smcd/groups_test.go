package smcd

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestGroup has connections join one link group: the first one makes it, others have the values
// that it was told, and where the group is full there is another one.
func TestGroup(t *testing.T) {
	r := newRig(t)
	c1, s1 := r.connect()
	c2, s2 := r.connect()
	c3, s3 := r.connect()
	all := []*end{c1, s1, c2, s2, c3, s3}
	for i, want := range []wire.LinkID{100, 200, 100, 200} {
		if got := all[i].member.Group; got != want {
			t.Errorf("connection %d, %v: link group %v, want %v", i/2+1, all[i].role, got, want)
		}
	}
	for _, e := range all {
		peer := e.peer.role.String()
		if m := e.member; m.PeerHost != peer || m.PeerOS != clc.OSLinux || m.Release != clc.Release1 {
			t.Errorf("%v, link group %v: %+v, want the peer %q", e.role, m.Group, m, peer)
		}
		exchange(t, e, e.peer)
	}
	if c3.member.Group == c1.member.Group || s3.member.Group == s1.member.Group {
		t.Error("a connection joins a link group that is full")
	}
	for _, s := range []*side{r.client, r.server} {
		var conns []int
		for _, g := range s.groups.Status(nil) {
			conns = append(conns, g.Conns)
			if want := s.peer.GID().String(); g.Peer != want || g.State != "Active" || g.Mode != "SMC-D" {
				t.Errorf("status %+v, want an active one with the peer %s", g, want)
			}
		}
		if len(conns) != 2 || conns[0]+conns[1] != 3 {
			t.Errorf("link groups have %d connections, want 3 in two", conns)
		}
	}
	c4, s4 := r.connect()
	if c4.member.Group != c3.member.Group || s4.member.Group != s3.member.Group {
		t.Errorf("where the second has room: link groups %v and %v, want %v and %v", c4.member.Group, s4.member.Group, c3.member.Group, s3.member.Group)
	}
	for _, e := range all[:4] {
		e.close(true)
	}
	c5, s5 := r.connect()
	if c5.member.Group != 100 || s5.member.Group != 200 {
		t.Errorf("after connections have left: link groups %v and %v, want 100 and 200", c5.member.Group, s5.member.Group)
	}
	for _, e := range []*end{c3, s3, c4, s4, c5, s5} {
		e.close(true)
	}
}

// TestGroupOutOfSync drops a link group that the peer has lost: the next connection makes another one, and those that it has go on.
func TestGroupOutOfSync(t *testing.T) {
	r := newRig(t)
	c1, s1 := r.connect()
	s1.binding.OutOfSync()
	c2, s2 := r.connect()
	if s2.member.Group == s1.member.Group || c2.member.Group == c1.member.Group {
		t.Error("a connection joins a link group that was dropped")
	}
	exchange(t, c1, s1)
	for _, e := range []*end{c1, s1, c2, s2} {
		e.close(true)
	}
}

// TestGroupPeerGone ends a peering: no connection joins a link group of it any more, and the link
// groups of other peers stay.
func TestGroupPeerGone(t *testing.T) {
	const first, second = 5, 6
	g := NewGroups(func() wire.LinkID { return 7 }, maxConns)
	join := func(peer uint64) (lg *core.LinkGroup, first bool) {
		t.Helper()
		choice := core.Choice{Mode: core.SMCD, Version: clc.V2, Remote: clc.ISMDevice{GID: wire.ISMGID{Hi: peer}}}
		lg, first, err := g.join(core.RoleServer, choice)
		if err != nil {
			t.Fatal(err)
		}
		return lg, first
	}
	for _, peer := range []uint64{first, second} {
		lg, _ := join(peer)
		g.confirm(lg, core.Result{FirstContact: true, Mode: core.SMCD})
		g.leave(lg)
	}
	g.PeerGone(wire.ISMGID{Hi: first})
	if _, made := join(first); !made {
		t.Error("a connection has joined a link group with a peer that is gone")
	}
	if _, made := join(second); made {
		t.Error("a link group with another peer was dropped")
	}
}

// TestGroupRefusals has link groups that cannot be joined: the reason is one that the peer is told.
func TestGroupRefusals(t *testing.T) {
	id := wire.LinkID(0)
	g := NewGroups(func() wire.LinkID { id++; return id }, maxConns)
	choice := core.Choice{Mode: core.SMCD, Version: clc.V2, D: &clc.ParamsD{LinkID: 1}}
	check := func(when string, want clc.Diagnosis) {
		t.Helper()
		lg, first, err := g.join(core.RoleClient, choice)
		if lg != nil || first || transport.Reason(err) != want {
			t.Errorf("%s: link group %v, first contact %t, %v; want reason %v", when, lg, first, err, want)
		}
	}
	check("the server names one that is not here", clc.DiagSync)
	choice.FirstContact = true
	for range maxGroups {
		if _, _, err := g.join(core.RoleClient, choice); err != nil {
			t.Fatal(err)
		}
	}
	check("there are too many", clc.DiagLimit)
}

// TestGroupLater has a client's later connection be established before the first one is: the link
// group is not confirmed by it, and the values that the first one was told hold for both.
func TestGroupLater(t *testing.T) {
	g := NewGroups(func() wire.LinkID { return 1 }, maxConns)
	choice := core.Choice{Mode: core.SMCD, Version: clc.V2, FirstContact: true, D: &clc.ParamsD{LinkID: 200}}
	first, _, err := g.join(core.RoleClient, choice)
	if err != nil {
		t.Fatal(err)
	}
	choice.FirstContact = false
	if later, _, err := g.join(core.RoleClient, choice); err != nil || later != first {
		t.Fatalf("join = %v, %v; want the link group of the first contact", later, err)
	}
	g.confirm(first, core.Result{Mode: core.SMCD})
	if list := g.Status(nil); len(list) != 1 || list[0].State != "Pending" {
		t.Errorf("after a later connection was confirmed: %+v, want a pending link group", list)
	}
	if got := g.confirm(first, core.Result{FirstContact: true, Mode: core.SMCD, PeerHostName: "peer"}); got.PeerHostName != "peer" {
		t.Errorf("after the first contact was confirmed the peer is %q", got.PeerHostName)
	}
}

// TestGroupIdle lets a link group be idle: when a connection comes after its time it is not there any more, nor are others of peers that have
// not come back. It is not looked for at each connection.
func TestGroupIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroups(func() wire.LinkID { return 1 }, maxConns)
		join := func(peer uint64) *core.LinkGroup {
			t.Helper()
			choice := core.Choice{Mode: core.SMCD, Version: clc.V2, Remote: clc.ISMDevice{GID: wire.ISMGID{Hi: peer}}}
			lg, _, err := g.join(core.RoleServer, choice)
			if err != nil {
				t.Fatal(err)
			}
			g.confirm(lg, core.Result{FirstContact: true, Mode: core.SMCD})
			return lg
		}
		g.leave(join(1))
		time.Sleep(core.ServerGroupIdleTimeout - sweepEvery/2)
		g.leave(join(2))
		if n := len(g.Status(nil)); n != 2 {
			t.Errorf("%d link groups before the time of the first is over, want two", n)
		}
		time.Sleep(sweepEvery - 1)
		g.leave(join(2))
		if n := len(g.Status(nil)); n != 2 {
			t.Errorf("%d link groups: they are swept again after %v, want after %v", n, sweepEvery-1, sweepEvery)
		}
		time.Sleep(2 * time.Nanosecond)
		g.leave(join(2))
		if list := g.Status(nil); len(list) != 1 || list[0].Peer != (wire.ISMGID{Hi: 2}).String() {
			t.Errorf("link groups %+v, want the one that is not idle for so long", list)
		}
	})
}
