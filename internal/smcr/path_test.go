package smcr

import (
	"net/netip"
	"testing"
)

// TestV1Network has a device outside of the network that a connection of version 1 is in: it is not offered there.
func TestV1Network(t *testing.T) {
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
		w := &Path{fabric: r.client, rnic: n, nets: []netip.Prefix{netip.MustParsePrefix(tt.net)}}
		w.openV1(r.addrs[0])
		if v1, v2 := w.ends(); (v1 != nil) != tt.want || v2 == nil {
			t.Errorf("in %s: version 1 %v, version 2 %v", tt.net, v1, v2)
		}
		if w.v1 != nil {
			w.v1.Release()
		}
	}
}

// TestVLANDevice has a device that is not on the interface of the TCP connection: in version 1 it is used in the same VLAN only.
func TestVLANDevice(t *testing.T) {
	r := newFabricRig(t, nil)
	r.client.cfg.V1 = true
	n, err := r.client.rnics.Acquire(r.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer n.Release()
	for _, vlan := range []uint16{5, 6} {
		r.client.rnics.VLAN = func(netip.Addr) uint16 { return vlan }
		w := &Path{fabric: r.client, local: r.addrs[1], nets: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, vlan: 5, rnic: n}
		w.openV1(r.addrs[0])
		if v1, v2 := w.ends(); v2 == nil || (v1 != nil) != (vlan == w.vlan) {
			t.Errorf("from VLAN %d to VLAN %d there are %v and %v", w.vlan, vlan, v1, v2)
		}
		if w.v1 != nil {
			w.v1.Release()
		}
	}
}
