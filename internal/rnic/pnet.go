package rnic

import (
	"net/netip"
)

// pnetID returns the PNETID of an interface, "" if it has none.
func (s *Set) pnetID(iface string) string { return s.cfg.PNET[iface] }

// PNETIDOf returns the PNETID of the interface that has an address, "" if there is none.
func (s *Set) PNETIDOf(addr netip.Addr) (id string) {
	if len(s.cfg.PNET) == 0 {
		return ""
	}
	s.cfg.Namespace(func() { id = s.pnetID(interfaceOf(addr)) })
	return id
}

// connected reports whether two addresses may be on one physical network: SMCv2, "Physical Network
// ID". It returns true if the network of either is not known.
func (s *Set) connected(a, b netip.Addr) bool {
	if len(s.cfg.PNET) == 0 || a == b {
		return true
	}
	return mayBeSame(s.pnetID(interfaceOf(a)), s.pnetID(interfaceOf(b)))
}

// mayBeSame reports whether two PNETIDs may name one network; "" is a PNETID that is not known.
func mayBeSame(a, b string) bool { return a == "" || b == "" || a == b } // rule: TestMayBeSame: a == b -> true
