package host

import (
	"fmt"
	"testing"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// TestRNICFlaps has the interface of the only link go down and come back again and again, each time for less than it is waited for. That it
// is down again when the time of an earlier outage is over ends nothing; what ends the link is an outage that lasts.
func TestRNICFlaps(t *testing.T) {
	r := newFabricRig(t, nil)
	var over []func() // the time of each outage
	r.client.rnicPatience = func(f func()) { over = append(over, f) }
	c, s := r.connect()
	g := c.binding.group
	flap := func(kinds ...rdma.EventKind) {
		for _, kind := range kinds {
			g.rnic.HandleEvent(&rdma.Event{Kind: kind})
		}
	}
	flap(rdma.EventInterfaceDown, rdma.EventInterfaceUp, rdma.EventInterfaceDown)
	over[0]()
	flap(rdma.EventInterfaceUp)
	over[1]()
	exchange(t, c, s)
	flap(rdma.EventInterfaceDown)
	over[2]()
	<-g.stopped
	checkOneEnd(t, r.client, "link group: link failed: "+rnic.ErrDown.Error())
	c.close()
	s.close()
}

// TestSMCRFlap takes the interface and the address of a device away and gives them back: connections go on.
func TestSMCRFlap(t *testing.T) {
	r := newFabricCables(t, 1, clc.V2)
	for _, f := range []*smcrFabric{r.client, r.server} {
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

// TestSMCRAllDown has the interfaces of all links go down at once: one link is waited for, and the connections go on over that when its interface is
// back in time.
func TestSMCRAllDown(t *testing.T) {
	r := newFabricCables(t, 2, clc.V2)
	waited := 0
	r.client.rnicPatience = func(func()) { waited++ }
	c, s := r.connect()
	r.upLinks(s, 2)
	g, links := r.upLinks(c, 2)
	g.mu.Lock() // nothing is done about the first one before the second one is known to be down
	for _, l := range links {
		l.RNICEvent(0, fmt.Errorf("%w: %v", rnic.ErrDown, rdma.EventInterfaceDown))
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
