// Package frame knows the headers around an IP packet: link layers as capture files number them,
// and VLAN tags.
//
// There is one description of each, here. The program that chooses packets of an interface, the
// memory in which the kernel hands them over, and the readers of captures all strip the same
// headers.
package frame

import (
	"encoding/binary"
	"strconv"
	"time"
)

// A LinkType is the type of the header with which the bytes of a packet begin. The numbers are the
// link types of pcap and pcapng files: https://www.tcpdump.org/linktypes.html.
type LinkType uint16

// All link types that [Strip] knows.
const (
	Null     LinkType = 0   // BSD loopback: address family (4 bytes, order of the writing host)
	Ethernet LinkType = 1   // Ethernet, from the destination address on
	Raw12    LinkType = 12  // IP; some systems write it for Raw
	Raw14    LinkType = 14  // IP; the same of OpenBSD
	Raw      LinkType = 101 // IP, version in the first half byte
	Loop     LinkType = 108 // OpenBSD loopback: address family (4 bytes, big-endian)
	Cooked   LinkType = 113 // Linux cooked, 16 bytes before the network header
	IPv4     LinkType = 228 // IP of version 4
	IPv6     LinkType = 229 // IP of version 6
	Cooked2  LinkType = 276 // Linux cooked v2, 20 bytes, with the interface's index
)

// String is the name of t in words, or its number.
func (t LinkType) String() string {
	switch t {
	case Null:
		return "BSD loopback"
	case Ethernet:
		return "Ethernet"
	case Raw12, Raw14, Raw:
		return "raw IP"
	case Loop:
		return "OpenBSD loopback"
	case Cooked:
		return "Linux cooked"
	case IPv4:
		return "raw IPv4"
	case IPv6:
		return "raw IPv6"
	case Cooked2:
		return "Linux cooked v2"
	}
	return "link type " + strconv.Itoa(int(t))
}

// Known reports whether [Strip] can look into packets of the link type.
func (t LinkType) Known() bool {
	switch t {
	case Null, Ethernet, Raw12, Raw14, Raw, Loop, Cooked, IPv4, IPv6, Cooked2:
		return true
	}
	return false
}

// A Packet is one packet as it was captured.
type Packet struct {
	Number int       // from 1, over all inputs
	Time   time.Time // in UTC; zero if the file has none for it
	Link   LinkType

	// Data holds the captured bytes of the packet, from the link header on. It belongs to the
	// source of the packet. The documentation of the source says for how long it is valid.
	Data []byte

	// OrigLen is how many bytes the packet had on the wire. It is never less than len(Data).
	OrigLen int

	// Source is the index of the input that the packet is from, from 0. Interface tells interfaces of
	// one input from each other: of a pcapng file their index in its section, else 0.
	Source    int
	Interface int
}

// Lengths of headers, in bytes.
const (
	ethernetLen = 14
	loopLen     = 4
	cookedLen   = 16
	cooked2Len  = 20
	tagLen      = 4 // tag control information, and the EtherType of the next header
)

// EtherTypes, as far as they lead to IP.
const (
	TypeIPv4 = 0x0800
	TypeIPv6 = 0x86dd
	TypeVLAN = 0x8100 // IEEE 802.1Q
	TypeQinQ = 0x88a8 // IEEE 802.1ad
	typeOld  = 0x9100 // the outer tag, before 802.1ad
)

// Tags returns the EtherTypes that say that a VLAN tag follows.
func Tags() []uint16 { return []uint16{TypeVLAN, TypeQinQ, typeOld} }

// IsTag reports whether an EtherType is one of [Tags].
func IsTag(etherType uint16) bool {
	return etherType == TypeVLAN || etherType == TypeQinQ || etherType == typeOld
}

// Begins returns the EtherType of the header with which data begins; a cooked packet socket gave it
// as told. length is the length of the data before it was cut. Linux does not always tell the
// truth:
//
//	told  data begins with
//	tag   a tag: it has the next EtherType behind its control information
//	tag   the IP header, of a packet that is sent, if the kernel has put the tag in
//	IP    the IP header
//	IP    a tag: since 6.11, and later versions of older kernels, the EtherType behind all tags is told
//
// Of a tag that was not told of the EtherType is not known, and is said to be [TypeVLAN].
func Begins(told uint16, data []byte, length int) uint16 {
	switch {
	case len(data) <= tagLen:
	case IsTag(told):
		for _, ip := range []uint16{TypeIPv4, TypeIPv6} {
			if isIP(ip, data, length) {
				return ip
			}
		}
	case told == TypeIPv4, told == TypeIPv6:
		next := binary.BigEndian.Uint16(data[2:])
		if (IsTag(next) || next == told && data[tagLen]>>4 == versionOf(told)) && !isIP(told, data, length) {
			return TypeVLAN
		}
	}
	return told
}

func versionOf(etherType uint16) byte {
	if etherType == TypeIPv4 {
		return 4
	}
	return 6
}

