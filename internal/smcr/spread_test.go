package smcr

import (
	"sync"
	"testing"

	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestMoveAnew has a link fail after it was picked for the connections of another one, so that the move comes to nothing: they go on over a third.
func TestMoveAnew(t *testing.T) {
	r := newFabricCables(t, 3, clc.V1)
	var pairs [][2]*fabricEnd
	for range 6 {
		c, s := r.connect()
		pairs = append(pairs, [2]*fabricEnd{c, s})
	}
	g, links := r.upLinks(pairs[0][0], 3)
	g.mu.Lock()
	from, failing := links[2], links[1]
	// One that cannot send, and that has no connections, is the first to be picked. Its failure is not to be seen before.
	unready, err := g.net.NewLink(failing.rnic.Verbs())
	if err != nil {
		g.mu.Unlock()
		t.Fatal(err)
	}
	good := failing.net
	failing.net = unready
	count := g.conns.on(from)
	from.up = false
	moved, _ := newSpread(g).moveAll(from)
	failing.net, from.up = good, true
	left := g.conns.on(from)
	g.mu.Unlock()
	unready.Close()
	if moved != count || moved == 0 || left != 0 {
		t.Errorf("%d of %d connections have moved, %d are left", moved, count, left)
	}
	for _, p := range pairs {
		exchange(t, p[0], p[1])
		p[0].close()
		p[1].close()
	}
}

// TestAttachAnew has a link fail after it was picked for a new connection: it begins on another one.
func TestAttachAnew(t *testing.T) {
	r := newFabricCables(t, 2, clc.V2)
	first, firstPeer := r.connect()
	g, links := r.upLinks(first, 2)
	g.mu.Lock()
	failing := links[1]
	if failing == g.links.main() {
		failing = links[0]
	}
	good := failing.net
	unready, err := g.net.NewLink(failing.rnic.Verbs())
	if err != nil {
		g.mu.Unlock()
		t.Fatal(err)
	}
	failing.net = unready // which has no connections, and is picked first
	picked, _ := newSpread(g).pick(first.binding.owner, nil)
	g.mu.Unlock()
	if picked == nil || picked.groupLink != failing {
		t.Error("another link is picked than the one that fails")
	}
	c, s := r.connect()
	g.mu.Lock()
	failing.net = good
	g.mu.Unlock()
	unready.Close()
	for _, p := range [][2]*fabricEnd{{c, s}, {first, firstPeer}} {
		exchange(t, p[0], p[1])
		p[0].close()
		p[1].close()
	}
}

// BenchmarkSpread has connections move away from a link that is lost, and be spread again when it comes back, with the group's lock held. These are many more than a
// group has, of elements that the peer does not know, and have nothing to say.
func BenchmarkSpread(b *testing.B) {
	const count, rmbs = 10_000, 40
	r := newFabricCables(b, 2, clc.V2)
	var conns []*fabricEnd
	for range rmbs {
		c, s := r.connect()
		conns = append(conns, c, s)
	}
	g, links := r.upLinks(conns[0], 2)
	g.mu.Lock()
	unlock := sync.OnceFunc(g.mu.Unlock)
	defer unlock()
	l, mine := links[0], conns[0].binding
	end := g.ctl.Links()[0].Peer
	var added []*binding
	for i := range count - rmbs {
		known, ok := g.ctl.ElementOn(conns[2*(i%rmbs)].binding.owner, l.num)
		if !ok {
			b.Fatal("an element is not known")
		}
		c := &binding{group: g, rmb: mine.rmb}
		var err error
		if c.link, err = g.net.NewCarrier(link.CarrierConfig{RMB: mine.rmb.rmb, Wake: func() {}, SendBuffer: 1}); err != nil {
			b.Fatal(err)
		}
		size := wire.SizeCodeFor(known.Size)
		to := link.PeerRMBE{AlertToken: 1, RKey: known.RKey, Addr: known.VA, Index: uint8(2 + i/rmbs), Size: size}
		c.owner = g.conns.add(c)
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
		newSpread(g).moveAll(l)
		l.up = true
		newSpread(g).balance()
		if n := g.conns.on(l); n != count/2 {
			b.Errorf("%d connections are on the link that has come back, want %d", n, count/2)
		}
	}
	for _, c := range added {
		c.link.Detach()
		g.conns.forget(c.owner)
	}
	unlock()
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/round")
	for _, c := range conns {
		c.close()
	}
}
