package dissect

import (
	"encoding/binary"
	"net/netip"

	"github.com/gosmc/smc/internal/frame"
)

// A Packet is one packet of a capture. The tracker keeps nothing of its Data.
type Packet = frame.Packet

// layers holds the decoded headers of a packet up to UDP or TCP. Its slices are parts of the
// packet.
type layers struct {
	outcome  outcome
	src, dst netip.Addr
	ip       []byte // the IP packet, without the bytes after it in the frame
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
	etherType, b, whole := frame.Strip(p.Link, p.Data)
	switch {
	case !whole:
		l.outcome = outcomeShort
	case etherType == frame.TypeIPv4:
		l.decodeIPv4(b)
	case etherType == frame.TypeIPv6:
		l.decodeIPv6(b)
	}
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
				if offset := binary.BigEndian.Uint16(rest[2:]); offset&^6 != 0 {
					// an atomic fragment is whole
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

// setBody sets the outcome by the protocol of the body.
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
