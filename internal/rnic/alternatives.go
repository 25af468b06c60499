package rnic

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// Alternatives returns our RNICs that may be ends of the links of a group whose first link is on n:
// n first, then other addresses of the same IP version, in SMC-R version 1 of the same VLAN. If the
// configuration names no addresses, they are the addresses of other interfaces on the LAN of n,
// which a common IP network or PNETID shows (RFC 7609 §2.2.1; Linux net/smc uses PNETIDs only).
func (s *Set) Alternatives(n *Device, version clc.Version) (list []core.RNIC) {
	if !n.IsDown() {
		list = append(list, *n.RNIC())
	}
	if s.cfg.Links == 1 { // rule: TestAlternatives
		return list
	}
	first := n.dev.Addr()
	linkLocal := first.Is6() && first.IsLinkLocalUnicast() // version 1
	s.cfg.Namespace(func() {
		ifaces, err := net.Interfaces()
		if err != nil {
			return
		}
		for _, iface := range ifaces {
			if iface.Flags&net.FlagUp == 0 || iface.Flags&net.FlagRunning == 0 {
				continue
			}
			addrs, _ := iface.Addrs()
			for _, a := range addrs {
				p, err := netip.ParsePrefix(a.String())
				if err != nil {
					continue
				}
				p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits())
				addr := p.Addr()
				if addr.IsLinkLocalUnicast() || !s.mayUse(&iface, p, n) || len(list) >= llc.MaxGIDs {
					continue
				}
				if linkLocal { // the interface is on the LAN of the first one, as this address shows
					addr = LinkLocalOf(&iface)
				}
				if !addr.IsValid() || addr == first || addr.Is4() != first.Is4() {
					continue
				}
				if version == clc.V1 && s.VLAN(addr) != s.VLAN(first) {
					continue
				}
				us := core.RNIC{GID: wire.GIDFromAddr(addr)}
				if len(iface.HardwareAddr) == len(us.MAC) {
					copy(us.MAC[:], iface.HardwareAddr)
				}
				if linkLocal && slices.Contains(list, us) {
					continue // by another of its addresses
				}
				list = append(list, us)
			}
		}
	})
	return list
}

// mayUse reports whether a group with its first link on n may have another one on an address p of
// an interface.
func (s *Set) mayUse(iface *net.Interface, p netip.Prefix, n *Device) bool {
	first := n.dev.Interface()
	switch {
	case len(s.cfg.Allowed) > 0:
		return s.allows(p.Addr()) && s.connected(p.Addr(), n.dev.Addr())
	case iface.Name == first || iface.Flags&(net.FlagLoopback|net.FlagPointToPoint) != 0: // rule: TestAlternatives
		return false
	}
	if a, b := s.pnetID(first), s.pnetID(iface.Name); a != "" || b != "" {
		return a == b // rule: TestAlternatives: a == b -> true
	}
	return slices.Contains(n.nets, p.Masked()) // rule: TestAlternatives: slices.Contains(n.nets, p.Masked()) -> true
}

// othersChanged has lookAtOthers run after othersDelay: interfaces often change several at a time.
func (s *Set) othersChanged() {
	if s.cfg.Links == 1 {
		return
	}
	l := &s.look // rule: TestRNICCloseDuringChange: l := &s.look -> s.mu.Lock(); defer s.mu.Unlock(); l := &s.look
	l.Lock()
	defer l.Unlock()
	if l.closed || l.armed {
		return
	}
	l.armed = true
	if l.timer == nil {
		l.timer = time.AfterFunc(othersDelay, s.lookAtOthers)
	} else {
		l.timer.Reset(othersDelay)
	}
}

// lookAtOthers tells all groups which devices there are now. Groups with the same first device may
// use the same others.
func (s *Set) lookAtOthers() {
	s.look.Lock()
	s.look.armed = false
	s.look.Unlock()
	s.mu.Lock()
	var groups []Group
	if !s.closed {
		for _, n := range s.open {
			n.mu.Lock()
			for g := range n.groups {
				if first, _ := g.First(); first == n {
					groups = append(groups, g)
				}
			}
			n.mu.Unlock()
		}
	}
	s.mu.Unlock()
	type key struct {
		first   *Device
		version clc.Version
	}
	known := make(map[key][]core.RNIC)
	for _, g := range groups {
		first, version := g.First()
		k := key{first, version}
		list, ok := known[k]
		if !ok {
			list = s.Alternatives(k.first, k.version)
			known[k] = list
		}
		g.SetRNICs(list)
	}
}

// Eligible returns the RNICs that a client may tell its server about: "eligible means ... the
// client has an available IP route to the server" (SMCv2 p.77 note 2; ours is the route to the
// server's RNIC). The first one is the RNIC of the link.
func (s *Set) Eligible(list []core.RNIC, server wire.GID) []core.RNIC {
	none := make(map[wire.GID]bool)
	for _, route := range s.RoutesTo(list[1:], []wire.GID{server}) {
		none[route.Local] = route.None
	}
	return slices.DeleteFunc(list, func(n core.RNIC) bool { return none[n.GID] }) // rule: internal/host TestSMCRUnreachableGID: none[n.GID] -> false
}
