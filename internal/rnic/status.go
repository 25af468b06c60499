package rnic

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/gosmc/smc/internal/control"
)

// Port is the port number of every device: a software device is an address and has no other.
const Port = 1

// Status describes the open devices, and the addresses whose devices could not be opened.
func (s *Set) Status() []control.StatusDevice {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]control.StatusDevice, 0, len(s.open)+len(s.failed))
	for _, n := range s.open {
		list = append(list, n.status())
	}
	for addr, f := range s.failed {
		list = append(list, control.StatusDevice{
			Address: addr.String(), Port: Port, State: "FAILED", Type: softwareType, PNETID: s.PNETIDOf(addr),
			Why: s.cfg.Diagnose(f.err) + " (" + f.err.Error() + ")",
		})
	}
	slices.SortFunc(list, func(a, b control.StatusDevice) int {
		x, _ := netip.ParseAddr(a.Address)
		y, _ := netip.ParseAddr(b.Address)
		return cmp.Or(x.Compare(y), cmp.Compare(a.Address, b.Address))
	})
	return list
}

// softwareType is the type of devices in software, on UDP.
const softwareType = "RoCEv2"

func (n *Device) status() control.StatusDevice {
	stats := n.dev.Stats()
	us := n.RNIC()
	s := control.StatusDevice{
		NetDev: n.dev.Interface(), Address: n.dev.Addr().String(), Port: Port, State: "ACTIVE", Type: n.dev.Type(),
		GID: us.GID.String(), MAC: us.MAC.String(), MTU: n.dev.MTU().Bytes(), PNETID: n.all.pnetID(n.dev.Interface()),
		RcvdPackets: stats.RcvdPackets, BadICRC: stats.BadICRC, UnknownQP: stats.UnknownQP, SendErrors: stats.SendErrors,
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Links = len(n.links)
	for u := range n.links {
		s.Critical = s.Critical || u.Critical()
	}
	if n.down != "" {
		s.State, s.Why = "DOWN", n.down
	}
	return s
}

// Missing returns the obstacles to opening devices, as far as that is known without opening one.
func (s *Set) Missing() (list []string) {
	s.cfg.Namespace(func() {
		if !s.anyAddress() {
			if len(s.cfg.Allowed) > 0 {
				list = append(list, "no device: no address of this machine is among those that are configured")
			} else {
				list = append(list, "no device: no interface but loopback is up and has an address")
			}
		}
		if s.cfg.RDMA.Port == 0 && len(s.cfg.Kernel) == 0 && rxeHasPort() {
			list = append(list, "the kernel's rdma_rxe holds UDP port 4791 of all addresses")
		}
	})
	for _, d := range s.Status() {
		if d.State != "ACTIVE" {
			list = append(list, fmt.Sprintf("no device at %s: %s", d.Address, d.Why))
		}
	}
	return list
}

// anyAddress reports whether this machine has an address for a device.
func (s *Set) anyAddress() bool {
	ifaces, err := net.Interfaces()
	if err != nil {
		return true // unknown
	}
	for _, iface := range ifaces {
		addrs, _ := iface.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			switch {
			case err != nil || iface.Flags&net.FlagUp == 0:
			case len(s.cfg.Allowed) > 0:
				if s.allows(p.Addr().Unmap()) {
					return true
				}
			case iface.Flags&net.FlagLoopback == 0 && !p.Addr().IsLinkLocalUnicast():
				return true
			}
		}
	}
	return false
}

// rxeHasPort reports whether the kernel's software RNIC is there and has the port: it takes the
// port of all addresses, which no program that shares it does.
func rxeHasPort() bool {
	if _, err := os.Stat("/sys/module/rdma_rxe"); errors.Is(err, os.ErrNotExist) {
		return false
	}
	for _, name := range []string{"/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"} {
		if text, err := os.ReadFile(name); err == nil && hasWildcard(string(text)) {
			return true
		}
	}
	return false
}

// hasWildcard reports whether a table of UDP sockets, as proc_pid_net(5) has it, has one on UDP
// port 4791 of all addresses.
func hasWildcard(table string) bool {
	const port = ":12B7"
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 1 {
			if address, ok := strings.CutSuffix(fields[1], port); ok && strings.Trim(address, "0") == "" {
				return true
			}
		}
	}
	return false
}
