package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

var (
	keyA = GroupKey{Mode: SMCD, Role: RoleServer, Version: clc.V2,
		Local: clc.ISMDevice{GID: serverGID, CHID: 0xffff}, Remote: clc.ISMDevice{GID: clientGID, CHID: 0xffff}}
	keyB = GroupKey{Mode: SMCD, Role: RoleServer, Version: clc.V2,
		Local: clc.ISMDevice{GID: serverGID, CHID: 0xffff}, Remote: clc.ISMDevice{GID: kernelGID, CHID: 0xffff}}
)

func asClient(k GroupKey) GroupKey {
	k.Role = RoleClient
	return k
}

func TestGroupsServer(t *testing.T) {
	g := NewGroups(10)
	join := func(id wire.LinkID, wantID wire.LinkID, wantFirst bool) *LinkGroup {
		t.Helper()
		lg, first, why := g.ServerJoin(keyA, id, 2)
		if why != clc.DiagNone || lg.ID != wantID || first != wantFirst {
			t.Fatalf("ServerJoin(%v) = %+v, %t, %v; want group %v, %t", id, lg, first, why, wantID, wantFirst)
		}
		return lg
	}
	lg1 := join(1, 1, true)
	join(2, 2, true) // the first contact of 1 is not confirmed yet
	g.Confirm(lg1, Result{Mode: SMCD, D: &clc.ParamsD{LinkID: 77}})
	if lg1.PeerID != 77 {
		t.Errorf("PeerID = %v after Confirm, want 77", lg1.PeerID)
	}
	g.Confirm(lg1, Result{Mode: SMCD, D: &clc.ParamsD{LinkID: 78}}) // a second one changes nothing
	if lg1.PeerID != 77 {
		t.Errorf("PeerID = %v after a second Confirm, want 77", lg1.PeerID)
	}
	join(3, 1, false)
	join(4, 4, true) // 1 is full
	g.Leave(epoch, lg1)
	join(5, 1, false)
	if lg, first, _ := g.ServerJoin(keyB, 6, 2); lg.ID != 6 || !first {
		t.Errorf("ServerJoin of another peer = %+v, %t", lg, first)
	}
	if g.Len() != 4 {
		t.Errorf("Len = %d, want 4", g.Len())
	}
}

func TestGroupsClient(t *testing.T) {
	g := NewGroups(10)
	key := asClient(keyA)
	if lg, why := g.ClientJoin(key, false, 1, 50); lg != nil || why != clc.DiagSync {
		t.Errorf("ClientJoin without a group = %v, %v, want DiagSync", lg, why)
	}
	a, _ := g.ClientJoin(key, true, 1, 50)
	if lg, why := g.ClientJoin(key, false, 2, 51); lg != nil || why != clc.DiagSync {
		t.Errorf("ClientJoin of another group than one that is not confirmed = %v, %v, want DiagSync", lg, why)
	}
	if lg, why := g.ClientJoin(key, false, 2, 50); lg != a || why != clc.DiagNone {
		t.Errorf("ClientJoin of a group whose Confirm is on its way = %v, %v, want that group", lg, why)
	}
	b, _ := g.ClientJoin(key, true, 3, 60) // the server made a second one
	if a == b || a.PeerID != 50 || b.PeerID != 60 {
		t.Fatalf("two first contacts: %+v, %+v", a, b)
	}
	g.Confirm(a, Result{Mode: SMCD, D: &clc.ParamsD{LinkID: 50}})
	g.Confirm(b, Result{Mode: SMCD, D: &clc.ParamsD{LinkID: 60}})
	for peerID, want := range map[wire.LinkID]*LinkGroup{50: a, 60: b, 70: a} { // 70: a peer whose number says nothing
		if lg, why := g.ClientJoin(key, false, 9, peerID); lg != want || why != clc.DiagNone {
			t.Errorf("ClientJoin(%v) = %+v, %v, want %+v", peerID, lg, why, want)
		}
	}
	if _, why := g.ClientJoin(keyA, false, 9, 50); why != clc.DiagSync {
		t.Errorf("ClientJoin with the server's role = %v, want DiagSync", why)
	}
	if a.Conns != 4 || b.Conns != 2 {
		t.Errorf("Conns = %d, %d, want 4, 2", a.Conns, b.Conns)
	}
}

