package smcr

import (
	"fmt"
	"sync"
	"testing"

	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestCountedOnce takes a link that is lost out of those that count, which its device and the group may do at once: it was one.
func TestCountedOnce(t *testing.T) {
	for range 20_000 {
		g := &group{}
		links := []*groupLink{{group: g}, {group: g}, {group: g}}
		for _, l := range links {
			l.counts.Store(true)
		}
		g.links.upCount.Store(int32(len(links)))
		var both sync.WaitGroup
		both.Go(func() { links[0].spare() })
		both.Go(links[0].countOut)
		both.Wait()
		links[0].countOut()
		if n := g.links.upCount.Load(); n != 2 {
			t.Fatalf("%d links count, want 2", n)
		}
	}
}

// TestFlaps has the interface of the only link go down and come back again and again, each time for
// less than it is waited for. That it is down again when the time of an earlier outage is over ends
// nothing; only an outage that lasts ends the link.
func TestFlaps(t *testing.T) {
	r := newFabricRig(t, nil)
	var over []func() // the time of each outage
	r.client.rnicPatience = func(f func()) { over = append(over, f) }
	c, s := r.connect()
	g := c.binding.group
	flap := func(kinds ...verbs.EventKind) {
		for _, kind := range kinds {
			g.rnic.HandleEvent(&verbs.Event{Kind: kind})
		}
	}
	flap(verbs.EventInterfaceDown, verbs.EventInterfaceUp, verbs.EventInterfaceDown)
	over[0]()
	flap(verbs.EventInterfaceUp)
	over[1]()
	exchange(t, c, s)
	flap(verbs.EventInterfaceDown)
	over[2]()
	<-g.loop.stopped
	checkEnd(t, r.client, "link group: link failed: "+rnic.ErrDown.Error())
	c.close()
	s.close()
}

// TestFlap takes the interface and the address of a device away and gives them back: connections go on.
func TestFlap(t *testing.T) {
	r := newFabricCables(t, 1, clc.V2)
	for _, f := range []*Fabric{r.client, r.server} {
		f.rnicPatience = func(func()) {} // however slow the machine
	}
	c, s := r.connect()
	n := c.binding.group.rnic
	addr := r.addrs[0].String() + "/24 dev cable0"
	for _, tt := range []struct{ down, up string }{
		{"link set cable0 down", "link set cable0 up"},
		{"addr del " + addr, "addr add " + addr},
	} {
		r.cables.IP(0, tt.down)
		smctest.Eventually(t, fabricPatience, tt.down, n.IsDown)
		r.cables.IP(0, tt.up)
		smctest.Eventually(t, fabricPatience, tt.up, func() bool { return !n.IsDown() })
		exchange(t, c, s)
	}
	c.close()
	s.close()
}

// TestAllDown has the interfaces of all links go down at once: one link is waited for, and the connections go on over that when its interface is
// back in time.
func TestAllDown(t *testing.T) {
	r := newFabricCables(t, 2, clc.V2)
	waited := 0
	r.client.rnicPatience = func(func()) { waited++ }
	c, s := r.connect()
	r.upLinks(s, 2)
	g, links := r.upLinks(c, 2)
	g.mu.Lock() // nothing is done about the first one before the second one is known to be down
	for _, l := range links {
		l.RNICEvent(0, fmt.Errorf("%w: %v", rnic.ErrDown, verbs.EventInterfaceDown))
	}
	left := 0
	for _, l := range links {
		if l.net.Err() == nil {
			left++
		}
	}
	g.mu.Unlock()
	if left != 1 || waited != 1 {
		t.Errorf("%d links are left whose interfaces go down at once, and %d waited for, want one", left, waited)
	}
	exchange(t, c, s)
	c.close()
	s.close()
}

// TestNamedLink has a server name the second link of a group: so does the client, with the RKey on
// that one. Linux net/smc takes the RKey of a Confirm for one of the link that its Accept has
// named, and writes with it over that. The address of an Accept may have another form than the
// address in the message with which the link was made: "leftmost 3 words of zeros" (SMCv2 pp.57-59
// note 4).
func TestNamedLink(t *testing.T) {
	r := newFabricCables(t, 2, clc.V2)
	first, firstPeer := r.connect()
	g, links := r.upLinks(firstPeer, 2)
	r.upLinks(first, 2)
	g.mu.Lock()
	g.links.all[0], g.links.all[1] = links[1], links[0] // a server names the first one
	second := g.links.all[0]
	g.mu.Unlock()
	confirms := 0
	r.see = func(m clc.Message) {
		c, ok := m.(clc.Confirm)
		if !ok {
			return
		}
		confirms++
		g.mu.Lock()
		defer g.mu.Unlock()
		if second.num != 2 || c.R.QPN != second.peerQPN || c.R.GID.Addr() != second.peer {
			t.Errorf("the Confirm names %v, queue pair %v; want those of link %d: %v, %v", c.R.GID, c.R.QPN, second.num, second.peer, second.peerQPN)
		}
	}
	c, s := r.connect()
	if confirms != 1 {
		t.Errorf("%d Confirms, want one", confirms)
	}
	ours, links := r.upLinks(c, 2)
	for _, l := range links {
		aligned := wire.GID{}
		copy(aligned[12:], l.peer.AsSlice())
		if got := ours.links.named(&clc.ParamsR{GID: aligned, QPN: l.peerQPN}); got != l {
			t.Errorf("an Accept with %x names link %d, want %d", aligned, got.num, l.num)
		}
	}
	transfer(t, c, s, 1<<20)
	for _, e := range []*fabricEnd{c, s, first, firstPeer} {
		e.close()
	}
}
