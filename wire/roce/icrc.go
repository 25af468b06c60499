package roce

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"net/netip"
)

// The invariant CRC is the Ethernet CRC-32 (polynomial 0x04C11DB7, bits reflected) over
//
//	8 bytes of 0xff  for a header that RoCEv2 does not have
//	IP header        with 0xff for TOS, TTL and checksum; traffic class, flow label and hop limit
//	UDP header       with 0xff for the checksum
//	BTH ... pad      with 0xff for byte 4, congestion
//
// and is sent with its low byte first. The lengths in the headers count the ICRC. IBTA A17.3.3 and 7.8.1,
// Linux drivers/infiniband/sw/rxe/rxe_icrc.c.
//
// The register of a CRC is linear: the register of a xor of two inputs is the xor of the registers,
// without initial value. So one pass of [crc32.Update] over the packet as it stands is enough:
//
//   - The register after the headers is the same for all packets from one address to another, but
//     for two lengths and the IPv4 identification. A table for each of these bytes has
//     the value that it adds.
//   - The value that replacing byte 4 by 0xff adds can be taken back over the four bytes before it,
//     to the register that the pass begins with.
//   - An ICRC that is wrong because the identification is not known is wrong by the value that the
//     difference of identifications adds, after some number of zero bytes. Taken back by as many,
//     the two bytes show.

// A Flow computes the ICRC of the packets from one address and port to another. It is a value;
// goroutines may share one. Make it with [NewFlow].
type Flow struct {
	base    uint32 // register after the headers, with lengths and identification zero
	headers *headerTables
}

// A Verdict is the finding of [Flow.Verify].
type Verdict uint8

const (
	Bad    Verdict = iota // the packet was damaged, or it is no packet
	Exact                 // the ICRC is right
	Solved                // the ICRC is right for another IPv4 identification than expected
)

// String returns "bad", "exact" or "solved".
func (v Verdict) String() string {
	switch v {
	case Bad:
		return "bad"
	case Exact:
		return "exact"
	case Solved:
		return "solved"
	}
	return "impossible verdict"
}

// Fields of IP and UDP headers, by their offset.
const (
	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	udpHeaderLen  = 8

	ipv4TotalLength = 2
	ipv4ID          = 4
	ipv4Flags       = 6
	ipv4TTL         = 8
	ipv4Protocol    = 9
	ipv4Checksum    = 10
	ipv4Source      = 12
	ipv4Destination = 16

	ipv6PayloadLength = 4
	ipv6NextHeader    = 6
	ipv6HopLimit      = 7
	ipv6Source        = 8
	ipv6Destination   = 24

	udpLength   = 4
	udpChecksum = 6

	protocolUDP  = 17
	dontFragment = 0x40 // in byte 6 of IPv4
)

// NewFlow returns the Flow of packets from src to dst. IPv4 addresses may be v4-mapped; zones do not
// count. If one address is IPv4 and the other is not there are no such packets, and no ICRC
// will be right.
func NewFlow(src, dst netip.AddrPort) Flow {
	var h [ipv6HeaderLen + udpHeaderLen]byte
	from, to := src.Addr().Unmap(), dst.Addr().Unmap()
	f := Flow{headers: &headersIPv6}
	n := ipv6HeaderLen
	if from.Is4() && to.Is4() {
		f.headers = &headersIPv4
		n = ipv4HeaderLen
		h[0] = 0x45
		h[ipv4Flags] = dontFragment
		h[ipv4Protocol] = protocolUDP
		a, b := from.As4(), to.As4()
		copy(h[ipv4Source:], a[:])
		copy(h[ipv4Destination:], b[:])
	} else {
		h[0] = 0x60
		h[ipv6NextHeader] = protocolUDP
		a, b := from.As16(), to.As16()
		copy(h[ipv6Source:], a[:])
		copy(h[ipv6Destination:], b[:])
	}
	maskIP(h[:n])
	u := h[n : n+udpHeaderLen]
	binary.BigEndian.PutUint16(u, src.Port())
	binary.BigEndian.PutUint16(u[2:], dst.Port())
	maskUDP(u)
	f.base = hash(icrcStart, h[:n+udpHeaderLen])
	return f
}

// icrcStart is the register after eight bytes of 0xff.
const icrcStart = 0xdebb20e3

