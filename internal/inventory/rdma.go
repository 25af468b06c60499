package inventory

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/uverbs"
)

// A KernelDevice is an RDMA device of the kernel, or a name in the configuration without a device.
type KernelDevice struct {
	Name     string       `json:"name"`      // in /sys/class/infiniband
	Driver   string       `json:"driver"`    // empty if unknown
	Firmware string       `json:"firmware"`  // empty in software
	NodeGUID string       `json:"node_guid"` // empty if unknown
	File     string       `json:"file"`      // in /dev/infiniband; empty if the kernel has none
	Named    bool         `json:"named"`     // the configuration names it
	Usable   bool         `json:"usable"`    // by this user now
	Why      string       `json:"why"`       // connections do not use it; empty if they may
	Remedy   string       `json:"remedy"`    // what to do about Why; empty if there is nothing
	Ports    []KernelPort `json:"ports"`
	Limits   *KernelLimit `json:"limits"` // null unless the device is usable
}

// A KernelPort is one port of a device.
type KernelPort struct {
	Port      int         `json:"port"`  // from 1
	State     string      `json:"state"` // such as "ACTIVE" or "DOWN"
	Active    bool        `json:"active"`
	LinkLayer string      `json:"link_layer"` // "Ethernet" or "InfiniBand"
	GIDs      []KernelGID `json:"gids"`
}

// A KernelGID is one entry of a port's GID table.
type KernelGID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`     // as an address
	Type   string `json:"type"`    // "IB", "RoCE v1", "RoCE v2"
	NetDev string `json:"net_dev"` // network interface; empty if there is none
}

// A KernelLimit has the limits of a device, as its driver states them.
type KernelLimit struct {
	QPs     int    `json:"qps"`
	QPWork  int    `json:"qp_work"` // work requests of a queue
	SGEs    int    `json:"sges"`    // pieces of memory of a work request
	CQs     int    `json:"cqs"`
	CQEs    int    `json:"cqes"` // completions of a completion queue
	MRs     int    `json:"mrs"`
	MRBytes uint64 `json:"mr_bytes"` // bytes of a memory region
	PDs     int    `json:"pds"`
}

// ConfiguredDevices is [KernelDevices] with the configuration that a program started now would have.
// The error tells of parts of the configuration that are not understood, too.
func ConfiguredDevices() ([]KernelDevice, error) {
	s, err := config.Load()
	list, kernelErr := KernelDevices(s.Devices)
	return list, errors.Join(err, kernelErr)
}

// KernelDevices lists the RDMA devices of the kernel, and the devices that the configuration names and
// the kernel does not have. devices has the values of the configuration's word 'device'. A device that
// may be usable is opened for a moment, for its limits. Texts are not printable.
func KernelDevices(devices []string) ([]KernelDevice, error) {
	_, names, err := config.ParseDevices(devices)
	list, listErr := uverbs.Devices()
	return kernelDevices(list, names, openLimits), errors.Join(err, listErr)
}

// openLimits opens a device for its limits.
func openLimits(d uverbs.Device) (uverbs.Limits, error) {
	c, err := uverbs.Open(d)
	if err != nil {
		return uverbs.Limits{}, err
	}
	defer c.Close()
	return c.Limits(), nil
}

func kernelDevices(
	list []uverbs.Device, names []string, limits func(uverbs.Device) (uverbs.Limits, error),
) []KernelDevice {
	devices := make([]KernelDevice, 0, len(list))
	for i := range list {
		d := newKernelDevice(&list[i])
		d.Named = slices.Contains(names, d.Name)
		d.examine(&list[i], limits)
		devices = append(devices, d)
	}
	for i, name := range names {
		is := func(d KernelDevice) bool { return d.Name == name }
		// rule: TestKernelDevices
		if !slices.ContainsFunc(devices, is) && !slices.Contains(names[:i], name) {
			devices = append(devices, KernelDevice{
				Name: name, Named: true, Ports: []KernelPort{},
				Why: "the kernel has no RDMA device of this name",
				Remedy: "correct the entry 'device rdma:" + name +
					"': the names are those in /sys/class/infiniband",
			})
		}
	}
	return devices
}

func newKernelDevice(d *uverbs.Device) KernelDevice {
	k := KernelDevice{
		Name: d.Name, Driver: d.Driver, Firmware: d.Firmware, NodeGUID: d.NodeGUID, Ports: []KernelPort{},
	}
	if d.UVerbs != "" {
		k.File = "/dev/infiniband/" + d.UVerbs
	}
	for _, p := range d.Ports {
		port := KernelPort{
			Port: int(p.Number), State: p.State, Active: p.Active, LinkLayer: p.LinkLayer,
			GIDs: []KernelGID{},
		}
		for _, e := range p.GIDs {
			port.GIDs = append(port.GIDs, KernelGID{e.Index, e.GID.String(), e.Type.String(), e.Interface})
		}
		k.Ports = append(k.Ports, port)
	}
	return k
}

// examine finds out whether the device can be used, and the reason why connections do not use it.
func (k *KernelDevice) examine(d *uverbs.Device, limits func(uverbs.Device) (uverbs.Limits, error)) {
	if k.Why, k.Remedy = obstacle(d); k.Why != "" {
		return
	}
	l, err := limits(*d)
	switch {
	case errors.Is(err, fs.ErrPermission): // rule: TestKernelDevices
		k.Why = "this user has no permission for " + k.File
		k.Remedy = "let the program's user read and write " + k.File
	case errors.Is(err, fs.ErrNotExist): // rule: TestKernelDevices
		k.Why = k.File + " does not exist here"
		k.Remedy = "give the container the file, or load the module ib_uverbs"
	case err != nil:
		k.Why = err.Error()
	default:
		k.Usable = true
		k.Limits = &KernelLimit{
			l.MaxQP, l.MaxQPWR, l.MaxSGE, l.MaxCQ, l.MaxCQE, l.MaxMR, l.MaxMRSize, l.MaxPD,
		}
		if !k.Named { // rule: TestKernelDevices
			k.Why = "the configuration does not name it"
			k.Remedy = "add to the configuration: device rdma:" + k.Name
		}
	}
}

// rocev2Type is the type of the GIDs that SMC-Rv2 needs, in a [KernelGID].
var rocev2Type = uverbs.GIDTypeRoCEv2.String()

// obstacle returns the reason, without opening it, for which a device cannot be used.
func obstacle(d *uverbs.Device) (why, remedy string) {
	active, rocev2 := false, false
	for _, p := range d.Ports {
		active = active || p.Active
		for _, e := range p.GIDs {
			rocev2 = rocev2 || p.Active && e.Type == uverbs.GIDTypeRoCEv2
		}
	}
	switch why = d.Unused(); {
	case d.UVerbs == "":
		return why, "sudo modprobe ib_uverbs"
	case why != "" && !active:
		return why, "set the network interface of the device up: ip link set INTERFACE up"
	case why == "" && !rocev2: // rule: TestKernelDevices
		return "no active port has a GID of RoCEv2, which SMC-R needs",
			"give the network interface of the device an address"
	}
	return why, ""
}
