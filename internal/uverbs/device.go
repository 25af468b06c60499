package uverbs

import (
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gosmc/smc/wire"
)

// A Device is an RDMA device of the kernel, as sysfs describes it.
type Device struct {
	Name     string // such as "rxe0"
	UVerbs   string // of its file in /dev/infiniband, such as "uverbs0"; empty if programs cannot use it
	ABI      int    // version of the layout that the driver shares with programs
	Driver   string // such as "rxe" or "mlx5_core"; empty if unknown
	NodeGUID string // such as "5054:00ff:fe00:0002"
	Firmware string // version of the firmware; empty in software
	Ports    []Port // sorted by number
}

// A Port is one port of a [Device].
type Port struct {
	Number    uint8 // from 1
	Active    bool  // it can send and receive
	State     string
	LinkLayer string     // "Ethernet" or "InfiniBand"
	GIDs      []GIDEntry // those that are set, sorted by index
}

// driverNameRXE is the name of the driver whose queues this package knows.
const driverNameRXE = "rxe"

// Unused returns the reason for which this package cannot use the device now, and "" if it can.
func (d *Device) Unused() string {
	switch {
	case d.UVerbs == "":
		return "it has no file in /dev/infiniband; load the module ib_uverbs"
	case d.Driver == "":
		return "its driver is unknown"
	case d.Driver != driverNameRXE: // rule: TestUnused
		return "gosmc has no provider for the driver " + d.Driver
	case d.ABI != rxeABI:
		return fmt.Sprintf("its driver has interface version %d, and gosmc knows %d", d.ABI, rxeABI)
	case !slices.ContainsFunc(d.Ports, func(p Port) bool { return p.Active }):
		return "no port is active"
	}
	return ""
}

// Devices lists the RDMA devices of the kernel, sorted by name. It needs no privilege. Without RDMA
// in the kernel the list is empty.
func Devices() ([]Device, error) { return readDevices(os.DirFS("/sys/class")) }

// readDevices lists the devices of a sysfs; the root of the tree is /sys/class.
func readDevices(sys fs.FS) ([]Device, error) {
	names, err := readDir(sys, "infiniband")
	if err != nil || len(names) == 0 {
		return nil, err
	}
	nodes, err := readDir(sys, "infiniband_verbs")
	if err != nil {
		return nil, err
	}
	var list []Device
	for _, name := range names[:min(len(names), maxDevices)] {
		dir := path.Join("infiniband", name)
		d := Device{
			Name: name, Driver: readDriver(sys, dir),
			NodeGUID: readAttribute(sys, path.Join(dir, "node_guid")),
			Firmware: readAttribute(sys, path.Join(dir, "fw_ver")),
			Ports:    readPorts(sys, dir),
		}
		for _, node := range nodes {
			at := path.Join("infiniband_verbs", node)
			if readAttribute(sys, path.Join(at, "ibdev")) == name {
				d.UVerbs = node
				d.ABI, _ = strconv.Atoi(readAttribute(sys, path.Join(at, "abi_version")))
			}
		}
		list = append(list, d)
	}
	return list, nil
}

// readDriver returns the name of a device's driver. An rxe device has no hardware beneath, and
// names its network interface in the file parent. The driver of others is that of the device
// beneath.
func readDriver(sys fs.FS, dir string) string {
	if link, err := fs.ReadLink(sys, path.Join(dir, "device", "driver")); err == nil {
		return path.Base(link)
	}
	if readAttribute(sys, path.Join(dir, "parent")) != "" {
		return driverNameRXE
	}
	return ""
}

func readPorts(sys fs.FS, dir string) (list []Port) {
	names, err := readDir(sys, path.Join(dir, "ports"))
	if err != nil {
		return nil
	}
	for _, name := range names {
		number, err := strconv.ParseUint(name, 10, 8)
		if err != nil || number == 0 {
			continue
		}
		at := path.Join(dir, "ports", name)
		number4, state, _ := strings.Cut(readAttribute(sys, path.Join(at, "state")), ": ")
		list = append(list, Port{
			Number: uint8(number), State: state, Active: number4 == "4",
			LinkLayer: readAttribute(sys, path.Join(at, "link_layer")),
			GIDs:      readGIDs(sys, at, uint8(number)),
		})
	}
	slices.SortFunc(list, func(a, b Port) int { return int(a.Number) - int(b.Number) })
	return list
}

func readGIDs(sys fs.FS, at string, port uint8) (list []GIDEntry) {
	names, err := readDir(sys, path.Join(at, "gids"))
	if err != nil {
		return nil
	}
	for _, name := range names[:min(len(names), maxGIDs)] {
		index, err := strconv.ParseUint(name, 10, 16)
		gid, ok := parseGID(readAttribute(sys, path.Join(at, "gids", name)))
		if err != nil || !ok || gid.IsZero() {
			continue
		}
		e := GIDEntry{Port: port, Index: int(index), GID: gid}
		e.Interface = readAttribute(sys, path.Join(at, "gid_attrs", "ndevs", name))
		switch text := readAttribute(sys, path.Join(at, "gid_attrs", "types", name)); text {
		case "IB/RoCE v1":
			if e.Interface != "" {
				e.Type = GIDTypeRoCEv1
			}
		case GIDTypeRoCEv2.String():
			e.Type = GIDTypeRoCEv2
		default:
			continue // the entry has changed since its GID was read
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b GIDEntry) int { return a.Index - b.Index })
	return list
}

// parseGID decodes a GID as sysfs shows it: eight groups of four hexadecimal digits.
func parseGID(text string) (g wire.GID, ok bool) {
	const digits = 8*4 + 7
	if len(text) != digits {
		return g, false
	}
	b, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(b) != len(g) {
		return g, false
	}
	return wire.GID(b), true
}

// readDir returns the names in a directory of sysfs, and none if there is no such directory.
func readDir(sys fs.FS, name string) (names []string, err error) {
	entries, err := fs.ReadDir(sys, name)
	if err != nil {
		if _, statErr := fs.Stat(sys, name); statErr != nil {
			return nil, nil
		}
		return nil, err
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// readAttribute returns the text of a file of sysfs, and "" if it cannot be read.
func readAttribute(sys fs.FS, name string) string {
	f, err := sys.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAttribute))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
