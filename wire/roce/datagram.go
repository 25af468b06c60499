package roce

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/gosmc/smc/wire"
)

// PacketICRC computes the ICRC of the RoCEv2 packet in the IP packet at the start of ip, and returns it
// with the one that the packet carries; they are equal if the packet is undamaged. Bytes after the end
// of the IP packet, such as the padding of a short Ethernet frame, do not count. ip is not changed.
//
// It is for callers that see whole packets, with any TOS, TTL and identification, and it is slow;
// callers that see UDP payloads have [Flow]. UDP ports are not looked at: the caller knows which
// packets are RoCEv2.
//
// IPv4 packets with options and fragments, and IPv6 packets with extension headers, are not RoCEv2
// packets: IBTA A17.3.1.1. Errors are of type [*wire.DecodeError].
func PacketICRC(ip []byte) (computed, carried uint32, err error) {
	packet, ipLen, err := cutIP(ip)
	if err != nil {
		return 0, 0, err
	}
	end := len(packet) - ICRCLen
	var h [ipv6HeaderLen + udpHeaderLen + BTHLen]byte
	n := copy(h[:ipLen+udpHeaderLen+BTHLen], packet)
	maskIP(h[:ipLen])
	maskUDP(h[ipLen:])
	h[ipLen+udpHeaderLen+4] = 0xff
	computed = crc32.Update(^hash(icrcStart, h[:n]), crc32.IEEETable, packet[n:end])
	return computed, binary.LittleEndian.Uint32(packet[end:]), nil
}

// cutIP returns the IP packet at the start of ip, which is long enough for a RoCEv2 packet, and the
// length of its IP header.
func cutIP(ip []byte) (packet []byte, ipLen int, err error) {
	fail := func(field string, offset int, err error) ([]byte, int, error) {
		return nil, 0, &wire.DecodeError{Message: "roce.IP", Field: field, Offset: offset, Err: err}
	}
	if len(ip) == 0 {
		return fail("message", 0, wire.ErrTruncated)
	}
	var total int
	switch ip[0] >> 4 {
	case 4:
		switch ipLen = ipv4HeaderLen; {
		case len(ip) < ipLen+udpHeaderLen:
			return fail("message", len(ip), wire.ErrTruncated)
		case ip[0]&0x0f != ipv4HeaderLen/4: // rule: TestPacketICRCErrors
			return fail("header length", 0, wire.ErrLength)
		case binary.BigEndian.Uint16(ip[ipv4Flags:])&0x3fff != 0: // rule: TestPacketICRCErrors
			return fail("fragment offset", ipv4Flags, wire.ErrValue)
		case ip[ipv4Protocol] != protocolUDP: // rule: TestPacketICRCErrors
			return fail("protocol", ipv4Protocol, wire.ErrType)
		}
		total = int(binary.BigEndian.Uint16(ip[ipv4TotalLength:]))
	case 6:
		switch ipLen = ipv6HeaderLen; {
		case len(ip) < ipLen+udpHeaderLen:
			return fail("message", len(ip), wire.ErrTruncated)
		case ip[ipv6NextHeader] != protocolUDP: // rule: TestPacketICRCErrors
			return fail("next header", ipv6NextHeader, wire.ErrType)
		}
		total = ipLen + int(binary.BigEndian.Uint16(ip[ipv6PayloadLength:]))
	default:
		return fail("version", 0, wire.ErrVersion)
	}
	switch udpLen := int(binary.BigEndian.Uint16(ip[ipLen+udpLength:])); {
	case udpLen != total-ipLen, udpLen < udpHeaderLen+MinPacketLen: // rule: TestPacketICRCErrors
		return fail("UDP length", ipLen+udpLength, wire.ErrLength)
	case len(ip) < total:
		return fail("message", len(ip), wire.ErrTruncated)
	}
	return ip[:total], ipLen, nil
}
