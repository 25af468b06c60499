package dissect

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/roce"
)

// cdcPacket returns an IP packet with a CDC message of an unknown connection.
func cdcPacket(src, dst string) []byte {
	m := cdc.Message{Seq: 1, AlertToken: 5}
	p := roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly, PKey: roce.DefaultPKey, DestQPN: 9, PSN: 7}, Payload: m.Append(nil)}
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	if s.Is4() {
		return dissecttest.RoCEPacket(s, d, &p)
	}
	from, to := netip.AddrPortFrom(s, 50000), netip.AddrPortFrom(d, roce.Port)
	b := append(p.Append(nil), 0, 0, 0, 0)
	flow := roce.NewFlow(from, to)
	flow.Seal(0, b)
	udp := binary.BigEndian.AppendUint16(nil, from.Port())
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(b)))
	return ipv6(protoUDP, s, d, append(append(udp, 0, 0), b...))
}

func ipv6(next byte, src, dst netip.Addr, body []byte) []byte {
	b := []byte{0x60, 0, 0, 0, 0, 0, next, 64}
	binary.BigEndian.PutUint16(b[4:], uint16(len(body)))
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	return append(b, body...)
}

// insert returns an IPv6 packet with an extension header before its body.
func insert(ip []byte, kind byte, header ...byte) []byte {
	header[0] = ip[6]
	out := append([]byte(nil), ip[:40]...)
	out[6] = kind
	binary.BigEndian.PutUint16(out[4:], uint16(len(ip)-40+len(header)))
	return append(append(out, header...), ip[40:]...)
}

// eventsOf returns the events of one packet as text.
func eventsOf(link frame.LinkType, data []byte) string {
	lines, _ := track([]Packet{{Number: 1, Link: link, Data: data, OrigLen: len(data)}}, Options{})
	return strings.Join(lines, "\n")
}

