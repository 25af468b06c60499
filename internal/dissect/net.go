package dissect

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// A LinkType says what a packet begins with. The numbers are those of pcap files.
type LinkType uint16

// Link types that are understood. Packets of others are counted and passed over.
const (
	LinkNull     LinkType = 0   // BSD loopback: 4 bytes of address family, in the byte order of the machine
	LinkEthernet LinkType = 1   // with or without VLAN tags
	LinkRaw12    LinkType = 12  // raw IP, as some systems number it
	LinkRaw14    LinkType = 14  // likewise
	LinkRaw      LinkType = 101 // raw IP
	LinkLoop     LinkType = 108 // OpenBSD loopback: as LinkNull, big-endian
	LinkSLL      LinkType = 113 // Linux cooked
	LinkSLL2     LinkType = 276 // Linux cooked, version 2
)

// String returns the name of the link type.
func (l LinkType) String() string {
	switch l {
	case LinkNull, LinkLoop:
		return "loopback"
	case LinkEthernet:
		return "Ethernet"
	case LinkRaw12, LinkRaw14, LinkRaw:
		return "raw IP"
	case LinkSLL:
		return "Linux cooked"
	case LinkSLL2:
		return "Linux cooked v2"
	}
	return fmt.Sprintf("link type %d", uint16(l))
}

// A Packet is one packet of a capture.
type Packet struct {
	Number  int       // from 1, over all inputs
	Time    time.Time // of the capture
	Link    LinkType
	Data    []byte // what was captured
	OrigLen int    // bytes on the wire; more than len(Data) if the packet was truncated
	Source  int    // index of the input
}

// layers is what the headers of a packet say up to UDP or TCP. Its slices are parts of the packet.
type layers struct {
	outcome  outcome
	src, dst netip.Addr
	ip       []byte // the IP packet, without what follows it in the frame
	ipLen    int    // its length as the header says; more than len(ip) if truncated
	body     []byte // UDP or TCP, from its header on
	bodyLen  int    // its length as the IP header says
	id       uint16 // IPv4 identification
	v4       bool
	udpBody  bool // else it is TCP
	plain    bool // there are no IPv4 options and no IPv6 extension headers
}

// An outcome is how far the headers of a packet could be followed.
type outcome uint8

const (
	outcomeOther      outcome = iota // not TCP or UDP over IP: no business of ours
	outcomeTCP                       // body is a TCP segment
	outcomeUDP                       // body is a UDP datagram
	outcomeFragmentIP                // a fragment of TCP or UDP; body has its header if it is the first
	outcomeShort                     // the capture ends within the headers
	outcomeBad                       // the headers contradict themselves
)

// truncated reports whether the capture does not have the whole IP packet.
func (l *layers) truncated() bool { return len(l.ip) < l.ipLen }

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd

	protoHopByHop = 0
	protoTCP      = 6
	protoUDP      = 17
	protoRouting  = 43
	protoFragment = 44
	protoAuth     = 51
	protoNone     = 59
	protoDestOpts = 60
)

// decode follows the headers of p.
func (l *layers) decode(p *Packet) {
	l.outcome = outcomeOther
	l.body, l.ip, l.ipLen = nil, nil, 0
	b := p.Data
	etherType := uint16(0)
	switch p.Link {
	case LinkEthernet:
		if len(b) < 14 {
			l.outcome = outcomeShort
			return
		}
		etherType = binary.BigEndian.Uint16(b[12:])
		b = b[14:]
		for isVLAN(etherType) { // ends: each turn takes 4 bytes
			if len(b) < 4 {
				l.outcome = outcomeShort
				return
			}
			etherType = binary.BigEndian.Uint16(b[2:])
			b = b[4:]
		}
	case LinkSLL:
		if len(b) < 16 {
			l.outcome = outcomeShort
			return
		}
		etherType = binary.BigEndian.Uint16(b[14:])
		b = b[16:]
		for isVLAN(etherType) {
			if len(b) < 4 {
				l.outcome = outcomeShort
				return
			}
			etherType = binary.BigEndian.Uint16(b[2:])
			b = b[4:]
		}
	case LinkSLL2:
		if len(b) < 20 {
			l.outcome = outcomeShort
			return
		}
		etherType = binary.BigEndian.Uint16(b)
		b = b[20:]
	case LinkNull, LinkLoop:
		if len(b) < 5 {
			l.outcome = outcomeShort
			return
		}
		// The family is in a byte order that the file does not tell, and its number for IPv6 differs from
		// system to system: the IP header itself has the version.
		b = b[4:]
		etherType = etherTypeOfVersion(b)
	case LinkRaw, LinkRaw12, LinkRaw14:
		if len(b) < 1 {
			l.outcome = outcomeShort
			return
		}
		etherType = etherTypeOfVersion(b)
	}
	switch etherType {
	case etherTypeIPv4:
		l.decodeIPv4(b)
	case etherTypeIPv6:
		l.decodeIPv6(b)
	}
}

// isVLAN reports whether an EtherType is that of a VLAN tag: 802.1Q, 802.1ad, and what was used for
// the outer one before that.
func isVLAN(etherType uint16) bool {
	return etherType == 0x8100 || etherType == 0x88a8 || etherType == 0x9100
}

