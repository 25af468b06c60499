package rnic

import "testing"

func TestVLANOfInterface(t *testing.T) {
	if id := vlanOfInterface("lo"); id != 0 {
		t.Errorf("the loopback interface is in VLAN %d", id)
	}
}