// TestLinkLayers wraps the same message in everything that can be around it.
func TestLinkLayers(t *testing.T) {
	v4, v6 := cdcPacket("10.0.0.1", "10.0.0.2"), cdcPacket("fd00::1", "fd00::2")
	macs := make([]byte, 12)
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	const found = "1 CDC CDC seq=1 token=0x5"
	const inExtension = found + " producer=0000:00000000 consumer=0000:00000000 psn=0x7 icrc=not checkable"
	for _, tt := range []struct {
		name string
		link frame.LinkType
		data []byte
		want string
	}{
		{"Ethernet, IPv4", frame.Ethernet, join(macs, []byte{8, 0}, v4), found},
		{"Ethernet, IPv6", frame.Ethernet, join(macs, []byte{0x86, 0xdd}, v6), found},
		{"Ethernet with padding", frame.Ethernet, join(macs, []byte{8, 0}, v4, make([]byte, 10)), found},
		{"VLAN", frame.Ethernet, join(macs, []byte{0x81, 0, 0, 5, 8, 0}, v4), found},
		{"QinQ", frame.Ethernet, join(macs, []byte{0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x86, 0xdd}, v6), found},
		{"old QinQ", frame.Ethernet, join(macs, []byte{0x91, 0, 0, 5, 0x81, 0, 0, 6, 8, 0}, v4), found},
		{"cooked", frame.Cooked, join(make([]byte, 14), []byte{8, 0}, v4), found},
		{"cooked VLAN", frame.Cooked, join(make([]byte, 14), []byte{0x81, 0, 0, 5, 8, 0}, v4), found},
		{"cooked v2", frame.Cooked2, join([]byte{0x86, 0xdd}, make([]byte, 18), v6), found},
		{"cooked v2, VLAN", frame.Cooked2, join([]byte{0x81, 0}, make([]byte, 18), []byte{0, 5, 0x86, 0xdd}, v6), found},
		{"cooked v2, QinQ", frame.Cooked2, join([]byte{0x88, 0xa8}, make([]byte, 18), []byte{0, 5, 0x81, 0, 0, 6, 8, 0}, v4), found},
		{"IPv4", frame.IPv4, v4, found},
		{"IPv6", frame.IPv6, v6, found},
		{"null, little-endian", frame.Null, join([]byte{2, 0, 0, 0}, v4), found},
		{"null, IPv6 of some BSD", frame.Null, join([]byte{30, 0, 0, 0}, v6), found},
		{"loop", frame.Loop, join([]byte{0, 0, 0, 2}, v4), found},
		{"raw IPv4", frame.Raw, v4, found},
		{"raw IPv6", frame.Raw12, v6, found},
		{"raw 14", frame.Raw14, v6, found},
		{"other link type", 147, v4, ""},
		{"ARP", frame.Ethernet, join(macs, []byte{8, 6}, v4), ""},
		{"another UDP port", frame.Raw, join(v4[:22], []byte{0, 53}, v4[24:]), ""},
		{"another protocol", frame.Raw, join(v4[:9], []byte{1}, v4[10:]), ""},
		{"hop by hop", frame.Raw, insert(v6, protoHopByHop, make([]byte, 8)...), inExtension},
		{"two extensions", frame.Raw, insert(insert(v6, protoDestOpts, append([]byte{0, 1}, make([]byte, 14)...)...), protoRouting, make([]byte, 8)...), inExtension},
		{"authentication", frame.Raw, insert(v6, protoAuth, append([]byte{0, 2}, make([]byte, 14)...)...), inExtension},
		{"atomic fragment", frame.Raw, insert(v6, protoFragment, make([]byte, 8)...), inExtension},
		{"first fragment, IPv6", frame.Raw, insert(v6, protoFragment, 0, 0, 0, 1, 0, 0, 0, 0), "1 note fragment"},
		{"later fragment, IPv6", frame.Raw, insert(v6, protoFragment, 0, 0, 0, 9, 0, 0, 0, 0), ""},
		{"extension that lies", frame.Raw, insert(v6, protoDestOpts, 0, 200, 0, 0, 0, 0, 0, 0), ""},
		{"no next header", frame.Raw, insert(v6, protoNone, make([]byte, 8)...), ""},
		{"first fragment", frame.Raw, join(v4[:6], []byte{0x20, 0}, v4[8:]), "1 note fragment"},
		{"later fragment", frame.Raw, join(v4[:6], []byte{0, 9}, v4[8:]), ""},
		{"IPv4 options", frame.Raw, join([]byte{0x46, 0, 0, byte(len(v4) + 4)}, v4[4:20], []byte{1, 1, 1, 1}, v4[20:]), inExtension},
		{"IPv4 header that lies", frame.Raw, join([]byte{0x44}, v4[1:]), ""},
		{"no total length", frame.Raw, join(v4[:2], []byte{0, 0}, v4[4:]), found},
		{"UDP length that lies", frame.Raw, join(v4[:24], []byte{1, 0}, v4[26:]), "1 RoCE malformed packet [malformed: the UDP length does not fit the IP packet]"},
		{"UDP length of nothing", frame.Raw, join(v4[:24], []byte{0, 7}, v4[26:]), "1 RoCE malformed packet"},
		{"another transport", frame.Raw, join(v4[:28], []byte{0x64}, v4[29:]), `1 RoCE other packet "opcode 0x64, not of a reliable connection"`},
		{"knock", frame.Raw, join(v4[:24], []byte{0, 9}, v4[26:28], []byte{0}), `1 RoCE knock "asks the kernel whether anybody has the port"`},
		{"knock at a queue pair", frame.Raw, join(v4[:24], []byte{0, 16}, v4[26:28], []byte{0, 0, 0, 0, 0, 0, 1, 2}), `1 RoCE knock "asks the kernel whether anybody has queue pair 0x102"`},
		{"a byte that is no knock", frame.Raw, join(v4[:24], []byte{0, 9}, v4[26:28], []byte{1}), "1 RoCE malformed packet"},
		{"BTH of another version", frame.Raw, join(v4[:29], []byte{1}, v4[30:]), "1 RoCE malformed packet [malformed: roce.Packet"},
		{"nothing", frame.Ethernet, nil, ""},
	} {
		got := eventsOf(tt.link, tt.data)
		if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// TestTruncatedPackets cuts a packet at every length: the bytes that are there are decoded, and
// missing ones are not guessed.
func TestTruncatedPackets(t *testing.T) {
	for _, ip := range [][]byte{cdcPacket("10.0.0.1", "10.0.0.2"), cdcPacket("fd00::1", "fd00::2")} {
		udp := 20
		if ip[0]>>4 == 6 {
			udp = 40
		}
		for n := range ip {
			got := eventsOf(frame.Raw, ip[:n:n])
			want := ""
			switch bth := udp + 8; {
			case n < udp+4:
			case n < udp+8:
				want = "1 note undecodable"
			case n < bth+roce.BTHLen:
				want = "1 RoCE truncated packet [truncated: the capture ends within the headers]"
			case n < bth+roce.BTHLen+cdc.MessageLen:
				want = "1 RoCE SEND psn=0x7 icrc=not checkable [truncated: the capture does not have the whole packet]"
			default: // all but the ICRC
				want = "1 CDC CDC seq=1 token=0x5"
			}
			if !strings.HasPrefix(got, want) || want == "" && got != "" {
				t.Errorf("first %d of %d bytes: %s\nwant %s", n, len(ip), got, want)
			}
		}
	}
}