func TestGroupsEnd(t *testing.T) {
	g := NewGroups(10)
	pending, _, _ := g.ServerJoin(keyA, 1, 255)
	g.Leave(epoch, pending) // its handshake fell back
	if g.Len() != 0 {
		t.Errorf("Len = %d after a first contact that fell back, want 0", g.Len())
	}
	g.Leave(epoch, pending) // once too often
	g.Drop(pending)
	g.Confirm(pending, Result{Mode: SMCD})
	if g.Len() != 0 || pending.Conns != 0 {
		t.Errorf("Len = %d, Conns = %d, want 0", g.Len(), pending.Conns)
	}

	server, _, _ := g.ServerJoin(keyA, 2, 255)
	client, _ := g.ClientJoin(asClient(keyA), true, 3, 9)
	for _, lg := range []*LinkGroup{server, client} {
		g.Confirm(lg, Result{Mode: SMCD})
	}
	if !g.Deadline().IsZero() {
		t.Errorf("Deadline = %v with no idle group, want zero", g.Deadline())
	}
	g.Leave(epoch, server)
	g.Leave(epoch, client)
	if want := epoch.Add(ServerGroupIdleTimeout); !g.Deadline().Equal(want) {
		t.Errorf("Deadline = %v, want %v", g.Deadline(), want)
	}
	if dropped := g.Advance(epoch.Add(ServerGroupIdleTimeout - 1)); dropped != nil {
		t.Errorf("Advance too early = %v", dropped)
	}
	if dropped := g.Advance(g.Deadline()); len(dropped) != 1 || dropped[0] != server {
		t.Errorf("Advance at the server's deadline = %v, want the server's group", dropped)
	}
	if lg, why := g.ClientJoin(asClient(keyA), false, 4, 9); lg != client || why != clc.DiagNone {
		t.Errorf("ClientJoin of an idle group = %v, %v", lg, why)
	}
	if dropped := g.Advance(epoch.Add(time.Hour)); dropped != nil {
		t.Errorf("Advance dropped a group in use: %v", dropped)
	}
	g.Leave(epoch, client)
	if dropped := g.Advance(epoch.Add(ClientGroupIdleTimeout)); len(dropped) != 1 || g.Len() != 0 {
		t.Errorf("Advance at the client's deadline = %v, %d left", dropped, g.Len())
	}
}

func TestGroupsPeerGone(t *testing.T) {
	g := NewGroups(10)
	a1, _, _ := g.ServerJoin(keyA, 2, 255)
	a2, _, _ := g.ServerJoin(keyA, 1, 255)
	b, _, _ := g.ServerJoin(keyB, 3, 255)
	r := GroupKey{Mode: SMCR, Role: RoleServer, Version: clc.V2, GID: wire.GID{15: 1}}
	g.ServerJoin(r, 4, 255)
	if gone := g.PeerGone(clientGID); !slices.Equal(gone, []*LinkGroup{a2, a1}) {
		t.Errorf("PeerGone = %v, want groups 1 and 2", gone)
	}
	if gone := g.PeerGone(clientGID); gone != nil {
		t.Errorf("PeerGone again = %v", gone)
	}
	g.Leave(epoch, a1) // its connections end later
	if all := g.All(); len(all) != 2 || all[0] != b || g.Len() != 2 {
		t.Errorf("All = %v, Len = %d, want the other two", all, g.Len())
	}
	if gone := g.PeerGone(wire.ISMGID{}); gone != nil {
		t.Errorf("PeerGone of the zero GID = %v: SMC-R has no such GID", gone)
	}
}

