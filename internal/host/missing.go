package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/wire/clc"
)

// What is missing for SMC with other machines, for those who ask why there is none.

// smcrStatus says for both versions of SMC-R all that is missing. option is what there is of TCP option 254.
func (h *Host) smcrStatus(option control.Capability) (v1, v2 control.Capability) {
	if h.cfg.Disabled {
		r := clc.Lookup(clc.DiagDisabled, clc.OSUnspecified)
		v1 = control.Capability{Why: r.Sentence, Advice: r.Advice}
		return v1, v1
	}
	both := h.rnics.missing()
	if len(h.peerRules) == 0 && !option.Available {
		both = append(both, "no peer is configured, and there is no agent to ask peers by TCP option 254")
	}
	var ofV1, ofV2 []string
	if len(h.ueids) == 0 {
		ofV2 = append(ofV2, "no UEID is configured, which SMC with another machine needs")
		v2.Advice = "A UEID is configured by 'gosmc ueid add NAME', GOSMC_UEIDS, or the program; peers are by 'peer' in the file that 'gosmc ueid --help' describes."
	}
	if !h.cfg.SMCRv1 {
		ofV1 = append(ofV1, "switched off, since stock Linux speaks it over RoCEv1 only")
	}
	say := func(c *control.Capability, missing []string) {
		c.Why = strings.Join(append(missing, both...), "; ")
		c.Available = c.Why == ""
	}
	say(&v1, ofV1)
	say(&v2, ofV2)
	return v1, v2
}

// missing says what keeps devices from being opened, as far as that is known without opening one.
func (r *rnics) missing() (list []string) {
	r.host.cfg.Namespace(func() {
		if !r.anyAddress() {
			if len(r.allowed) > 0 {
				list = append(list, "no device: no address of this machine is among those that are configured")
			} else {
				list = append(list, "no device: no interface but loopback is up and has an address")
			}
		}
		if r.host.cfg.RDMA.Port == 0 && rxeHasPort() {
			list = append(list, "the kernel's rdma_rxe holds UDP port 4791 of all addresses")
		}
	})
	for _, d := range r.status() {
		if d.State != "ACTIVE" {
			list = append(list, fmt.Sprintf("no device at %s: %s", d.Address, d.Why))
		}
	}
	return list
}

// anyAddress reports whether this machine has an address for a device.
func (r *rnics) anyAddress() bool {
	ifaces, err := net.Interfaces()
	if err != nil {
		return true // who knows
	}
	for _, iface := range ifaces {
		addrs, _ := iface.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			switch {
			case err != nil || iface.Flags&net.FlagUp == 0:
			case len(r.allowed) > 0:
				if r.allows(p.Addr().Unmap()) {
					return true
				}
			case iface.Flags&net.FlagLoopback == 0 && !p.Addr().IsLinkLocalUnicast():
				return true
			}
		}
	}
	return false
}

// rxeHasPort reports whether the kernel's software RNIC is there and has the port: it takes that of all addresses, which no program that
// shares it does.
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

// hasWildcard reports whether a table of UDP sockets, as proc_pid_net(5) has it, has one on UDP port 4791 of all addresses.
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
