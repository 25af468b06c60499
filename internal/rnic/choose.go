package rnic

import (
	"net"
	"net/netip"
)

// Choose returns the address of the device for a TCP connection from local: local itself, unless
// the configuration allows other addresses. remote is the peer's RNIC, zero if it is not known yet.
// The error is [ErrNone] or an error of the system.
func (s *Set) Choose(local, remote netip.Addr) (addr netip.Addr, err error) {
	local = local.Unmap()
	if len(s.cfg.Allowed) == 0 {
		return local, nil
	}
	s.cfg.Namespace(func() { addr, err = s.chooseAllowed(local, remote.Unmap()) })
	return addr, err
}

func (s *Set) chooseAllowed(local, remote netip.Addr) (netip.Addr, error) {
	if remote.IsValid() && remote != local {
		if source := sourceTo(remote); source.IsValid() && source != local && s.allows(source) &&
			s.connected(source, local) && !sameInterface(source, local) {
			return source, nil
		}
	}
	if s.allows(local) {
		return local, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			if addr := p.Addr().Unmap(); addr.Is4() == local.Is4() && !addr.IsLinkLocalUnicast() &&
				s.allows(addr) && s.connected(addr, local) {
				return addr, nil
			}
		}
	}
	return netip.Addr{}, ErrNone
}

func (s *Set) allows(a netip.Addr) bool {
	for _, p := range s.cfg.Allowed {
		if p.Contains(a.WithZone("")) {
			return true
		}
	}
	return false
}

// sourceTo returns the address from which this machine sends to remote, zero if there is no route.
func sourceTo(remote netip.Addr) netip.Addr {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, 9))) // sends nothing
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
}

// sameInterface reports whether one interface has both addresses.
func sameInterface(a, b netip.Addr) bool {
	ifaces, err := net.Interfaces()
	if err != nil {
		return false
	}
	for _, iface := range ifaces {
		found := 0
		addrs, _ := iface.Addrs()
		for _, x := range addrs {
			if p, err := netip.ParsePrefix(x.String()); err == nil &&
				(p.Addr().Unmap() == a || p.Addr().Unmap() == b) {
				found++
			}
		}
		if found > 0 {
			return found > 1
		}
	}
	return false
}
