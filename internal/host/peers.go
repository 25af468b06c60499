package host

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// A peerRule says which TCP connections are with hosts that speak CLC: those to or from an address, where the
// server's port is the given one, or any for 0.
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

// parsePeers reads the rules of a configuration.
func parsePeers(list []string) ([]peerRule, error) {
	var rules []peerRule
	for _, s := range list {
		r, err := parsePeer(s)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// parsePrefixes reads the addresses that devices may have.
func parsePrefixes(list []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, s := range list {
		p, err := parsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%q is no address or prefix: %w", s, err)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}

// speaksCLC reports whether the configuration says that the program at the other end of a TCP connection expects
// CLC: remote is its address, and port the server's.
func (h *Host) speaksCLC(remote netip.Addr, port uint16) bool {
	if len(h.peerRules) == 0 || h.cfg.Disabled {
		return false
	}
	remote = remote.Unmap().WithZone("")
	for _, r := range h.peerRules {
		if r.prefix.Contains(remote) && (r.port == 0 || r.port == port) {
			return true
		}
	}
	return false
}
