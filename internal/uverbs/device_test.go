package uverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/wire"
)

// sysfs returns a tree of sysfs as Linux 6.12 shows it: one rxe device, which is active, and an adapter, whose port is
// down.
func sysfs() fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range map[string]string{
		"infiniband_verbs/abi_version":              "6",
		"infiniband_verbs/uverbs0/ibdev":            "rxe0",
		"infiniband_verbs/uverbs0/abi_version":      "2",
		"infiniband_verbs/uverbs1/ibdev":            "mlx5_0",
		"infiniband_verbs/uverbs1/abi_version":      "1",
		"infiniband/rxe0/node_guid":                 "5054:00ff:fe00:0002",
		"infiniband/rxe0/fw_ver":                    "",
		"infiniband/rxe0/parent":                    "eth0",
		"infiniband/rxe0/ports/1/state":             "4: ACTIVE",
		"infiniband/rxe0/ports/1/link_layer":        "Ethernet",
		"infiniband/rxe0/ports/1/gids/0":            "fe80:0000:0000:0000:5054:00ff:fe00:0002",
		"infiniband/rxe0/ports/1/gids/1":            "0000:0000:0000:0000:0000:ffff:c0a8:4c02",
		"infiniband/rxe0/ports/1/gids/10":           "0000:0000:0000:0000:0000:0000:0000:0000",
		"infiniband/rxe0/ports/1/gids/2":            "fd00:0076:0000:0000:0000:0000:0000:0002",
		"infiniband/rxe0/ports/1/gid_attrs/types/0": "RoCE v2",
		"infiniband/rxe0/ports/1/gid_attrs/types/1": "RoCE v2",
		"infiniband/rxe0/ports/1/gid_attrs/types/2": "IB/RoCE v1",
		"infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "eth0",
		"infiniband/rxe0/ports/1/gid_attrs/ndevs/1": "eth0",
		"infiniband/rxe0/ports/1/gid_attrs/ndevs/2": "eth0",
		"infiniband/mlx5_0/node_guid":               "0002:c903:0000:0001",
		"infiniband/mlx5_0/fw_ver":                  "16.35.1012",
		"infiniband/mlx5_0/ports/1/state":           "1: DOWN",
		"infiniband/mlx5_0/ports/1/link_layer":      "Ethernet",
	} {
		m[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	m["infiniband/mlx5_0/device/driver"] = &fstest.MapFile{
		Data: []byte("../../../bus/pci/drivers/mlx5_core"), Mode: fs.ModeSymlink | 0o777,
	}
	return m
}

// TestDevices reads a tree of sysfs.
func TestDevices(t *testing.T) {
	got, err := readDevices(sysfs())
	gid := func(index int, text string, kind GIDType) GIDEntry {
		g, ok := parseGID(text)
		if !ok {
			t.Fatal(text)
		}
		return GIDEntry{Port: 1, Index: index, GID: g, Type: kind, Interface: "eth0"}
	}
	want := []Device{{
		Name: "mlx5_0", UVerbs: "uverbs1", ABI: 1, Driver: "mlx5_core", NodeGUID: "0002:c903:0000:0001", Firmware: "16.35.1012",
		Ports: []Port{{Number: 1, State: "DOWN", LinkLayer: "Ethernet"}},
	}, {
		Name: "rxe0", UVerbs: "uverbs0", ABI: 2, Driver: "rxe", NodeGUID: "5054:00ff:fe00:0002",
		Ports: []Port{{Number: 1, State: "ACTIVE", Active: true, LinkLayer: "Ethernet", GIDs: []GIDEntry{
			gid(0, "fe80:0000:0000:0000:5054:00ff:fe00:0002", GIDTypeRoCEv2),
			gid(1, "0000:0000:0000:0000:0000:ffff:c0a8:4c02", GIDTypeRoCEv2),
			gid(2, "fd00:0076:0000:0000:0000:0000:0000:0002", GIDTypeRoCEv1),
		}}},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("devices: %v\n%s", err, diff)
	}
	if got[1].Unused() != "" || got[1].Ports[0].GIDs[1].GID.String() != "192.168.76.2" {
		t.Errorf("rxe0: %q %v", got[1].Unused(), got[1].Ports[0].GIDs[1])
	}
	if got, err := readDevices(fstest.MapFS{}); err != nil || len(got) != 0 {
		t.Errorf("without RDMA: %v, %v", got, err)
	}
	many := fstest.MapFS{}
	for i := range maxDevices + 10 {
		many[fmt.Sprintf("infiniband/d%d/node_guid", i)] = &fstest.MapFile{}
	}
	if got, err := readDevices(many); err != nil || len(got) != maxDevices {
		t.Errorf("many: %d, %v", len(got), err)
	}
}

// TestUnused has a reason for each device that cannot be used.
func TestUnused(t *testing.T) {
	good := Device{Name: "rxe0", UVerbs: "uverbs0", Driver: "rxe", ABI: 2, Ports: []Port{{Number: 1, Active: true}}}
	if why := good.Unused(); why != "" {
		t.Errorf("rxe: %q", why)
	}
	for want, change := range map[string]func(*Device){
		"it has no file in /dev/infiniband; load the module ib_uverbs": func(d *Device) { d.UVerbs = "" },
		"its driver is unknown":                                 func(d *Device) { d.Driver = "" },
		"gosmc has no provider for the driver mlx5_core":        func(d *Device) { d.Driver = "mlx5_core" },
		"its driver has interface version 3, and gosmc knows 2": func(d *Device) { d.ABI = 3 },
		"no port is active":                                     func(d *Device) { d.Ports = []Port{{Number: 1}} },
	} {
		d := good
		change(&d)
		if got := d.Unused(); got != want {
			t.Errorf("Unused() = %q, want %q", got, want)
		}
	}
	mlx5 := good
	mlx5.Driver = "mlx5_core"
	if c, err := Open(mlx5); !errors.Is(err, ErrUnsupported) {
		t.Errorf("opening mlx5: %v, %v", c, err)
	}
}

// TestParseGID refuses all that is no GID of sysfs.
func TestParseGID(t *testing.T) {
	const text = "fe80:0000:0000:0000:5054:00ff:fe00:0002"
	if g, ok := parseGID(text); !ok || g != (wire.GID{0xfe, 0x80, 8: 0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 2}) {
		t.Errorf("parseGID(%q) = %v, %v", text, g, ok)
	}
	for n := range text {
		if g, ok := parseGID(text[:n]); ok {
			t.Errorf("parseGID(%q) = %v", text[:n], g)
		}
	}
	if g, ok := parseGID("xx80:0000:0000:0000:5054:00ff:fe00:0002"); ok {
		t.Errorf("letters: %v", g)
	}
}