// maskIP replaces the fields of an IP header that may change on the way.
func maskIP(h []byte) {
	if h[0]>>4 == 4 {
		h[1], h[ipv4TTL], h[ipv4Checksum], h[ipv4Checksum+1] = 0xff, 0xff, 0xff, 0xff
		return
	}
	h[0] |= 0x0f
	h[1], h[2], h[3], h[ipv6HopLimit] = 0xff, 0xff, 0xff, 0xff
}

// maskUDP replaces the checksum of a UDP header.
func maskUDP(h []byte) { h[udpChecksum], h[udpChecksum+1] = 0xff, 0xff }

// seed returns the register with which crc32.Update has to begin to get the ICRC of a packet of n
// bytes without ICRC, whose byte 4 is given.
func (f *Flow) seed(id uint16, n int, congestion byte) uint32 {
	t := f.headers
	udpLen := uint16(n + ICRCLen + udpHeaderLen)
	ipLen := udpLen + t.ipLenExtra
	return ^(f.base ^ t.ipLen.of(ipLen) ^ t.udpLen.of(udpLen) ^ t.id.of(id) ^ maskCongestion[congestion])
}

// ICRC returns the ICRC of b, a packet from BTH to pad, without ICRC. b is hashed as if byte 4 were
// 0xff and is not changed. The datagram is taken to be len(b)+4 bytes of UDP payload. With IPv4 it has
// the identification id, DF set, fragment offset 0 and no options; with IPv6 id does not
// count. It panics if b is shorter than a BTH.
func (f *Flow) ICRC(id uint16, b []byte) uint32 {
	return update(f.seed(id, len(b), b[:BTHLen][4]), b)
}

// update is crc32.Update, faster for the usual lengths of packets: some words more than a multiple
// of 16 bytes. crc32.Update takes those byte by byte, which costs as much as the other 1,024.
func update(crc uint32, b []byte) uint32 {
	if len(b) >= hashedWhole {
		r := ^crc
		for len(b)&15 >= 4 {
			r ^= binary.LittleEndian.Uint32(b)
			r = fourBytes[0][r&0xff] ^ fourBytes[1][r>>8&0xff] ^ fourBytes[2][r>>16&0xff] ^ fourBytes[3][r>>24]
			b = b[4:]
		}
		crc = ^r
	}
	return crc32.Update(crc, crc32.IEEETable, b)
}

// Seal writes the ICRC into the last 4 bytes of b, a packet from BTH to ICRC, as [Flow.ICRC] computes
// it. It panics if b is shorter than [MinPacketLen].
func (f *Flow) Seal(id uint16, b []byte) {
	n := len(b) - ICRCLen
	binary.LittleEndian.PutUint32(b[n:], f.ICRC(id, b[:n]))
}

// Verify checks the ICRC of b, a whole packet from BTH to ICRC.
//
// Exact means that it is right for the identification id, which got then repeats. With IPv4 the
// identification is covered by the ICRC but not shown by a UDP socket; if id is not
// right but there is one that makes the ICRC right, got has it, and the verdict is Solved. There is at
// most one. A packet damaged at random passes as Solved once in 65,536 times: where the sender is known
// to use a range of identifications, the caller should check that got is one of them. With IPv6, and
// IPv4 without DF, nothing is Solved.
//
// Datagrams that are too short or too long for a packet, or not a multiple of four bytes, are Bad.
func (f *Flow) Verify(id uint16, b []byte) (got uint16, v Verdict) {
	n := len(b) - ICRCLen
	if n < BTHLen || n&3 != 0 || len(b) > maxDatagram { // rule: TestVerifyBad
		return 0, Bad
	}
	diff := f.ICRC(id, b[:n]) ^ binary.LittleEndian.Uint32(b[n:])
	if diff == 0 {
		return id, Exact
	}
	if f.headers != &headersIPv4 { // rule: TestVerifyIPv6
		return 0, Bad
	}
	// From the four bytes at ipv4ID to the end of the packet.
	w := back(diff, ipv4HeaderLen-ipv4ID+udpHeaderLen+n)
	// rule: TestVerifyDamage
	if w>>16 != 0 { // more than the identification differs
		return 0, Bad
	}
	return id ^ bits.ReverseBytes16(uint16(w)), Solved
}