func TestGroupsLimit(t *testing.T) {
	g := NewGroups(2)
	server, _, _ := g.ServerJoin(keyA, 1, 255)
	client, _ := g.ClientJoin(asClient(keyA), true, 2, 9)
	g.Confirm(server, Result{Mode: SMCD})
	g.Confirm(client, Result{Mode: SMCD})
	if lg, first, why := g.ServerJoin(keyB, 3, 255); lg != nil || first || why != clc.DiagLimit {
		t.Errorf("ServerJoin at the limit = %v, %t, %v, want DiagLimit", lg, first, why)
	}
	g.Leave(epoch, client)
	if lg, why := g.ClientJoin(asClient(keyB), true, 3, 9); lg != nil || why != clc.DiagLimit {
		t.Errorf("ClientJoin at the limit = %v, %v: a client's idle group may not be forgotten", lg, why)
	}
	g.Leave(epoch, server)
	if lg, _, why := g.ServerJoin(keyB, 3, 255); lg == nil || why != clc.DiagNone || g.Len() != 2 {
		t.Errorf("ServerJoin = %v, %v, want the place of the idle group", lg, why)
	}
}

// TestGroupsMaxConns checks the limits that SMC-R negotiates.
func TestGroupsMaxConns(t *testing.T) {
	g := NewGroups(2)
	key := GroupKey{Mode: SMCR, Role: RoleServer, Version: clc.V2, GID: wire.GID{15: 1}}
	lg, _, _ := g.ServerJoin(key, 1, 32)
	g.Confirm(lg, Result{Mode: SMCR, MaxConns: 16})
	if lg.MaxConns != 16 {
		t.Errorf("MaxConns = %d, want the negotiated 16", lg.MaxConns)
	}
	lg, _, _ = g.ServerJoin(GroupKey{Mode: SMCD}, 2, 0)
	if lg.MaxConns != 1 {
		t.Errorf("MaxConns = %d of ServerJoin with 0, want 1", lg.MaxConns)
	}
}

// TestGroupsInSync lets two hosts make and end connections in random order. The client always has
// the group that the server names as long as the two sides release a connection no further apart
// than the timers of a close let them. Where they do, because an application keeps its end, the
// client may have lost the group: then one connection falls back and the next does not.
func TestGroupsInSync(t *testing.T) {
	for _, tt := range []struct {
		name string
		skew time.Duration // between the two releases of a connection, at most
		lost bool          // groups are lost
	}{
		{"close timers", ClientGroupIdleTimeout - ServerGroupIdleTimeout - 1, false},
		{"applications", 3 * time.Hour, true},
	} {
		lost := 0
		for seed := range uint64(500) {
			lost += groupsRun(t, seed, tt.skew, tt.lost)
		}
		if (lost > 0) != tt.lost {
			t.Errorf("%s: %d groups were out of sync", tt.name, lost)
		}
	}
	if margin := ClientGroupIdleTimeout - ServerGroupIdleTimeout; margin <= PeerCloseWaitTimeout ||
		margin <= PeerFinCloseWaitTimeout || margin <= PeerAbortWaitTimeout {
		t.Errorf("the client keeps a group %v longer than the server, which the timers of a close exceed", margin)
	}
}