// isIP tells an IP header from a VLAN tag that has the same first half byte: its length has to be
// possible, and with IPv4 its checksum right.
func isIP(etherType uint16, b []byte, length int) bool {
	if b[0]>>4 != versionOf(etherType) {
		return false
	}
	if etherType == TypeIPv6 {
		return len(b) >= 40 && 40+int(binary.BigEndian.Uint16(b[4:])) <= length
	}
	header := int(b[0]&0x0f) * 4
	if header < 20 || len(b) < header {
		return false
	}
	sum := uint32(0)
	for i := 0; i < header; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return sum == 0xffff
}

// Strip takes link header and VLAN tags, however many, off a packet. It returns the EtherType of
// the header with which network begins. It returns 0 and nil if the link type is not known, or if
// no IP packet follows a header without an EtherType. whole is false if the data ends before that.
// network is a part of b.
//
// The data of [Null] and [Loop] has an address family. Its numbers and byte order differ from
// system to system: there, as in [Raw], the IP header itself says its version.
func Strip(link LinkType, b []byte) (etherType uint16, network []byte, whole bool) {
	switch link {
	case Ethernet:
		if len(b) < ethernetLen {
			return 0, nil, false
		}
		return stripTags(binary.BigEndian.Uint16(b[12:]), b[ethernetLen:])
	case Cooked:
		if len(b) < cookedLen {
			return 0, nil, false
		}
		return stripTags(binary.BigEndian.Uint16(b[14:]), b[cookedLen:])
	case Cooked2:
		if len(b) < cooked2Len {
			return 0, nil, false
		}
		return stripTags(binary.BigEndian.Uint16(b), b[cooked2Len:])
	case Null, Loop:
		if len(b) <= loopLen {
			return 0, nil, false
		}
		return stripNothing(b[loopLen:])
	case Raw, Raw12, Raw14, IPv4, IPv6:
		if len(b) == 0 {
			return 0, nil, false
		}
		return stripNothing(b)
	}
	return 0, nil, true
}

// StripNetwork is Strip for data without a link header, of which the EtherType is known, as a
// cooked packet socket gives it.
func StripNetwork(etherType uint16, b []byte) (inner uint16, network []byte, whole bool) {
	return stripTags(etherType, b)
}

func stripTags(etherType uint16, b []byte) (uint16, []byte, bool) {
	for IsTag(etherType) { // ends: each turn takes 4 bytes
		if len(b) < tagLen {
			return 0, nil, false
		}
		etherType, b = binary.BigEndian.Uint16(b[2:]), b[tagLen:]
	}
	return etherType, b, true
}

// stripNothing tells the EtherType by the version in an IP header.
func stripNothing(ip []byte) (uint16, []byte, bool) {
	switch ip[0] >> 4 {
	case 4:
		return TypeIPv4, ip, true
	case 6:
		return TypeIPv6, ip, true
	}
	return 0, nil, true
}

// AppendTagged appends an Ethernet frame of which a tag had been taken out, with the tag at its
// place: tag is its EtherType and control information, as in the frame. Data without both addresses
// has no place for it.
func AppendTagged(b, data []byte, tag uint32) []byte {
	const addresses = 12
	if len(data) < addresses {
		return append(b, data...)
	}
	b = append(b, data[:addresses]...)
	b = binary.BigEndian.AppendUint32(b, tag)
	return append(b, data[addresses:]...)
}

// A Header is the header of a packet of [Cooked2].
type Header struct {
	EtherType uint16
	Interface uint32 // index
	Hardware  uint16 // ARPHRD number
	Kind      uint8  // 0 for us, 1 broadcast, 2 multicast, 3 for others, 4 from us
	AddrLen   uint8
	Addr      [8]byte // of the sender
}

// AppendCooked2 appends a packet of [Cooked2] with data, which begins with the network header. A tag that had
// been taken out, not 0, is put back: its EtherType stands in the header; the rest of the tag, with
// the EtherType of the data, comes after.
//
//	offset  size  field, https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html
//	     0     2  EtherType
//	     2     2  reserved
//	     4     4  index of the interface
//	     8     2  ARPHRD number
//	    10     1  type of packet
//	    11     1  length of the address
//	    12     8  address
//
// Integers are big-endian.
func AppendCooked2(b []byte, h *Header, tag uint32, data []byte) []byte {
	first := h.EtherType
	if tag != 0 {
		first = uint16(tag >> 16)
	}
	b = binary.BigEndian.AppendUint16(b, first)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Interface)
	b = binary.BigEndian.AppendUint16(b, h.Hardware)
	b = append(b, h.Kind, h.AddrLen)
	b = append(b, h.Addr[:]...)
	if tag != 0 {
		b = binary.BigEndian.AppendUint16(b, uint16(tag))
		b = binary.BigEndian.AppendUint16(b, h.EtherType)
	}
	return append(b, data...)
}

// Point names the place where a packet was captured, among the places of all inputs: packets of one
// input may be of several interfaces.
func (p *Packet) Point() Point {
	point := Point{p.Source, p.Interface}
	if p.Link == Cooked2 && len(p.Data) >= cooked2Len {
		point.Interface = int(binary.BigEndian.Uint32(p.Data[4:]))
	}
	return point
}

// A Point is a place where packets are captured: an input, and an interface of it.
type Point struct{ Source, Interface int }
