package config

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestParseDevices reads addresses, and names of devices of the kernel.
func TestParseDevices(t *testing.T) {
	prefixes, names, err := ParseDevices([]string{"192.0.2.1", "rdma:rxe0", "2001:db8::/32", "rdma:mlx5_0"})
	want := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/32")}
	if err != nil || !slices.Equal(prefixes, want) || !slices.Equal(names, []string{"rxe0", "mlx5_0"}) {
		t.Errorf("%v %v, %v", prefixes, names, err)
	}
	for _, bad := range []string{"rxe0", "rdma:", "rdma:../x", "rdma:a b", "rdma:.", "RDMA:rxe0", "rdma", "rdma:-x", "rdma:" + strings.Repeat("x", 64)} {
		if _, _, err := ParseDevices([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
		if err := Check(Device, bad); err == nil {
			t.Errorf("Check takes %q", bad)
		}
	}
	if err := Check(Device, "rdma:rxe0"); err != nil {
		t.Error(err)
	}
}