// groupsRun plays one run of TestGroupsInSync, and returns how often the client had lost the group.
func groupsRun(t *testing.T, seed uint64, skew time.Duration, mayLose bool) int {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	server, client := NewGroups(4), NewGroups(64)
	type conn struct {
		s, c   *LinkGroup
		sl, cl time.Time // when the sides release it; zero: not yet known
	}
	var conns []conn
	lost := 0
	now := epoch
	// settle carries out the releases that are due, in their order.
	settle := func() {
		for {
			var next *time.Time
			var leave func()
			earliest := func(at *time.Time, g *Groups, lg *LinkGroup) {
				if !at.IsZero() && !at.After(now) && (next == nil || at.Before(*next)) {
					when := *at
					next, leave = at, func() { g.Advance(when); g.Leave(when, lg) }
				}
			}
			for i := range conns {
				if x := &conns[i]; x.s != nil {
					earliest(&x.sl, server, x.s)
				}
				if x := &conns[i]; x.c != nil {
					earliest(&x.cl, client, x.c)
				}
			}
			if next == nil {
				break
			}
			leave()
			*next = time.Time{}
			for i := range conns {
				x := &conns[i]
				if next == &x.sl {
					x.s = nil
				}
				if next == &x.cl {
					x.c = nil
				}
			}
			conns = slices.DeleteFunc(conns, func(x conn) bool { return x.s == nil && x.c == nil })
		}
		server.Advance(now)
		client.Advance(now)
	}
	// connect makes a connection, and returns false if the groups were out of sync.
	connect := func(id wire.LinkID) bool {
		s, first, why := server.ServerJoin(keyA, id, 3)
		if why != clc.DiagNone {
			return true
		}
		c, why := client.ClientJoin(asClient(keyA), first, id, s.ID)
		if why != clc.DiagNone {
			if why != clc.DiagSync || first || !mayLose {
				t.Fatalf("seed %d, connection %d: ClientJoin(first %t) = %v", seed, id, first, why)
			}
			server.Drop(s) // as the client's Decline asks
			server.Leave(now, s)
			return false
		}
		client.Confirm(c, Result{Mode: SMCD, D: &clc.ParamsD{LinkID: s.ID}})
		server.Confirm(s, Result{Mode: SMCD, D: &clc.ParamsD{LinkID: c.ID}})
		conns = append(conns, conn{s: s, c: c})
		return true
	}
	for i := range 200 {
		now = now.Add(time.Duration(rng.Int64N(int64(2 * time.Minute))))
		if rng.IntN(20) == 0 {
			now = now.Add(ServerGroupIdleTimeout - time.Minute)
		}
		settle()
		if rng.IntN(3) > 0 || len(conns) == 0 {
			// A group that was lost is one of those that the server has for this client, so that
			// each Decline heals one.
			for tries := 0; !connect(wire.LinkID(i)); tries++ {
				if lost++; tries > 4 {
					t.Fatalf("seed %d, step %d: still out of sync", seed, i)
				}
			}
			continue
		}
		x := &conns[rng.IntN(len(conns))]
		if x.s == nil || x.c == nil || !x.sl.IsZero() || !x.cl.IsZero() {
			continue // on its way out
		}
		later := now.Add(time.Duration(rng.Int64N(int64(skew))))
		if x.sl, x.cl = now, later; rng.IntN(2) == 0 {
			x.sl, x.cl = later, now
		}
		settle()
	}
	counted := map[*Groups]int{}
	for _, x := range conns {
		if x.s != nil {
			counted[server]++
		}
		if x.c != nil {
			counted[client]++
		}
	}
	for _, g := range []*Groups{server, client} {
		total := 0
		for _, lg := range g.All() {
			total += lg.Conns
		}
		if !mayLose && total != counted[g] || g.Len() != len(g.All()) {
			t.Fatalf("seed %d: %d connections in groups, want %d; Len %d of %d", seed, total, counted[g], g.Len(), len(g.All()))
		}
	}
	return lost
}

func TestChoiceKey(t *testing.T) {
	d := Choice{Mode: SMCD, Version: clc.V2, Local: keyA.Local, Remote: keyA.Remote, EID: eid(t, "A"), Release: 1, FirstContact: true}
	if got := d.Key(RoleServer); got != keyA {
		t.Errorf("Key = %+v, want %+v", got, keyA)
	}
	r := Choice{Mode: SMCR, Version: clc.V1, PeerID: clientPeer, GID: wire.GID{15: 1}, MAC: wire.MAC{1}}
	want := GroupKey{Mode: SMCR, Role: RoleClient, Version: clc.V1, PeerID: clientPeer, GID: wire.GID{15: 1}}
	if got := r.Key(RoleClient); got != want {
		t.Errorf("Key = %+v, want %+v", got, want)
	}
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		value fmt.Stringer
		want  string
	}{
		{SMCD, "SMC-D"}, {SMCR, "SMC-R"}, {Mode(9), "Mode(9)"},
		{RoleClient, "client"}, {RoleServer, "server"}, {Role(9), "Role(9)"},
		{StatePeerFinCloseWait, "PeerFinCloseWait"}, {ConnState(99), "ConnState(99)"},
		{EventTCPFin, "TCPFin"}, {EventTimer, "Timer"}, {ConnEventKind(99), "ConnEventKind(99)"},
		{FailPeerDied, "peer died"}, {FailKind(99), "FailKind(99)"},
		{HandshakeLinkWait, "LinkWait"}, {HandshakeState(99), "HandshakeState(99)"},
	} {
		if got := tt.value.String(); got != tt.want {
			t.Errorf("%T.String() = %q, want %q", tt.value, got, tt.want)
		}
	}
}
