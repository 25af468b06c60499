package core

import (
	"container/heap"
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// runUntil plays the events up to a time: groups in use always have a timer.
func (w *world) runUntil(end time.Time) {
	for steps := 0; !w.t.Failed(); steps++ {
		if len(w.todo) == 0 || w.todo[0].at.After(end) {
			w.now = end
			return
		}
		if steps > 30_000 {
			w.failf("the simulation does not end")
			return
		}
		e := heap.Pop(&w.todo).(simEvent)
		w.now = e.at
		e.do()
	}
}

// TestSimControl lets two hosts make and end connections over link groups, with faults on every message, and looks at their
// tables when it is quiet: they are equal, and nothing outlives its group.
func TestSimControl(t *testing.T) {
	total := map[string]int{}
	play := func(w *world, faulty bool) {
		w.quiet = *simSeed == 0
		v1, ipv6 := w.chance(25), w.chance(25)
		caps := func(n byte) Capabilities {
			c := only(clientCaps(t), "")
			c.PeerID = wire.PeerID{0, 1, 2, 0, 0, 0, 0, n}
			rnic := &RNIC{GID: wire.GIDFromAddr(netip.AddrFrom4([4]byte{10, 0, 0, n})), MAC: wire.MAC{2, 5: n}}
			if ipv6 {
				rnic.GID = wire.GID{0: 0xfd, 15: n}
			}
			if v1 {
				c.RoCEv1 = rnic
			} else {
				c.RoCEv2 = rnic
			}
			c.MaxConns = 16
			c.MaxLinks = uint8(1 + w.rng.IntN(2))
			if w.chance(30) {
				c.Release = clc.Release0
			}
			return c
		}
		a, b := newSimHost(w, "a", caps(1)), newSimHost(w, "b", caps(2))
		a.other, b.other = b, a
		a.faulty, b.faulty = faulty, faulty
		a.shy = !v1 && w.chance(40)
		hosts := []*simHost{a, b}
		burst := 0
		for _, h := range hosts {
			if h == b && w.chance(60) {
				break // a is the only client
			}
			for range 1 + w.rng.IntN(3) {
				at := time.Duration(w.rng.Int64N(int64(40 * time.Second)))
				n := 1 + w.rng.IntN(20)
				burst = max(burst, n)
				w.after(at, func() {
					for range n {
						h.connect()
					}
				})
			}
			if faulty && w.chance(10) {
				total["restarts"]++
				w.after(time.Duration(w.rng.Int64N(int64(50*time.Second))), h.restart)
			}
			if faulty && w.chance(20) {
				w.after(time.Duration(w.rng.Int64N(int64(40*time.Second))), func() {
					for _, lg := range h.groups.All() {
						if g := h.live[lg]; g != nil {
							g.control((*LinkControl).End, EndOperator)
						}
					}
				})
			}
		}
		if w.chance(30) { // of no effect on anybody's connections
			w.after(time.Duration(w.rng.Int64N(int64(40*time.Second))), a.intrude)
		}
		w.runUntil(epoch.Add(200 * time.Second))
		checkQuiet(w, hosts, faulty)
		for _, h := range hosts {
			total["established"] += h.established
			total["fell back"] += h.fellBack
			total["failed"] += h.failed
			total["groups"] += h.madeGroups
		}
		// Idle groups end, on both sides.
		for range 2 {
			w.runUntil(w.now.Add(ClientGroupIdleTimeout))
			for _, h := range hosts {
				for _, lg := range h.groups.Advance(w.now) {
					if g := h.live[lg]; g != nil {
						total["idle"]++
						g.control((*LinkControl).End, EndIdle)
					}
				}
			}
			w.runUntil(w.now.Add(5 * time.Second))
		}
		for _, h := range hosts {
			if h.groups.Len() > 0 || len(h.live) > 0 || len(h.ports) > 0 {
				w.failf("%s has %d groups, %d of them live, and %d queue pairs in the end", h.name, h.groups.Len(), len(h.live), len(h.ports))
			}
		}
	}
	forEachSeed(t, func(w *world) {
		if w.seed <= *simSeeds/2 || *simSeed != 0 { // each is long
			play(w, w.seed%4 != 0)
		}
	})
	t.Logf("%v", total)
	if *simSeed == 0 && *simSeeds >= 1000 {
		for _, what := range []string{"established", "fell back", "failed", "idle", "restarts"} {
			if total[what] == 0 {
				t.Errorf("none %s: the simulation misses something", what)
			}
		}
	}
}

// checkQuiet compares the tables of two hosts after their connections have ended.
func checkQuiet(w *world, hosts []*simHost, faulty bool) {
	for _, h := range hosts {
		for _, x := range h.conns {
			if x.last == nil && !x.tcpGone || x.in || x.hasRMB {
				w.failf("%s/%d: in state %v, in use %t, has an RMB %t", h.name, x.owner, x.hs.State(), x.in, x.hasRMB)
			}
			if o := x.other; x.role == RoleClient && x.last != nil && o.last != nil {
				_, e1 := x.last.(Established)
				_, e2 := o.last.(Established)
				_, f1 := x.last.(FallBack)
				_, f2 := o.last.(FallBack)
				if e1 && f2 || f1 && e2 {
					w.failf("%s/%d: %T, %s/%d: %T", h.name, x.owner, x.last, o.h.name, o.owner, o.last)
				}
				if !faulty && !e1 {
					w.failf("%s/%d: %T without a fault", h.name, x.owner, x.last)
				}
			}
		}
		if !faulty && h.madeGroups > 12 {
			w.failf("%s: %d groups", h.name, h.madeGroups)
		}
		for _, g := range h.live {
			if g.lc == nil || g.lc.State() != ControlActive || g.ending {
				w.failf("%s: group %v is left over", h.name, g.lg.ID)
				continue
			}
			if len(g.sockets) > 0 || g.lg.Conns != 0 {
				w.failf("%s: group %v has %d connections, %d counted", h.name, g.lg.ID, len(g.sockets), g.lg.Conns)
			}
			if len(g.lc.peer.users) > 0 || g.lc.exchange.kind != exchangeNone || len(g.lc.wishes) > 0 || len(g.lc.deletes) > 0 {
				w.failf("%s: group %v has %d elements in use, exchange %+v, %d wishes", h.name, g.lg.ID, len(g.lc.peer.users), g.lc.exchange, len(g.lc.wishes))
			}
			p := g.port.peer
			if p == nil || p.failed {
				w.failf("%s: group %v has no other end", h.name, g.lg.ID)
				continue
			}
			for id, own := range g.lc.own {
				known := p.g.lc.peer.find(0, own.tokens[1].RKey)
				switch own.state {
				case rmbConfirmed:
					if known == nil || known.tokens[0] != own.tokens[1] {
						w.failf("%s: RMB %d %v is not known to the peer", h.name, id, own.tokens[1])
					}
				case rmbQuarantined:
				default:
					w.failf("%s: RMB %d is left over in state %d", h.name, id, own.state)
				}
			}
			if len(g.lc.own) != len(g.tokens) {
				w.failf("%s: group %v has %d RMBs, the host %d", h.name, g.lg.ID, len(g.lc.own), len(g.tokens))
			}
			for _, known := range g.lc.peer.rmbs {
				found := false
				for _, own := range p.g.lc.own {
					found = found || own.tokens[1] == known.tokens[0]
				}
				if !found {
					w.failf("%s: group %v knows %v, which the peer does not have", h.name, g.lg.ID, known.tokens[0])
				}
			}
		}
	}
}
