package llcflow

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestSimControl lets two hosts make and end connections over link groups, with faults on every message, and looks at their
// tables when it is quiet: they are equal, and nothing outlives its group.
func TestSimControl(t *testing.T) {
	seeds, one := coretest.Seeds()
	eid, err := wire.ParseEID("EAST")
	if err != nil {
		t.Fatal(err)
	}
	total := map[string]int{}
	play := func(w *coretest.World, faulty bool) {
		w.Quiet = one == 0
		v1, ipv6 := w.Chance(25), w.Chance(25)
		caps := func(n byte) core.Capabilities {
			c := core.Capabilities{
				PeerID: wire.PeerID{0, 1, 2, 0, 0, 0, 0, n}, OS: clc.OSLinux, HostName: "client", Release: clc.Release1, UEIDs: []wire.EID{eid},
				Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, Features: 0x8001,
			}
			rnic := &core.RNIC{GID: wire.GIDFromAddr(netip.AddrFrom4([4]byte{10, 0, 0, n})), MAC: wire.MAC{2, 5: n}}
			if ipv6 {
				rnic.GID = wire.GID{0: 0xfd, 15: n}
			}
			if v1 {
				c.RoCEv1 = rnic
			} else {
				c.RoCEv2 = rnic
			}
			c.MaxConns = 16
			c.MaxLinks = uint8(1 + w.Rand.IntN(2))
			if w.Chance(30) {
				c.Release = clc.Release0
			}
			return c
		}
		a, b := newSimHost(w, "a", caps(1)), newSimHost(w, "b", caps(2))
		a.other, b.other = b, a
		a.faulty, b.faulty = faulty, faulty
		a.shy = !v1 && w.Chance(40)
		hosts := []*simHost{a, b}
		burst := 0
		for _, h := range hosts {
			if h == b && w.Chance(60) {
				break // a is the only client
			}
			for range 1 + w.Rand.IntN(3) {
				at := time.Duration(w.Rand.Int64N(int64(40 * time.Second)))
				n := 1 + w.Rand.IntN(20)
				burst = max(burst, n)
				w.After(at, func() {
					for range n {
						h.connect()
					}
				})
			}
			if faulty && w.Chance(10) {
				total["restarts"]++
				w.After(time.Duration(w.Rand.Int64N(int64(50*time.Second))), h.restart)
			}
			if faulty && w.Chance(20) {
				w.After(time.Duration(w.Rand.Int64N(int64(40*time.Second))), func() {
					for _, lg := range h.groups.All() {
						if g := h.live[lg]; g != nil {
							g.control((*LinkControl).End, EndOperator)
						}
					}
				})
			}
		}
		if w.Chance(30) { // of no effect on anybody's connections
			w.After(time.Duration(w.Rand.Int64N(int64(40*time.Second))), a.intrude)
		}
		w.RunUntil(epoch.Add(200 * time.Second))
		checkQuiet(w, hosts, faulty)
		for _, h := range hosts {
			total["established"] += h.established
			total["fell back"] += h.fellBack
			total["failed"] += h.failed
			total["groups"] += h.madeGroups
		}
		// Idle groups end, on both sides.
		for range 2 {
			w.RunUntil(w.Now.Add(core.ClientGroupIdleTimeout))
			for _, h := range hosts {
				for _, lg := range h.groups.Advance(w.Now) {
					if g := h.live[lg]; g != nil {
						total["idle"]++
						g.control((*LinkControl).End, EndIdle)
					}
				}
			}
			w.RunUntil(w.Now.Add(5 * time.Second))
		}
		for _, h := range hosts {
			if h.groups.Len() > 0 || len(h.live) > 0 || len(h.ports) > 0 {
				w.Failf("%s has %d groups, %d of them live, and %d queue pairs in the end", h.name, h.groups.Len(), len(h.live), len(h.ports))
			}
		}
	}
	coretest.ForEachSeed(t, func(w *coretest.World) {
		if w.Seed <= seeds/2 || one != 0 { // each is long
			play(w, w.Seed%4 != 0)
		}
	})
	t.Logf("%v", total)
	if coretest.Thorough() {
		for _, what := range []string{"established", "fell back", "failed", "idle", "restarts"} {
			if total[what] == 0 {
				t.Errorf("none %s: the simulation misses something", what)
			}
		}
	}
}

// checkQuiet compares the tables of two hosts after their connections have ended.
func checkQuiet(w *coretest.World, hosts []*simHost, faulty bool) {
	for _, h := range hosts {
		for _, x := range h.conns {
			if x.last == nil && !x.tcpGone || x.in || x.hasRMB {
				w.Failf("%s/%d: in state %v, in use %t, has an RMB %t", h.name, x.owner, x.hs.State(), x.in, x.hasRMB)
			}
			if o := x.other; x.role == core.RoleClient && x.last != nil && o.last != nil {
				_, e1 := x.last.(core.Established)
				_, e2 := o.last.(core.Established)
				_, f1 := x.last.(core.FallBack)
				_, f2 := o.last.(core.FallBack)
				if e1 && f2 || f1 && e2 {
					w.Failf("%s/%d: %T, %s/%d: %T", h.name, x.owner, x.last, o.h.name, o.owner, o.last)
				}
				if !faulty && !e1 {
					w.Failf("%s/%d: %T without a fault", h.name, x.owner, x.last)
				}
			}
		}
		if !faulty && h.madeGroups > 12 {
			w.Failf("%s: %d groups", h.name, h.madeGroups)
		}
		for _, g := range h.live {
			if g.lc == nil || g.lc.State() != StateActive || g.ending {
				w.Failf("%s: group %v is left over", h.name, g.lg.ID)
				continue
			}
			if len(g.sockets) > 0 || g.lg.Conns != 0 {
				w.Failf("%s: group %v has %d connections, %d counted", h.name, g.lg.ID, len(g.sockets), g.lg.Conns)
			}
			if len(g.lc.peer.users) > 0 || g.lc.exchange.kind != exchangeNone || len(g.lc.wishes) > 0 || len(g.lc.deletes) > 0 {
				w.Failf("%s: group %v has %d elements in use, exchange %+v, %d wishes", h.name, g.lg.ID, len(g.lc.peer.users), g.lc.exchange, len(g.lc.wishes))
			}
			p := g.port.peer
			if p == nil || p.failed {
				w.Failf("%s: group %v has no other end", h.name, g.lg.ID)
				continue
			}
			for id, own := range g.lc.own {
				known := p.g.lc.peer.find(0, own.tokens[1].RKey)
				switch own.state {
				case rmbConfirmed:
					if known == nil || known.tokens[0] != own.tokens[1] {
						w.Failf("%s: RMB %d %v is not known to the peer", h.name, id, own.tokens[1])
					}
				case rmbQuarantined:
				default:
					w.Failf("%s: RMB %d is left over in state %d", h.name, id, own.state)
				}
			}
			if len(g.lc.own) != len(g.tokens) {
				w.Failf("%s: group %v has %d RMBs, the host %d", h.name, g.lg.ID, len(g.lc.own), len(g.tokens))
			}
			for _, known := range g.lc.peer.rmbs {
				found := false
				for _, own := range p.g.lc.own {
					found = found || own.tokens[1] == known.tokens[0]
				}
				if !found {
					w.Failf("%s: group %v knows %v, which the peer does not have", h.name, g.lg.ID, known.tokens[0])
				}
			}
		}
	}
}
