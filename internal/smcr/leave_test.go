package smcr

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// netLinks are all links that a group has.
func netLinks(g *group) (list []*link.Link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.links.all {
		list = append(list, l.net)
	}
	return list
}

// TestLeaving has an operator of either side end a link in the middle of transfers: connections leave it while it works, so that no byte is written twice. On
// a machine that is so busy that they do not within the time for it another attempt is made.
func TestLeaving(t *testing.T) {
	for _, by := range []core.Role{core.RoleServer, core.RoleClient} {
		for _, num := range []llc.LinkNum{1, 2} {
			t.Run(by.String()+string(rune('0'+num)), func(t *testing.T) {
				for range 8 {
					if testLeaving(t, by, num) {
						return
					}
				}
				t.Error("connections have never left in time")
			})
		}
	}
}

// testLeaving is one attempt. It reports whether connections have left the link in time, at both ends.
func testLeaving(t *testing.T, by core.Role, num llc.LinkNum) bool {
	r := newFabricCables(t, 2, clc.V2)
	const count, size = 6, 4 << 20
	var pairs [][2]*fabricEnd
	for range count {
		c, s := r.connect()
		pairs = append(pairs, [2]*fabricEnd{c, s})
	}
	var groups [2]*group
	var before [2][]*link.Link
	var leaving [2]*groupLink
	for i, e := range pairs[0] {
		groups[i], _ = r.upLinks(e, 2)
		before[i] = netLinks(groups[i])
		groups[i].mu.Lock()
		leaving[i] = groups[i].links.get(num)
		groups[i].mu.Unlock()
	}
	var all sync.WaitGroup
	for _, p := range pairs[1:] { // the first one is silent
		all.Go(func() { transfer(t, p[0], p[1], size) })
	}
	smctest.Eventually(t, fabricPatience, "some data", func() bool {
		read, _ := pairs[count-1][1].data.Load().Totals()
		return read > size/8
	})
	g := groups[0]
	if by == core.RoleServer {
		g = groups[1]
	}
	g.do(func(now time.Time, out []llcflow.Output) []llcflow.Output { return g.ctl.DeleteLink(now, num, out) })
	inTime := true
	for i, g := range groups {
		smctest.Eventually(t, fabricPatience, "the link has ended", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.links.failovers > 0
		})
		g.mu.Lock()
		inTime = inTime && leaving[i].left
		if g.links.moved == 0 {
			t.Errorf("end %d: no connection has moved", i)
		}
		g.mu.Unlock()
	}
	all.Wait()
	exchange(t, pairs[0][0], pairs[0][1])
	for i, g := range groups {
		every := map[*link.Link]bool{}
		for _, l := range append(before[i], netLinks(g)...) {
			every[l] = true
		}
		total, want := uint64(0), uint64(0)
		for l := range every {
			total += l.Stats().SentBytes
			if err := l.Err(); inTime && err != nil && !errors.Is(err, link.ErrClosed) {
				t.Errorf("end %d: a link has failed: %v", i, err)
			}
		}
		for _, p := range pairs {
			_, sent := p[i].data.Load().Totals()
			want += sent
		}
		if inTime && total != want || want == 0 {
			t.Errorf("end %d: %d bytes were written, of %d", i, total, want)
		}
	}
	for _, p := range pairs {
		p[0].close()
		p[1].close()
	}
	return inTime
}

// TestLeavingShown looks at a link that ends: from when connections leave it until the peer has answered it is shown as one that does. The last link beside it
// cannot be deleted meanwhile; it itself can be once more, and nothing comes of that. Of a group that ends none can be.
func TestLeavingShown(t *testing.T) {
	r := newFabricCables(t, 2, clc.V2)
	c, s := r.connect()
	r.upLinks(c, 2)
	g, _ := r.upLinks(s, 2)
	check := func(when, want string) {
		t.Helper()
		var got []string
		for _, l := range g.links.all {
			x := l.status(g.ctl.Links(), "")
			got = append(got, fmt.Sprintf("%d %s", x.Number, x.State))
		}
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	g.mu.Lock()
	check("at first", "1 LINK_ACTIVE, 2 LINK_ACTIVE")
	leaving := g.links.get(1)
	leaving.left = true // another time, when it stayed
	for range 2 {
		if err := g.links.delete(1); err != nil {
			t.Error(err)
		}
	}
	check("connections leave it", "1 LINK_LEAVING, 2 LINK_ACTIVE")
	if leaving.left {
		t.Error("they have left it before they do")
	}
	if err := g.links.delete(2); err == nil || !strings.Contains(err.Error(), "link 2 is the last one of link group") {
		t.Errorf("the other link: %v", err)
	}
	g.doLocked(func(now time.Time, out []llcflow.Output) []llcflow.Output { return g.ctl.LinkLeft(now, 1, out) })
	check("they have left it", "1 LINK_LEAVING, 2 LINK_ACTIVE")
	g.mu.Unlock()
	smctest.Eventually(t, fabricPatience, "the link has ended", func() bool { return len(r.server.Status(nil)[0].Links) == 1 })
	exchange(t, c, s)
	g.end.finish(llcflow.EndOperator)
	g.mu.Lock()
	if err := g.links.delete(2); err == nil || !strings.Contains(err.Error(), "is being made, or ends") {
		t.Errorf("a link of a group that ends: %v", err)
	}
	g.mu.Unlock()
	c.close()
	s.close()
}

// TestLeavingUnused has a link be about to end: no connection begins on it while there is another one, and none is told of it.
func TestLeavingUnused(t *testing.T) {
	for _, num := range []llc.LinkNum{1, 2} {
		r := newFabricCables(t, 2, clc.V2)
		var ends []*fabricEnd
		for range 4 {
			c, s := r.connect()
			ends = append(ends, c, s)
		}
		g, _ := r.upLinks(ends[1], 2) // of the server
		g.mu.Lock()
		g.doLocked(func(now time.Time, out []llcflow.Output) []llcflow.Output { return g.ctl.DeleteLink(now, num, out) })
		leaving := g.links.get(num)
		if !g.links.leaves(leaving) || !leaving.up || g.conns.on(leaving) != 0 {
			t.Errorf("link %d: leaving %t, up %t, %d connections", num, g.links.leaves(leaving), leaving.up, g.conns.on(leaving))
		}
		for owner := range g.conns.all {
			if to, _ := newSpread(g).pick(owner, nil); to == nil || to.num == num {
				t.Errorf("link %d is picked for a connection", num)
			}
		}
		for g.links.failovers = range uint64(2) { // the newest is named then
			if got := g.links.toName(nil).num; got == num {
				t.Errorf("link %d is named, after %d failovers", num, g.links.failovers)
			}
			for _, c := range g.conns.all { // one that was named before
				named := c.named
				if c.named = leaving; !leaving.up {
					t.Fatal("the link is not up")
				}
				if to, _ := g.links.namedTo(c); to == leaving {
					t.Errorf("a connection begins on link %d, after %d failovers", num, g.links.failovers)
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
