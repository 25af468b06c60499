package rnic

import (
	"net/netip"
	"testing"

	"github.com/gosmc/smc/internal/smctest"
)

func TestVLANOfInterface(t *testing.T) {
	if id := vlanOfInterface("lo"); id != 0 {
		t.Errorf("the loopback interface is in VLAN %d", id)
	}
}

// TestZoned has two interfaces with the same link-local address, as the VLANs of one adapter have: a device of ours is the one in the
// VLAN of the group's first device.
func TestZoned(t *testing.T) {
	cables := smctest.NewCables(t, 2)
	for _, name := range []string{"cable0", "cable1"} {
		cables.IP(0, "link set "+name+" addrgenmode none")
		cables.IP(0, "-6 addr flush dev "+name)
		cables.IP(0, "addr add fe80::77/64 dev "+name+" nodad")
	}
	s := newSet(t, Config{Namespace: cables.Run[0]})
	s.VLAN = func(addr netip.Addr) uint16 { // machines for tests may lack the kernel's module
		if addr == cables.Addr[1][0] || addr.Zone() == "cable1" {
			return 7
		}
		return 0
	}
	for i, want := range []string{"fe80::77%cable0", "fe80::77%cable1"} {
		n, err := s.Acquire(cables.Addr[i][0])
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Zoned(netip.MustParseAddr("fe80::77"), n); got.String() != want {
			t.Errorf("for the first device %v: %v, want %s", cables.Addr[i][0], got, want)
		}
		for _, same := range []string{"fe80::78", cables.Addr[i][0].String(), "2001:db8::77"} { // nobody's, or of one interface
			if got := s.Zoned(netip.MustParseAddr(same), n); got.String() != same {
				t.Errorf("%s has become %v", same, got)
			}
		}
		n.Release()
	}
}
