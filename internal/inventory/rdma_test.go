package inventory

import (
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/uverbs"
	"github.com/gosmc/smc/wire"
)

// TestKernelDevices has each reason for which a device is not used.
func TestKernelDevices(t *testing.T) {
	gid := func(kind uverbs.GIDType) uverbs.GIDEntry {
		a := wire.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
		return uverbs.GIDEntry{Port: 1, Index: 1, GID: a, Type: kind, Interface: "eth0"}
	}
	device := func(name string, change func(*uverbs.Device)) uverbs.Device {
		d := uverbs.Device{Name: name, UVerbs: "uverbs0", ABI: 2, Driver: "rxe", Ports: []uverbs.Port{{
			Number: 1, Active: true, State: "ACTIVE", LinkLayer: "Ethernet",
			GIDs: []uverbs.GIDEntry{gid(uverbs.GIDTypeRoCEv2)},
		}}}
		if change != nil {
			change(&d)
		}
		return d
	}
	list := []uverbs.Device{
		device("good", nil), device("unnamed", nil), device("denied", nil), device("nofile", nil),
		device("broken", nil),
		device("module", func(d *uverbs.Device) { d.UVerbs = "" }),
		device("mlx", func(d *uverbs.Device) { d.Driver = "mlx5_core" }),
		device("down", func(d *uverbs.Device) { d.Ports[0].Active, d.Ports[0].State = false, "DOWN" }),
		device("v1", func(d *uverbs.Device) { d.Ports[0].GIDs[0].Type = uverbs.GIDTypeRoCEv1 }),
	}
	names := []string{"v1", "gone", "down", "mlx", "module", "nofile", "denied", "good", "broken", "gone"}
	var opened []string
	got := kernelDevices(list, names, func(d uverbs.Device) (uverbs.Limits, error) {
		opened = append(opened, d.Name)
		switch d.Name {
		case "denied":
			return uverbs.Limits{}, &os.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}
		case "nofile":
			return uverbs.Limits{}, &os.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
		case "broken":
			return uverbs.Limits{}, uverbs.ErrKernel
		}
		return uverbs.Limits{MaxQP: 7, MaxMRSize: 1 << 40}, nil
	})
	want := []struct{ name, why string }{
		{"good", ""}, {"unnamed", "does not name it"},
		{"denied", "no permission for /dev/infiniband/uverbs0"},
		{"nofile", "/dev/infiniband/uverbs0 does not exist"}, {"broken", "impossible answer"},
		{"module", "load the module"}, {"mlx", "no provider for the driver mlx5_core"},
		{"down", "no port is active"}, {"v1", "no active port has a GID of RoCEv2"},
		{"gone", "no RDMA device of this name"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d devices, want %d: %+v", len(got), len(want), got)
	}
	for i, w := range want {
		d := got[i]
		usable := w.name == "good" || w.name == "unnamed"
		if d.Name != w.name || (w.why == "") != (d.Why == "") || !strings.Contains(d.Why, w.why) ||
			d.Usable != usable || (d.Limits != nil) != usable || d.Named != (w.name != "unnamed") || d.Ports == nil {
			t.Errorf("%+v, want %+v", d, w)
		}
	}
	want0 := KernelGID{1, "192.0.2.1", "RoCE v2", "eth0"}
	if p := got[0].Ports; len(p) != 1 || len(p[0].GIDs) != 1 || p[0].GIDs[0] != want0 {
		t.Errorf("ports %+v", p)
	}
	if got[0].Limits.QPs != 7 || got[0].Limits.MRBytes != 1<<40 {
		t.Errorf("limits %+v", got[0].Limits)
	}
	// Those that cannot be used are not opened.
	if !slices.Equal(opened, []string{"good", "unnamed", "denied", "nofile", "broken"}) {
		t.Errorf("opened: %v", opened)
	}
	if _, err := KernelDevices([]string{"rdma:../x"}); err == nil {
		t.Error("an entry that is not understood gives no error")
	}
}
