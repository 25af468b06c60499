package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Peers are the rules by which an operator says which TCP connections are with hosts that speak CLC.
type Peers []peerRule

// A peerRule is about the TCP connections to or from an address, where the server's port is the
// given one, or any for 0.
type peerRule struct {
	prefix netip.Prefix
	port   uint16
}

// parsePeer reads a rule: an address or prefix, and a port if it is not for all. With a port, IPv6 is
// in brackets, as in "[2001:db8::/32]:443".
func parsePeer(s string) (peerRule, error) {
	fail := func(err error) (peerRule, error) {
		return peerRule{}, fmt.Errorf("%q is no address or prefix with or without a port: %w", s, err)
	}
	var r peerRule
	address, port := s, ""
	if rest, ok := strings.CutPrefix(s, "["); ok {
		if address, port, ok = strings.Cut(rest, "]"); !ok {
			return fail(fmt.Errorf("a bracket is missing"))
		}
		if port != "" && port[0] != ':' {
			return fail(fmt.Errorf("no colon after the bracket"))
		}
		port = strings.TrimPrefix(port, ":")
		if port == "" {
			return fail(fmt.Errorf("no port after the bracket"))
		}
	} else if strings.Count(s, ":") == 1 {
		address, port, _ = strings.Cut(s, ":")
	}
	if port != "" || strings.HasSuffix(s, ":") && address != s {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return fail(fmt.Errorf("port %q is not in the range of 1 to 65535", port))
		}
		r.port = uint16(n)
	}
	prefix, err := parsePrefix(address)
	if err != nil {
		return fail(err)
	}
	r.prefix = prefix
	return r, nil
}

// parsePrefix reads a prefix, or an address as the prefix that has it alone.
func parsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, err
		}
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, err
	}
	return p.Masked(), nil
}

// ParsePeers reads rules: each is an address or prefix, with the server's port or without.
func ParsePeers(list []string) (Peers, error) {
	var rules Peers
	for _, s := range list {
		r, err := parsePeer(s)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// kernelDevice is before the name of an RDMA device of the kernel.
const kernelDevice = "rdma:"

// ParseDevices reads the addresses that devices may have, and the names of the RDMA devices of the
// kernel that may be used, such as "rdma:rxe0", in order of preference.
func ParseDevices(list []string) (prefixes []netip.Prefix, kernel []string, err error) {
	for _, s := range list {
		if name, ok := strings.CutPrefix(s, kernelDevice); ok {
			if !isDeviceName(name) { // rule: TestParseDevices
				return nil, nil, fmt.Errorf("%q is no name of an RDMA device in /sys/class/infiniband", name)
			}
			kernel = append(kernel, name)
			continue
		}
		p, err := parsePrefix(s)
		if err != nil {
			return nil, nil, fmt.Errorf("%q is no address or prefix: %w", s, err)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, kernel, nil
}

// isDeviceName reports whether the kernel can have a device of that name: IB_DEVICE_NAME_MAX is 64
// bytes, with a zero byte. Names with other bytes than these could name another directory.
func isDeviceName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		case i > 0 && (c == '-' || c == '.'):
		default:
			return false
		}
	}
	return name != "" && len(name) < 64
}

// Speak reports whether the program at the other end of a TCP connection expects CLC: remote is its
// address, and port the server's.
func (p Peers) Speak(remote netip.Addr, port uint16) bool {
	if len(p) == 0 {
		return false
	}
	remote = remote.Unmap().WithZone("")
	for _, r := range p {
		if r.prefix.Contains(remote) && (r.port == 0 || r.port == port) {
			return true
		}
	}
	return false
}

// Library is the rules as the library of 'gosmc run' reads them from its environment: address, prefix and
// port in hexadecimal digits. Of IPv4 that is the mapped address.
func (p Peers) Library() string {
	list := make([]string, 0, len(p))
	for _, r := range p {
		ip, bits := r.prefix.Addr().As16(), r.prefix.Bits()
		if r.prefix.Addr().Is4() {
			bits += 96
		}
		list = append(list, fmt.Sprintf("%x/%02x/%04x", ip, bits, r.port))
	}
	return strings.Join(list, ",")
}
