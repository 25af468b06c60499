package clc

import (
	"net/netip"
)

// An IPArea tells the server which IP networks the client is on, because SMC version 1 works
// within one network only.
//
//	offset  size  field
//	     0     4  IPv4 network        zero on an IPv6 connection
//	     4     1  its prefix length   likewise
//	     5     2  reserved
//	     7     1  number of prefixes  0 on an IPv4 connection, 1 to 8 on an IPv6 connection
//	     8  17*n  IPv6 prefixes       16 bytes prefix, 1 byte prefix length
//
// RFC 7609 p.96 calls the first field the subnet mask; Linux net/smc sends the network's address,
// and so do we.
//
// Layout: RFC 7609 pp.94, 97, SMCv2 p.56.
type IPArea struct {
	IPv4 netip.Prefix   // of an IPv4 connection; not valid if IPv6 has entries. Sent masked.
	IPv6 []netip.Prefix // at most MaxPrefixes; sent masked
}

// MaxPrefixes is the largest number of IPv6 prefixes in an [IPArea]: RFC 7609 p.96.
const MaxPrefixes = 8

const (
	ipAreaLen = 8 // without IPv6 prefixes
	prefixLen = 17
)

func (a *IPArea) validate() error {
	const message = "Proposal"
	switch {
	case len(a.IPv6) > MaxPrefixes:
		return invalid(message, "%d IPv6 prefixes, at most %d", len(a.IPv6), MaxPrefixes)
	case a.IPv4.IsValid() && !a.IPv4.Addr().Is4():
		return invalid(message, "%v is no IPv4 prefix", a.IPv4)
	case a.IPv4.IsValid() == (len(a.IPv6) > 0):
		return invalid(message, "not exactly one of an IPv4 prefix and IPv6 prefixes")
	}
	for _, p := range a.IPv6 {
		if !p.IsValid() || !p.Addr().Is6() {
			return invalid(message, "%v is no IPv6 prefix", p)
		}
	}
	return nil
}

func (a *IPArea) append(b []byte) []byte {
	if a.IPv4.IsValid() {
		v4 := a.IPv4.Masked().Addr().As4()
		b = append(b, v4[:]...)
		b = append(b, byte(a.IPv4.Bits()))
	} else {
		b = appendZeros(b, 5)
	}
	b = append(b, 0, 0, byte(len(a.IPv6)))
	for _, p := range a.IPv6 {
		v6 := p.Masked().Addr().As16()
		b = append(b, v6[:]...)
		b = append(b, byte(p.Bits()))
	}
	return b
}

// parseIPArea decodes the area at start and also returns the offset behind it.
func parseIPArea(r reader, start int) (*IPArea, int, error) {
	head, ok := r.at(start, ipAreaLen)
	if !ok {
		return nil, 0, r.fail("IP offset", 38)
	}
	n := int(head[7])
	array, ok := r.at(start+ipAreaLen, n*prefixLen)
	if n > MaxPrefixes || !ok { // rule: TestLies
		return nil, 0, r.fail("number of prefixes", start+7)
	}
	a := &IPArea{}
	if n == 0 {
		a.IPv4 = netip.PrefixFrom(netip.AddrFrom4([4]byte(head[:4])), int(head[4]))
		if !a.IPv4.IsValid() {
			return nil, 0, r.fail("IPv4 prefix length", start+4)
		}
		return a, start + ipAreaLen, nil
	}
	a.IPv6 = make([]netip.Prefix, n)
	for i := range a.IPv6 {
		entry := array[i*prefixLen:][:prefixLen]
		a.IPv6[i] = netip.PrefixFrom(netip.AddrFrom16([16]byte(entry)), int(entry[16]))
		if !a.IPv6[i].IsValid() {
			return nil, 0, r.fail("IPv6 prefix length", start+ipAreaLen+i*prefixLen+16)
		}
	}
	return a, start + ipAreaLen + n*prefixLen, nil
}

// String returns the prefixes, separated by commas.
func (a *IPArea) String() string {
	if len(a.IPv6) == 0 {
		return a.IPv4.String()
	}
	s := a.IPv6[0].String()
	for _, p := range a.IPv6[1:] {
		s += "," + p.String()
	}
	return s
}
