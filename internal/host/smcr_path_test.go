package host

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// TestSMCRv1Network has a device outside of the network that a connection of version 1 is in: it is not offered there.
func TestSMCRv1Network(t *testing.T) {
	r := newFabricRig(t, nil)
	r.client.cfg.V1 = true
	n, err := r.client.rnics.Acquire(r.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	for _, tt := range []struct {
		net  string
		want bool
	}{{"127.0.0.0/8", true}, {"192.0.2.0/24", false}} {
		w := &smcrPath{fabric: r.client, rnic: n, nets: []netip.Prefix{netip.MustParsePrefix(tt.net)}}
		w.openV1(r.addrs[0])
		if v1, v2 := w.ends(); (v1 != nil) != tt.want || v2 == nil {
			t.Errorf("in %s: version 1 %v, version 2 %v", tt.net, v1, v2)
		}
		if w.v1 != nil {
			w.v1.Release()
		}
	}
}

// TestSMCRVLANDevice has a device that is not on the interface of the TCP connection: in version 1 it is used in the same VLAN only.
func TestSMCRVLANDevice(t *testing.T) {
	r := newFabricRig(t, nil)
	r.client.cfg.V1 = true
	n, err := r.client.rnics.Acquire(r.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	for _, vlan := range []uint16{5, 6} {
		r.client.rnics.VLAN = func(netip.Addr) uint16 { return vlan }
		w := &smcrPath{fabric: r.client, local: r.addrs[1], nets: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, vlan: 5, rnic: n}
		w.openV1(r.addrs[0])
		if v1, v2 := w.ends(); v2 == nil || (v1 != nil) != (vlan == w.vlan) {
			t.Errorf("from VLAN %d to VLAN %d there are %v and %v", w.vlan, vlan, v1, v2)
		}
		if w.v1 != nil {
			w.v1.Release()
		}
	}
}

// The reason of a device that could not be opened says why.
func TestRNICReason(t *testing.T) {
	r := newFabricRig(t, nil)
	n, err := r.client.rnics.Acquire(r.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	_, taken := r.server.rnics.Acquire(r.addrs[0])
	_, foreign := r.client.rnics.Acquire(netip.MustParseAddr("192.0.2.1"))
	n.HandleEvent(&rdma.Event{Kind: rdma.EventInterfaceDown})
	_, down := r.client.rnics.Acquire(r.addrs[0])
	n.Release()
	r.client.close(true)
	_, closed := r.client.rnics.Acquire(r.addrs[0])
	for _, tt := range []struct {
		err  error
		want clc.Diagnosis
	}{
		{taken, clc.DiagPortInUse}, {foreign, clc.DiagNoSMCRDevice}, {down, clc.DiagRNICDown}, {closed, clc.DiagClosing},
		{&port.RefusedError{}, clc.DiagPortInUse},
	} {
		if tt.err == nil || rnicReason(tt.err) != tt.want {
			t.Errorf("rnicReason(%v) = %v, want %v", tt.err, rnicReason(tt.err), tt.want)
		}
	}
}

// TestSMCRNamedLink has a server name the second link of a group: so does the client, with the RKey on that one. Linux net/smc takes the RKey
// of a Confirm for one of the link that its Accept has named, and writes with it over that.
func TestSMCRNamedLink(t *testing.T) {
	r := newFabricCables(t, 2, clc.V2)
	first, firstPeer := r.connect()
	g, links := r.upLinks(firstPeer, 2)
	r.upLinks(first, 2)
	g.mu.Lock()
	g.links[0], g.links[1] = links[1], links[0] // a server names the first one
	second := g.links[0]
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
	transfer(t, c, s, 1<<20)
	for _, e := range []*fabricEnd{c, s, first, firstPeer} {
		e.close()
	}
}

// TestSMCRQuiet has connections ask for tests of their link: the shortest time counts, for as long as its connection lasts.
func TestSMCRQuiet(t *testing.T) {
	r := newFabricRig(t, nil)
	r.client.cfg.KeepAlive, r.server.cfg.KeepAlive = -1, -1
	c, s := r.connect()
	other, otherPeer := r.connect()
	g := c.binding.group
	check := func(what string, want time.Duration) {
		t.Helper()
		g.mu.Lock()
		defer g.mu.Unlock()
		if got := g.ctl.TestInterval(); got != want {
			t.Errorf("%s: the link is tested after %v, want %v", what, got, want)
		}
	}
	check("at first", 0)
	other.binding.SetQuiet(60 * time.Second)
	check("one asks", 60*time.Second)
	c.binding.SetQuiet(10 * time.Second)
	check("another one asks for less", 10*time.Second)
	c.binding.SetQuiet(600 * time.Second)
	check("it asks for more", 60*time.Second)
	c.binding.SetQuiet(30 * time.Second)
	c.binding.SetQuiet(0)
	check("it does not ask any more", 60*time.Second)
	other.close()
	smctest.Eventually(t, fabricPatience, "nobody asks after the connection has ended", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.ctl.TestInterval() == 0
	})
	for _, e := range []*fabricEnd{c, s, otherPeer} {
		e.close()
	}
}