func etherTypeOfVersion(ip []byte) uint16 {
	switch ip[0] >> 4 {
	case 4:
		return etherTypeIPv4
	case 6:
		return etherTypeIPv6
	}
	return 0
}

func (l *layers) decodeIPv4(b []byte) {
	if len(b) < 20 {
		l.outcome = outcomeShort
		return
	}
	headerLen := int(b[0]&0x0f) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	proto := b[9]
	if proto != protoTCP && proto != protoUDP {
		return
	}
	l.v4, l.udpBody = true, proto == protoUDP
	l.src, l.dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	l.id = binary.BigEndian.Uint16(b[4:])
	if total == 0 && len(b) >= headerLen {
		// The sender's adapter was to fill it in, as it cuts a large TCP segment into packets.
		total = len(b)
	}
	if b[0]>>4 != 4 || headerLen < 20 || total < headerLen {
		l.outcome = outcomeBad
		return
	}
	l.setIP(b, total)
	if len(l.ip) < headerLen {
		l.outcome = outcomeShort
		return
	}
	l.body, l.bodyLen, l.plain = l.ip[headerLen:], total-headerLen, headerLen == 20
	if fragment := binary.BigEndian.Uint16(b[6:]); fragment&0x3fff != 0 {
		l.outcome = outcomeFragmentIP
		if fragment&0x1fff != 0 {
			l.body, l.bodyLen = nil, 0
		}
		return
	}
	l.setBody(proto)
}

func (l *layers) decodeIPv6(b []byte) {
	if len(b) < 40 {
		l.outcome = outcomeShort
		return
	}
	l.v4 = false
	l.id = 0
	l.src, l.dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	payload := int(binary.BigEndian.Uint16(b[4:]))
	if payload == 0 {
		payload = len(b) - 40 // as in IPv4, or a jumbogram
	}
	l.setIP(b, 40+payload)
	if b[0]>>4 != 6 {
		l.outcome = outcomeBad
		return
	}
	next, rest, restLen := b[6], l.ip[40:], payload
	for { // ends: each turn takes at least 8 bytes
		n := 0
		switch next {
		case protoTCP, protoUDP:
			l.body, l.bodyLen, l.udpBody, l.plain = rest, restLen, next == protoUDP, restLen == payload
			l.setBody(next)
			return
		case protoHopByHop, protoRouting, protoDestOpts, protoAuth, protoFragment:
			if len(rest) < 8 {
				l.outcome = outcomeShort
				return
			}
			switch next {
			case protoAuth:
				n = (int(rest[1]) + 2) * 4
			case protoFragment:
				n = 8
				if offset := binary.BigEndian.Uint16(rest[2:]); offset&^6 != 0 { // an atomic fragment is whole
					if rest[0] != protoTCP && rest[0] != protoUDP {
						return
					}
					l.outcome = outcomeFragmentIP
					l.body, l.bodyLen, l.udpBody = nil, 0, rest[0] == protoUDP
					if offset>>3 == 0 {
						l.body, l.bodyLen = rest[8:], restLen-8
					}
					return
				}
			default:
				n = (int(rest[1]) + 1) * 8
			}
			if n > restLen {
				l.outcome = outcomeBad
				return
			}
			if n > len(rest) {
				l.outcome = outcomeShort
				return
			}
			next = rest[0]
			rest, restLen = rest[n:], restLen-n
		default: // protoNone, ESP and all others
			return
		}
	}
}

// setIP notes the IP packet of the given length at the start of b.
func (l *layers) setIP(b []byte, length int) {
	l.ipLen = length
	l.ip = b[:min(length, len(b))]
}

// setBody says what the body is.
func (l *layers) setBody(proto byte) {
	minLen := 8
	l.outcome = outcomeUDP
	if proto == protoTCP {
		minLen = 20
		l.outcome = outcomeTCP
	}
	switch {
	case l.bodyLen < minLen:
		l.outcome = outcomeBad
	case len(l.body) < minLen:
		l.outcome = outcomeShort
	}
}

// A tcpSegment is a decoded TCP header, and the payload as far as it was captured.
type tcpSegment struct {
	src, dst   uint16
	seq, ack   uint32
	flags      byte
	options    []byte
	payload    []byte
	payloadLen int // on the wire
}

const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

// tcp decodes the segment in the body; it reports false if the header is impossible, or its options were
// not captured whole.
func (l *layers) tcp() (s tcpSegment, ok bool) {
	b := l.body
	headerLen := int(b[12]>>4) * 4
	s = tcpSegment{
		src: binary.BigEndian.Uint16(b), dst: binary.BigEndian.Uint16(b[2:]),
		seq: binary.BigEndian.Uint32(b[4:]), ack: binary.BigEndian.Uint32(b[8:]),
		flags: b[13],
	}
	if headerLen < 20 || headerLen > l.bodyLen || headerLen > len(b) {
		return s, false
	}
	s.options = b[20:headerLen]
	s.payload = b[headerLen:]
	s.payloadLen = l.bodyLen - headerLen
	return s, true
}
