package host

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/llc"
)

// deleteLink has an operator of a host end a link of its group.
func deleteLink(h *Host, num llc.LinkNum) {
	groupsOf(h)[0].do(func(now time.Time, out []core.Output) []core.Output {
		return groupsOf(h)[0].ctl.DeleteLink(now, num, out)
	})
}

// netLinks are all links that a host's group has.
func netLinks(h *Host) (list []*link.Link) {
	g := groupsOf(h)[0]
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.links {
		list = append(list, l.net)
	}
	return list
}

// TestSMCRLeaving has an operator of either side end a link in the middle of transfers: connections leave it while it works, so that no byte is written twice. On
// a machine that is so busy that they do not within the time for it another attempt is made.
func TestSMCRLeaving(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		for _, num := range []llc.LinkNum{1, 2} {
			t.Run(by+string(rune('0'+num)), func(t *testing.T) {
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
func testLeaving(t *testing.T, by string, num llc.LinkNum) bool {
	r, _ := newTwinRig(t, nil)
	const count, size = 6, 4 << 20
	var pairs [][2]*Conn
	for range count {
		c, s := r.connect()
		checkSMCR(t, c, s)
		pairs = append(pairs, [2]*Conn{c, s})
	}
	r.awaitRedundancy("symmetric")
	hosts := [2]*Host{r.client, r.server}
	var before [2][]*link.Link
	var leaving [2]*smcrLink
	for i, h := range hosts {
		before[i] = netLinks(h)
		g := groupsOf(h)[0]
		g.mu.Lock()
		leaving[i] = g.linkOf(num)
		g.mu.Unlock()
	}
	var all sync.WaitGroup
	for _, p := range pairs[1:] { // the first one is silent
		all.Go(func() { checkTransfer(t, p[0], p[1], size) })
	}
	smctest.Eventually(t, patience, "some data", func() bool {
		read, _ := pairs[count-1][1].Totals()
		return read > size/8
	})
	deleteLink(map[string]*Host{"server": r.server, "client": r.client}[by], num)
	smctest.Eventually(t, patience, "the link has ended", func() bool { return r.failovers() == 2 })
	all.Wait()
	checkExchange(t, pairs[0][0], pairs[0][1])
	inTime := true
	for i, h := range hosts {
		g := groupsOf(h)[0]
		g.mu.Lock()
		inTime = inTime && leaving[i].left
		g.mu.Unlock()
	}
	for i, h := range hosts {
		every := map[*link.Link]bool{}
		for _, l := range append(before[i], netLinks(h)...) {
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
			_, sent := p[i].Totals()
			want += sent
		}
		if inTime && total != want || want == 0 {
			t.Errorf("end %d: %d bytes were written, of %d", i, total, want)
		}
		if st := h.Status().Groups[0]; st.Failovers == 0 || st.Moved == 0 {
			t.Errorf("end %d: %d failovers, %d connections have moved", i, st.Failovers, st.Moved)
		}
	}
	for _, p := range pairs {
		p[0].Close()
		p[1].Close()
	}
	return inTime
}

// TestSMCRLeavingShown looks at a link that ends: from when connections leave it until the peer has answered it is shown as one that does. The last link beside it
// cannot be deleted meanwhile; it itself can be once more, and nothing comes of that.
func TestSMCRLeavingShown(t *testing.T) {
	r, _ := newTwinRig(t, nil)
	c, s := r.connect()
	checkSMCR(t, c, s)
	r.awaitRedundancy("symmetric")
	g := groupsOf(r.server)[0]
	check := func(when, want string) {
		t.Helper()
		var got []string
		for _, l := range g.links {
			x := g.linkStatus(l, g.ctl.Links(), "")
			got = append(got, fmt.Sprintf("%d %s", x.Number, x.State))
		}
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	g.mu.Lock()
	check("at first", "1 LINK_ACTIVE, 2 LINK_ACTIVE")
	leaving := g.linkOf(1)
	leaving.left = true // another time, when it stayed
	for range 2 {
		if err := g.deleteLink(1); err != nil {
			t.Error(err)
		}
	}
	check("connections leave it", "1 LINK_LEAVING, 2 LINK_ACTIVE")
	if leaving.left {
		t.Error("they have left it before they do")
	}
	if err := g.deleteLink(2); err == nil || !strings.Contains(err.Error(), "link 2 is the last one of link group") {
		t.Errorf("the other link: %v", err)
	}
	g.doLocked(func(now time.Time, out []core.Output) []core.Output { return g.ctl.LinkLeft(now, 1, out) })
	check("they have left it", "1 LINK_LEAVING, 2 LINK_ACTIVE")
	g.mu.Unlock()
	smctest.Eventually(t, patience, "the link has ended", func() bool { return len(r.server.Status().Groups[0].Links) == 1 })
	checkExchange(t, c, s)
}

// TestSMCRDeleteLink has operators delete links, as the control socket asks for it: of either side, and what cannot be.
func TestSMCRDeleteLink(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		r, _ := newTwinRig(t, nil)
		c, s := r.connect()
		checkSMCR(t, c, s)
		r.awaitRedundancy("symmetric")
		h := map[string]*Host{"server": r.server, "client": r.client}[by]
		id := h.Status().Groups[0].ID
		no := func(group uint32, num uint8, want string) {
			t.Helper()
			if err := (*controlView)(h).DeleteLink(group, num); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, link %d of group %08x: %v, want %q", by, num, group, err, want)
			}
		}
		no(id+77, 1, "no link group")
		no(id, 3, "no link 3, but 1, 2")
		no(id, 0, "no link 0, but 1, 2")
		if err := control.LinkDeleter((*controlView)(h)).DeleteLink(id, 1); err != nil {
			t.Error(err)
		}
		smctest.Eventually(t, patience, "the link has ended", func() bool { return r.redundancy() == "single" && r.failovers() == 2 })
		no(id, 2, "it ends with its connections")
		checkExchange(t, c, s)
		groupsOf(h)[0].finish(core.EndOperator)
		if err := (*controlView)(h).DeleteLink(id, 2); err == nil {
			t.Errorf("%s: a group that ends", by)
		}
	}
}
