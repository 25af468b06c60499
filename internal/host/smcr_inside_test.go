package host

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// TestSMCRCountedOnce takes a link that is lost out of those that count, which its device and the group may do at once: it was one.
func TestSMCRCountedOnce(t *testing.T) {
	for range 20_000 {
		g := &smcrGroup{}
		links := []*smcrLink{{group: g}, {group: g}, {group: g}}
		for _, l := range links {
			l.counts.Store(true)
		}
		g.upLinks.Store(int32(len(links)))
		var both sync.WaitGroup
		both.Go(func() { links[0].spare() })
		both.Go(links[0].countOut)
		both.Wait()
		links[0].countOut()
		if n := g.upLinks.Load(); n != 2 {
			t.Fatalf("%d links count, want 2", n)
		}
	}
}

// TestSMCRStallHears has acknowledgements overdue on one link and nothing come over the other one: the peer is asked whether it is there, and what has come
// before does not count as its answer.
func TestSMCRStallHears(t *testing.T) {
	r := newFabricCables(t, 2, clc.V2)
	c, s := r.connect()
	g, links := r.upLinks(c, 2)
	g.mu.Lock()
	for i, l := range links {
		st := l.net.QPStats()
		l.heard, l.seen.received, l.seen.timeouts, l.seen.stalls, l.seen.heard = 0, st.RcvdPackets, st.Timeouts-uint64(1-i), 0, 0
	}
	g.mu.Unlock()
	g.checkStalls()
	g.mu.Lock()
	for _, l := range links {
		if l.heard == 0 {
			t.Errorf("core has not been told of %d messages over link %d", l.net.Heard(), l.num)
		}
	}
	g.mu.Unlock()
	exchange(t, c, s)
	c.close()
	s.close()
}

// TestSMCRKnockDuringChange asks the kernel of a peer while links are made, whose other ends are not known before. It is for the race detector.
func TestSMCRKnockDuringChange(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	defer c.close()
	defer s.close()
	g := c.binding.group
	g.knock()
	smctest.Eventually(t, fabricPatience, "it is asked", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		l := g.links[0]
		was := l.peer
		l.peer = netip.Addr{}
		l.peer = was
		return !g.knocking.Load()
	})
	exchange(t, c, s)
}

// TestSMCRLeavingUnused has a link be about to end: no connection begins on it while there is another one, and none is told of it.
func TestSMCRLeavingUnused(t *testing.T) {
	for _, num := range []llc.LinkNum{1, 2} {
		r := newFabricCables(t, 2, clc.V2)
		var ends []*fabricEnd
		for range 4 {
			c, s := r.connect()
			ends = append(ends, c, s)
		}
		g, _ := r.upLinks(ends[1], 2) // of the server
		g.mu.Lock()
		g.doLocked(func(now time.Time, out []core.Output) []core.Output { return g.ctl.DeleteLink(now, num, out) })
		leaving := g.linkOf(num)
		if !g.leaves(leaving) || !leaving.up || g.connsOn(leaving) != 0 {
			t.Errorf("link %d: leaving %t, up %t, %d connections", num, g.leaves(leaving), leaving.up, g.connsOn(leaving))
		}
		for owner := range g.owners {
			if to, _ := g.spread().pick(owner, nil); to == nil || to.num == num {
				t.Errorf("link %d is picked for a connection", num)
			}
		}
		for g.failovers = range uint64(2) { // the newest is named then
			if got := g.toName(nil).num; got == num {
				t.Errorf("link %d is named, after %d failovers", num, g.failovers)
			}
			for _, c := range g.owners { // one that was named before
				named := c.named
				if c.named = leaving; !leaving.up {
					t.Fatal("the link is not up")
				}
				if to, _ := g.namedLink(c); to == leaving {
					t.Errorf("a connection begins on link %d, after %d failovers", num, g.failovers)
				}
				c.named = named
			}
		}
		g.mu.Unlock()
		r.upLinks(ends[1], 1)
		for _, e := range ends {
			e.close()
		}
	}
}
