// Command uverbs runs in the guest, on internal/uverbs and the RDMA devices of its kernel.
//
//	uverbs list                      the devices, and the reason for each one that cannot be used
//	uverbs loop DEVICE               two queue pairs of one device move data to each other, and every byte is compared
//	uverbs errors DEVICE             work that must fail does, with the right status
//	uverbs down DEVICE INTERFACE     the interface goes down and comes up: the events
//	uverbs removed DEVICE            the device is removed while it is used: the event, and no hang
//
// It prints one line for each part and exits with 0 if all is well.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/gosmc/smc/internal/uverbs"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println("uverbs:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "list":
		return list()
	case len(args) == 2 && args[0] == "loop":
		return with(args[1], true, loop)
	case len(args) == 2 && args[0] == "errors":
		return with(args[1], true, mistakes)
	case len(args) == 3 && args[0] == "down":
		return with(args[1], true, func(c *uverbs.Context) error { return down(c, args[2]) })
	case len(args) == 2 && args[0] == "removed":
		return with(args[1], false, removed)
	}
	return errors.New("usage: see the source")
}

func list() error {
	devices, err := uverbs.Devices()
	if err != nil {
		return err
	}
	for _, d := range devices {
		fmt.Printf("%s %s driver=%s abi=%d guid=%s unused=%q\n", d.Name, d.UVerbs, d.Driver, d.ABI, d.NodeGUID, d.Unused())
		for _, p := range d.Ports {
			for _, g := range p.GIDs {
				fmt.Printf("%s port=%d active=%v gid=%d %v %v %s\n", d.Name, p.Number, p.Active, g.Index, g.GID, g.Type, g.Interface)
			}
		}
	}
	return nil
}

// with opens a device, and closes it after f. If remains, the device is there after f, and f must have left no object of
// the kernel: the context is open still, so nothing but f has released any.
func with(name string, remains bool, f func(*uverbs.Context) error) error {
	devices, err := uverbs.Devices()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(devices, func(d uverbs.Device) bool { return d.Name == name })
	if i < 0 {
		return fmt.Errorf("no device %s among %d", name, len(devices))
	}
	if why := devices[i].Unused(); why != "" {
		return fmt.Errorf("%s: %s", name, why)
	}
	c, err := uverbs.Open(devices[i])
	if err != nil {
		return err
	}
	before := ""
	if remains {
		if before, err = resources(name); err != nil {
			return err
		}
	}
	if err := f(c); err != nil {
		return errors.Join(err, c.Close())
	}
	if remains {
		after, err := resources(name)
		if err != nil {
			return err
		}
		if after != before {
			return fmt.Errorf("the kernel has %q, and had %q", after, before)
		}
	}
	return c.Close()
}

// resources returns the kernel's numbers of objects of a device.
func resources(name string) (string, error) {
	out, err := exec.Command("/bin/rdma", "resource", "show", name).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil || text == "" {
		return "", fmt.Errorf("rdma resource show %s: %w: %s", name, err, text)
	}
	return text, nil
}
