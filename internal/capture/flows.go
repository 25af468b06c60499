package capture

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/frame"
)

// A flows is the second filter of a live capture: it drops the packets that the kernel's filter
// passes without need. It knows the TCP connections that showed the SMC option or an eyecatcher,
// and keeps of them
//
//	segments with SYN, FIN or RST
//	the first handshakeBytes of either direction, counted from the SYN or, if that
//	was not seen, from the first CLC message
//
// and all other segments that begin with an eyecatcher, and all of UDP port 4791.
type flows struct {
	young, old map[flowKey]flow // a flow of old that is seen goes to young
	limit      int              // of each; when young has as many it becomes old
}

// A flowKey is a TCP connection: both ends, the lower first.
type flowKey struct{ low, high flowEnd }

type flowEnd struct {
	addr [16]byte // IPv4 as IPv6 has it
	port uint16
}

func (e *flowEnd) less(o *flowEnd) bool {
	if c := slices.Compare(e.addr[:], o.addr[:]); c != 0 {
		return c < 0
	}
	return e.port < o.port
}

// A flow holds the state of each direction: first from low, then from high.
type flow [2]struct {
	known bool   // base is known
	base  uint32 // sequence number of the first byte
}

func newFlows(limit int) *flows {
	return &flows{young: make(map[flowKey]flow), limit: max(limit/2, 1)}
}

// get returns a flow that is known.
func (t *flows) get(key flowKey) (flow, bool) {
	if f, ok := t.young[key]; ok {
		return f, true
	}
	f, ok := t.old[key]
	if ok {
		t.put(key, f)
	}
	return f, ok
}

func (t *flows) put(key flowKey, f flow) {
	if _, ok := t.young[key]; !ok && len(t.young) == t.limit {
		t.old, t.young = t.young, make(map[flowKey]flow)
	}
	t.young[key] = f
}

func (t *flows) forget(key flowKey) {
	delete(t.young, key)
	delete(t.old, key)
}

// wanted reports whether a packet is to be kept. ether is its EtherType, and b begins with its
// network header.
func (t *flows) wanted(ether uint16, b []byte) bool {
	var key flowKey
	var protocol uint8
	switch {
	case ether == frame.TypeIPv4 && len(b) >= 20:
		header := int(b[0]&0x0f) * 4
		if header < 20 || len(b) < header || binary.BigEndian.Uint16(b[6:])&ipv4Offset != 0 {
			return false
		}
		key.low.addr, key.high.addr = mapped(b[12:16]), mapped(b[16:20])
		protocol = b[9]
		if total := int(binary.BigEndian.Uint16(b[2:])); total >= header && total < len(b) {
			b = b[:total] // the bytes after it fill an Ethernet frame
		}
		b = b[header:]
	case ether == frame.TypeIPv6 && len(b) >= 40:
		key.low.addr, key.high.addr = [16]byte(b[8:24]), [16]byte(b[24:40])
		protocol = b[6]
		if total := int(binary.BigEndian.Uint16(b[4:])) + 40; total > 40 && total < len(b) {
			b = b[:total]
		}
		if protocol, b = skipExtensions(protocol, b[40:]); b == nil {
			return false
		}
	default:
		return false
	}
	if len(b) < 8 {
		return false
	}
	key.low.port, key.high.port = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	switch protocol {
	case unix.IPPROTO_UDP:
		return key.low.port == rocePort || key.high.port == rocePort
	case unix.IPPROTO_TCP:
		return t.segment(key, b)
	}
	return false
}

// mapped is an IPv4 address as IPv6 has it.
func mapped(b []byte) [16]byte {
	return [16]byte{10: 0xff, 11: 0xff, 12: b[0], 13: b[1], 14: b[2], 15: b[3]}
}

// skipExtensions goes past the extension headers of IPv6. It returns nil where the packet ends in
// one, or is a later fragment: RFC 8200 §4.
func skipExtensions(protocol uint8, b []byte) (uint8, []byte) {
	for slices.Contains(ipv6Extensions, protocol) {
		if len(b) < 8 {
			return 0, nil
		}
		length := 8 + 8*int(b[1])
		switch protocol {
		case unix.IPPROTO_FRAGMENT:
			if length = 8; binary.BigEndian.Uint16(b[2:])&^7 != 0 {
				return 0, nil
			}
		case unix.IPPROTO_AH:
			length = 8 + 4*int(b[1])
		}
		if len(b) < length {
			return 0, nil
		}
		protocol, b = b[0], b[length:]
	}
	return protocol, b
}

// segment reports whether a TCP segment is to be kept. The ends in key are source and destination.
func (t *flows) segment(key flowKey, b []byte) bool {
	if len(b) < 20 {
		return false
	}
	from := 0
	if key.high.less(&key.low) {
		key.low, key.high = key.high, key.low
		from = 1
	}
	seq, ack, flags := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), b[13]
	header := min(max(int(b[12]>>4)*4, 20), len(b))
	f, known := t.get(key)
	switch {
	case flags&tcpSYN != 0:
		return t.syn(key, f, known, from, seq+1, flags&tcpACK != 0, hasOption(b[20:header]))
	case flags&(tcpFIN|tcpRST) != 0 && known:
		return true
	case isEyecatcher(b[header:]):
		if !known {
			f[1-from].known, f[1-from].base = flags&tcpACK != 0, ack
		}
		if !f[from].known {
			f[from].known, f[from].base = true, seq
		}
		t.put(key, f)
		return true
	case !known || !f[from].known:
		return false
	}
	// A difference below zero is of bytes that are sent again.
	into := int32(seq - f[from].base)
	return into > -handshakeBytes && into < handshakeBytes
}

// syn reports whether a SYN is to be kept: it, or that which it answers, has the option.
func (t *flows) syn(key flowKey, f flow, known bool, from int, base uint32, answer, option bool) bool {
	again := known && f[from].known && f[from].base == base
	if known && !answer && !again { // the ports are used again
		t.forget(key)
		f, known = flow{}, false
	}
	if !known && !option {
		return false
	}
	f[from].known, f[from].base = true, base
	t.put(key, f)
	return true
}

// hasOption looks for the SMC option among TCP options: kind 254, eyecatcher. RFC 7609 p.92.
func hasOption(b []byte) bool {
	for len(b) > 0 && b[0] != unix.TCPOPT_EOL {
		if b[0] == unix.TCPOPT_NOP {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return false
		}
		if b[0] == optionSMC && isEyecatcher(b[2:b[1]]) {
			return true
		}
		b = b[b[1]:]
	}
	return false
}

// isEyecatcher reports whether b begins with one of SMC.
func isEyecatcher(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	eye := binary.BigEndian.Uint32(b)
	return eye == eyeSMCR || eye == eyeSMCD
}
