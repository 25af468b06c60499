package rnic

import (
	"net"
	"net/netip"
	"slices"
)

// interfaceOf returns the name of the interface that has an address, "" if none has.
func interfaceOf(addr netip.Addr) string {
	if addr.Zone() != "" { // several interfaces may have one link-local address
		return addr.Zone()
	}
	ifaces, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, iface := range ifaces {
		addrs, _ := iface.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && (p.Addr().Unmap() == addr.WithZone("") || addr.IsLoopback() &&
				p.Addr().IsLoopback() && p.Contains(addr)) {
				return iface.Name
			}
		}
	}
	return ""
}

// NetworksOf returns the IP networks of the interface that has an address, in the version of IP of
// that address.
func NetworksOf(addr netip.Addr) []netip.Prefix {
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, iface := range ifaces {
		addrs, _ := iface.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && (p.Addr().Unmap() == addr || addr.IsLoopback() && p.Addr().IsLoopback() &&
				p.Contains(addr)) {
				return networks(iface.Name, addr.Is4())
			}
		}
	}
	return nil
}

// networks returns the IP networks of an interface, in one version of IP.
func networks(name string, is4 bool) (list []netip.Prefix) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	addrs, err := iface.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap().Is4() == is4 {
			list = append(list, p.Masked())
		}
	}
	return list
}

// networksFor returns the IP networks that show whether another interface is on the LAN of a
// device. They are in the device's version of IP; for a link-local address they are in both
// versions, without the link-local network, on which every interface is.
func networksFor(name string, addr netip.Addr) []netip.Prefix {
	if !addr.Is6() || !addr.IsLinkLocalUnicast() {
		return networks(name, addr.Is4())
	}
	list := append(networks(name, true), networks(name, false)...)
	return slices.DeleteFunc(list, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
}
