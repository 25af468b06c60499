package host

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestSMCRSpread has connections of which one writes much more than the others, takes a link away and gives it back: by either policy they
// are spread at first, and again.
func TestSMCRSpread(t *testing.T) {
	const count, heavy = 6, 4 << 20
	for _, tt := range []struct {
		spread string
		want   []int // connections on the links in the end, the fewest first
	}{
		{"", []int{3, 3}},
		{SpreadConnections, []int{3, 3}},
		{SpreadBytes, []int{1, 5}},
	} {
		t.Run(tt.spread, func(t *testing.T) {
			r, cables := newTwinRig(t, func(c, s *Config) { c.SMCRSpread, s.SMCRSpread = tt.spread, tt.spread })
			first, firstPeer := r.connect()
			checkSMCR(t, first)
			r.awaitRedundancy("symmetric")
			var pairs [count][2]*Conn
			pairs[0] = [2]*Conn{first, firstPeer}
			for i := 1; i < count; i++ {
				pairs[i][0], pairs[i][1] = r.connect()
				checkSMCR(t, pairs[i][0])
			}
			spread := func(h *Host) []int {
				g := groupsOf(h)[0]
				g.mu.Lock()
				defer g.mu.Unlock()
				var on []int
				for _, l := range g.links {
					on = append(on, g.connsOn(l))
				}
				slices.Sort(on)
				return on
			}
			for _, h := range []*Host{r.client, r.server} {
				if got := spread(h); !slices.Equal(got, []int{3, 3}) {
					t.Errorf("connections that have written nothing are spread as %v, want half on each link", got)
				}
			}
			for i, end := range pairs[1] { // which is heavy at both ends
				go func() { end.Write(make([]byte, heavy)) }()
				readN(t, pairs[1][1-i], heavy)
			}
			cables.IP(0, "link set cable1 down")
			r.awaitRedundancy("single")
			cables.IP(0, "link set cable1 up")
			r.awaitRedundancy("symmetric")
			for _, h := range []*Host{r.client, r.server} {
				smctest.Eventually(t, patience, "all are spread", func() bool { return slices.Equal(spread(h), tt.want) })
				if got := h.Status().Groups[0].Spread; tt.spread != "" && got != tt.spread || got == "" {
					t.Errorf("the policy %q is shown as %q", tt.spread, got)
				}
			}
			for _, p := range pairs {
				checkExchange(t, p[0], p[1])
				p[0].Close()
				p[1].Close()
			}
		})
	}
	if _, err := New(Config{SMCRSpread: "luck"}); err == nil || !strings.Contains(err.Error(), "luck") {
		t.Errorf("a policy that is none: %v", err)
	}
}

// readN reads so many bytes.
func readN(t testing.TB, c *Conn, n int) {
	t.Helper()
	b := make([]byte, 64<<10)
	for n > 0 {
		k, err := c.Read(b[:min(len(b), n)])
		if n -= k; err != nil {
			t.Fatal(err)
		}
	}
}

// newTripleRig is a rig whose hosts have three devices each.
func newTripleRig(t testing.TB, change func(x *Config)) (*smcrRig, *smctest.Cables) {
	t.Helper()
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 3)
	r := newCableRig(t, cables, false, func(c, s *Config) {
		for _, x := range []*Config{c, s} {
			x.SMCRDevices = []string{"10.99.0.0/16"}
			change(x)
		}
	})
	return r, cables
}

// upLinksOf returns the links of a host's group that are up, once there are so many.
func (r *smcrRig) upLinksOf(h *Host, want int) (g *smcrGroup, links []*smcrLink) {
	r.t.Helper()
	g = groupsOf(h)[0]
	smctest.Eventually(r.t, patience, "all links are up", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		links = nil
		for _, l := range g.links {
			if l.up {
				links = append(links, l)
			}
		}
		return len(links) == want
	})
	return g, links
}

// TestSMCRMoveAnew has a link fail after it was picked for the connections of another one, so that the move comes to nothing: they go on over a third.
func TestSMCRMoveAnew(t *testing.T) {
	r, _ := newTripleRig(t, func(x *Config) { x.SMCRv1, x.UEIDs, x.SMCRLinks = true, nil, 3 })
	var pairs [][2]*Conn
	for range 6 {
		c, s := r.connect()
		checkSMCR(t, c, s)
		pairs = append(pairs, [2]*Conn{c, s})
	}
	g, links := r.upLinksOf(r.client, 3)
	g.mu.Lock()
	from, failing := links[2], links[1]
	// One that cannot send, and that has no connections, is the first to be picked. Its failure is not to be seen before.
	unready, err := g.net.NewLink(failing.rnic.RDMA())
	if err != nil {
		g.mu.Unlock()
		t.Fatal(err)
	}
	good := failing.net
	failing.net = unready
	count := g.connsOn(from)
	from.up = false
	moved, _ := g.moveAll(from)
	failing.net, from.up = good, true
	left := g.connsOn(from)
	g.mu.Unlock()
	unready.Close()
	if moved != count || moved == 0 || left != 0 {
		t.Errorf("%d of %d connections have moved, %d are left", moved, count, left)
	}
	for _, p := range pairs {
		checkExchange(t, p[0], p[1])
		p[0].Close()
		p[1].Close()
	}
}

