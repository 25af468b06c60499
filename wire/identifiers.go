package wire

import (
	"fmt"
	"net/netip"
)

// A PeerID identifies one instance of a TCP/IP stack: two bytes that change at each start of
// the stack, then the MAC of one of its RNICs. A host without an RNIC sends zero.
//
// RFC 7609 p.93.
type PeerID [8]byte

// Instance returns the part that changes at each start of the stack.
func (p PeerID) Instance() uint16 { return uint16(p[0])<<8 | uint16(p[1]) }

// MAC returns the part that is an RNIC's address.
func (p PeerID) MAC() MAC { return MAC(p[2:]) }

// String returns "45472@98:03:9b:ab:cd:ef".
func (p PeerID) String() string { return fmt.Sprintf("%d@%v", p.Instance(), p.MAC()) }

// A MAC is the Ethernet address of an RNIC.
type MAC [6]byte

// String returns "98:03:9b:ab:cd:ef".
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// A GID is the address of an RNIC's port on the RoCE fabric: an IPv6 address, or for RoCEv2 also
// an IPv4 address in the v4-mapped form.
type GID [16]byte

// GIDFromAddr returns the GID of an IP address; IPv4 becomes ::ffff:a.b.c.d, as Linux sends it.
// The zero Addr gives the zero GID.
func GIDFromAddr(a netip.Addr) GID {
	if !a.IsValid() {
		return GID{}
	}
	return a.As16()
}

// Addr returns g as an IPv6 address, or as an IPv4 address where [GID.IPv4] finds one.
func (g GID) Addr() netip.Addr {
	if a, ok := g.IPv4(); ok {
		return a
	}
	return netip.AddrFrom16(g)
}

// IPv4 returns the IPv4 address in g, and whether there is one. Two forms exist: v4-mapped, and
// right-aligned after twelve zero bytes (SMCv2 pp.57-59, note 4). "::" and "::1" are IPv6 addresses.
func (g GID) IPv4() (netip.Addr, bool) {
	for _, b := range g[:10] {
		if b != 0 {
			return netip.Addr{}, false
		}
	}
	v4 := [4]byte(g[12:])
	mapped := g[10] == 0xff && g[11] == 0xff
	aligned := g[10] == 0 && g[11] == 0 && v4 != [4]byte{} && v4 != [4]byte{0, 0, 0, 1}
	if !mapped && !aligned { // rule: TestGID
		return netip.Addr{}, false
	}
	return netip.AddrFrom4(v4), true
}

// IsZero reports whether g is not set.
func (g GID) IsZero() bool { return g == GID{} }

// String returns the IP address that [GID.Addr] returns.
func (g GID) String() string { return g.Addr().String() }

// Numbers that must not be mixed.
type (
	// A QPN is the number of a queue pair, 24 bits.
	QPN uint32
	// A PSN is a packet sequence number, 24 bits.
	PSN uint32
	// An RKey is the remote key of a memory region.
	RKey uint32
	// An AlertToken names a connection within a link group, chosen by the host that owns
	// the receive buffer, opaque to the other: RFC 7609 p.100.
	AlertToken uint32
	// A LinkID names an SMC-D link, or a link of SMC-R to its owner's operator. It is opaque:
	// Linux copies it in its own byte order. Here it is the four bytes, first byte highest.
	LinkID uint32
	// A Token names a DMB to the ISM fabric: a host that has it may write to the buffer.
	Token uint64
)

// Largest values of the 24-bit numbers.
const (
	MaxQPN QPN = 1<<24 - 1
	MaxPSN PSN = 1<<24 - 1
)

// String returns "0x11", in hexadecimal as Linux tools and packet dissectors show it.
func (q QPN) String() string { return fmt.Sprintf("%#x", uint32(q)) }

// String returns "0x72f5fe".
func (p PSN) String() string { return fmt.Sprintf("%#x", uint32(p)) }

// Add returns the number n packets after p, before it if n is negative, modulo 1<<24.
func (p PSN) Add(n int) PSN { return (p + PSN(n)) & MaxPSN }

// Sub returns how many packets p is after q, from -1<<23 to 1<<23-1: negative if p is before q.
// Numbers go round, so that p is taken to be less than half the circle away.
func (p PSN) Sub(q PSN) int { return int(int32(p-q) << 8 >> 8) } // rule: TestPSN: int(int32(p-q) << 8 >> 8) -> int(p) - int(q)

// String returns "0x501".
func (k RKey) String() string { return fmt.Sprintf("%#x", uint32(k)) }

// String returns "0x5".
func (t AlertToken) String() string { return fmt.Sprintf("%#x", uint32(t)) }

// String returns "00000100", eight digits as smcss shows it.
func (l LinkID) String() string { return fmt.Sprintf("%08x", uint32(l)) }

// String returns sixteen digits, as smcss shows it.
func (t Token) String() string { return fmt.Sprintf("%016x", uint64(t)) }