// TestSMCRAttachAnew has a link fail after it was picked for a new connection: it begins on another one.
func TestSMCRAttachAnew(t *testing.T) {
	r, _ := newTwinRig(t, nil)
	first, firstPeer := r.connect()
	checkSMCR(t, first, firstPeer)
	g, links := r.upLinksOf(r.client, 2)
	second, secondPeer := r.connect() // whose memory is used again
	second.Close()
	secondPeer.Close()
	g.mu.Lock()
	failing := links[1]
	if failing == g.main() {
		failing = links[0]
	}
	good := failing.net
	unready, err := g.net.NewLink(failing.rnic.RDMA())
	if err != nil {
		g.mu.Unlock()
		t.Fatal(err)
	}
	failing.net = unready // which has no connections, and is picked first
	picked, _ := g.spread().pick(first.binding.(*smcrBinding).owner, nil)
	g.mu.Unlock()
	if picked == nil || picked.smcrLink != failing {
		t.Error("another link is picked than the one that fails")
	}
	c, s := r.connect()
	g.mu.Lock()
	failing.net = good
	g.mu.Unlock()
	unready.Close()
	checkSMCR(t, c, s)
	for _, p := range [][2]*Conn{{c, s}, {first, firstPeer}} {
		checkExchange(t, p[0], p[1])
		p[0].Close()
		p[1].Close()
	}
}

// BenchmarkSMCRSpread has connections move away from a link that is lost, and be spread again when it comes back, with the group's lock held. These are many more than a
// group has, of elements that the peer does not know, and have nothing to say.
func BenchmarkSMCRSpread(b *testing.B) {
	const count, rmbs = 10_000, 40
	r, _ := newTwinRig(b, nil)
	var conns []*Conn
	for range rmbs {
		c, s := r.connect()
		conns = append(conns, c, s)
	}
	r.awaitRedundancy("symmetric")
	g, links := r.upLinksOf(r.client, 2)
	g.mu.Lock()
	unlock := sync.OnceFunc(g.mu.Unlock)
	defer unlock()
	l, mine := links[0], conns[0].binding.(*smcrBinding)
	end := g.ctl.Links()[0].Peer
	var added []*smcrBinding
	for i := range count - rmbs {
		known, ok := g.ctl.ElementOn(conns[2*(i%rmbs)].binding.(*smcrBinding).owner, l.num)
		if !ok {
			b.Fatal("an element is not known")
		}
		c := &smcrBinding{group: g, rmb: mine.rmb}
		var err error
		if c.link, err = g.net.NewCarrier(link.CarrierConfig{RMB: mine.rmb.rmb, Wake: func() {}, SendBuffer: 1}); err != nil {
			b.Fatal(err)
		}
		size := wire.SizeCodeFor(known.Size)
		to := link.PeerRMBE{AlertToken: 1, RKey: known.RKey, Addr: known.VA, Index: uint8(2 + i/rmbs), Size: size}
		c.owner = g.newOwner(c)
		r := clc.ParamsR{GID: end.GID, QPN: end.QPN, RKey: known.RKey, RMBAddr: known.VA, RMBEIndex: to.Index, RMBESize: size}
		if _, why, _ := g.ctl.TakeElement(&r, c.owner, nil); why != clc.DiagNone {
			b.Fatal(why)
		}
		if err := c.link.Attach(l.net, to, false); err != nil {
			b.Fatal(err)
		}
		c.link.Release() // its token: a group has not as many
		added = append(added, c)
	}
	for b.Loop() {
		l.up = false
		g.moveAll(l)
		l.up = true
		g.balance()
		if n := g.connsOn(l); n != count/2 {
			b.Errorf("%d connections are on the link that has come back, want %d", n, count/2)
		}
	}
	for _, c := range added {
		c.link.Detach()
		g.forgetOwner(c.owner)
	}
	unlock()
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/round")
	for _, c := range conns {
		c.Close()
	}
}
