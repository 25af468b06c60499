package udp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// vnet is the header of a packet socket: flags, GSO type and GSO size.
func vnet(flags, gsoType byte, gsoSize uint16) []byte {
	b := make([]byte, vnetHeaderLen)
	b[0], b[1] = flags, gsoType
	binary.NativeEndian.PutUint16(b[4:], gsoSize)
	return b
}

// A CNP that a ConnectX-4 Lx has sent, in scapy's test/contrib/roce.uts: from the IPv4 header on. Its
// UDP checksum is 0, its identification 0x718c.
const capturedCNP = "45c2003c718c4000401191610a0011010a001201 000012b700280000" +
	"8100ffff4000011800000000 00000000000000000000000000000000 82fd002a"

// ipv4Packet lays a UDP datagram out by hand, with right checksums: RFC 791, RFC 768, RFC 1071.
func ipv4Packet(src, dst netip.AddrPort, id uint16, payload []byte) []byte {
	b := make([]byte, ipv4HeaderLen+udpHeaderLen, ipv4HeaderLen+udpHeaderLen+len(payload))
	b = append(b, payload...)
	b[0] = 0x45
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[4:], id)
	b[6] = 0x40 // do not fragment
	b[8], b[9] = 64, unix.IPPROTO_UDP
	s, d := src.Addr().As4(), dst.Addr().As4()
	copy(b[12:], s[:])
	copy(b[16:], d[:])
	binary.BigEndian.PutUint16(b[20:], src.Port())
	binary.BigEndian.PutUint16(b[22:], dst.Port())
	binary.BigEndian.PutUint16(b[24:], uint16(udpHeaderLen+len(payload)))
	fixSums(b)
	return b
}

// fixSums writes the checksums of an IPv4 packet with UDP.
func fixSums(b []byte) {
	header := int(b[0]&0xf) * 4
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], ^plainSum(b[:header]))
	udp := b[header:]
	udp[6], udp[7] = 0, 0
	pseudo := slices.Concat(b[12:20], []byte{0, unix.IPPROTO_UDP}, binary.BigEndian.AppendUint16(nil, uint16(len(udp))), udp)
	binary.BigEndian.PutUint16(udp[6:], ^plainSum(pseudo))
}

// plainSum is the ones'-complement sum of RFC 1071 word by word: sum and fold compute it fast.
func plainSum(b []byte) uint16 {
	var s uint32
	for i, v := range b {
		if i%2 == 0 {
			s += uint32(v) << 8
		} else {
			s += uint32(v)
		}
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

func TestSum(t *testing.T) {
	b := make([]byte, 70_000)
	for i := range b {
		b[i] = byte(i*i>>3 + i)
	}
	for _, n := range []int{0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 20, 31, 40, 1047, 65535} {
		for at := range 3 {
			if got, want := fold(sum(0, b[at:at+n])), plainSum(b[at:at+n]); got != want {
				t.Errorf("sum of %d bytes from %d = %#x, want %#x", n, at, got, want)
			}
		}
	}
	all := bytes.Repeat([]byte{0xff}, 65536)
	if got := fold(sum(0, all)); got != 0xffff {
		t.Errorf("sum of ones = %#x", got)
	}
}

func TestParsePacket(t *testing.T) {
	src, dst := netip.MustParseAddrPort("10.0.0.1:49443"), netip.MustParseAddrPort("10.0.0.2:4791")
	good := ipv4Packet(src, dst, 0xfffe, []byte("payload"))
	cnp := unhex(t, capturedCNP)
	ether := make([]byte, etherHeaderLen)
	change := func(at int, to ...byte) []byte {
		b := slices.Clone(good)
		copy(b[at:], to)
		return b
	}
	fixed := func(b []byte) []byte { fixSums(b); return b }
	header := func(b []byte) []byte { // only the header's checksum is right
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], ^plainSum(b[:ipv4HeaderLen]))
		return b
	}
	withOptions := slices.Concat([]byte{0x46}, good[1:20], []byte{1, 1, 1, 1}, good[20:])
	longer := header(change(3, good[3]+1))
	longer[25]++ // the UDP length, too
	for _, tt := range []struct {
		name    string
		vnet    []byte
		link    []byte
		packet  []byte
		data    string
		segment int
		id      uint16
		err     error
	}{
		{"captured CNP", vnet(0, 0, 0), ether, cnp, string(cnp[28:]), len(cnp) - 28, 0x718c, nil},
		{"no link header", vnet(0, 0, 0), nil, good, "payload", 7, 0xfffe, nil},
		{"filled frame", vnet(0, 0, 0), ether, append(slices.Clone(good), 0, 0, 0, 0, 0, 0), "payload", 7, 0xfffe, nil},
		{"super-packet", vnet(vnetNeedsSum, vnetGSOUDP, 3), ether, good, "payload", 3, 0xfffe, nil},
		{"super-packet with ECN", vnet(vnetNeedsSum, vnetGSOUDP|0x80, 3), ether, good, "payload", 3, 0xfffe, nil},
		{"super-packet of one", vnet(vnetNeedsSum, vnetGSOUDP, 7), ether, good, "payload", 7, 0xfffe, nil},
		{"larger segments than data", vnet(vnetNeedsSum, vnetGSOUDP, 8), ether, good, "payload", 7, 0xfffe, nil},
		{"segments of nothing", vnet(vnetNeedsSum, vnetGSOUDP, 0), ether, good, "payload", 7, 0xfffe, nil},
		{"segments without super-packet", vnet(0, 0, 3), ether, good, "payload", 7, 0xfffe, nil},
		{"other kind of super-packet", vnet(vnetNeedsSum, 3, 3), ether, good, "payload", 7, 0xfffe, nil},
		{"empty", vnet(0, 0, 0), ether, ipv4Packet(src, dst, 1, nil), "", 1, 1, nil},
		{"checksum not yet computed", vnet(vnetNeedsSum, 0, 0), ether, change(27, ^good[27]), "payload", 7, 0xfffe, nil},
		{"checksum verified by others", vnet(vnetSumValid, 0, 0), ether, change(27, ^good[27]), "payload", 7, 0xfffe, nil},
		{"no checksum", vnet(0, 0, 0), ether, change(26, 0, 0), "payload", 7, 0xfffe, nil},

		{"wrong checksum", vnet(0, 0, 0), ether, change(27, ^good[27]), "", 0, 0, errChecksum},
		{"changed payload", vnet(0, 0, 0), ether, change(30, 'z'), "", 0, 0, errChecksum},
		{"changed header", vnet(vnetNeedsSum, 0, 0), ether, change(4, 7), "", 0, 0, errChecksum},
		{"options", vnet(0, 0, 0), ether, withOptions, "", 0, 0, errOptions},
		{"short header", vnet(0, 0, 0), ether, change(0, 0x44), "", 0, 0, errHeader},
		{"other version", vnet(0, 0, 0), ether, change(0, 0x65), "", 0, 0, errHeader},
		{"version 6 with options", vnet(0, 0, 0), ether, change(0, 0x66), "", 0, 0, errHeader},
		{"other protocol", vnet(0, 0, 0), ether, header(change(9, 6)), "", 0, 0, errHeader},
		{"first fragment", vnet(0, 0, 0), ether, header(change(6, 0x20)), "", 0, 0, errHeader},
		{"last fragment", vnet(0, 0, 0), ether, header(change(6, 0, 1)), "", 0, 0, errHeader},
		{"total length beyond the packet", vnet(0, 0, 0), ether, header(change(3, 36)), "", 0, 0, errLength},
		{"both lengths beyond the packet", vnet(0, 0, 0), ether, longer, "", 0, 0, errLength},
		{"UDP length below its header", vnet(0, 0, 0), ether, change(24, 0, 7), "", 0, 0, errLength},
		{"UDP shorter than IP", vnet(0, 0, 0), ether, change(24, 0, 14), "", 0, 0, errLength},
		{"UDP longer than IP", vnet(0, 0, 0), ether, change(24, 0xff, 0xff), "", 0, 0, errLength},
		{"total length 0", vnet(0, 0, 0), ether, header(change(2, 0, 0)), "", 0, 0, errLength},
		{"from a group", vnet(0, 0, 0), ether, fixed(change(12, 224, 0, 0, 1)), "", 0, 0, errSource},
		{"from nobody", vnet(0, 0, 0), ether, fixed(change(12, 0, 0, 0, 0)), "", 0, 0, errSource},
		{"from everybody", vnet(0, 0, 0), ether, fixed(change(12, 255, 255, 255, 255)), "", 0, 0, errSource},
	} {
		b := slices.Concat(tt.vnet, tt.link, tt.packet)
		m, err := parsePacket(b, len(tt.link), false)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: parsePacket: %v, want %v", tt.name, err, tt.err)
			continue
		}
		if err != nil {
			continue
		}
		if string(m.Data) != tt.data || m.SegmentSize != tt.segment || m.FirstID != tt.id || !m.HasID || m.Truncated {
			t.Errorf("%s: parsePacket = %+v, want %q in segments of %d, identification %d", tt.name, m, tt.data, tt.segment, tt.id)
		}
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(tt.packet[12:16])), binary.BigEndian.Uint16(tt.packet[20:]))
		if m.From != from {
			t.Errorf("%s: from %v, want %v", tt.name, m.From, from)
		}
	}

	// Every length: whole, or cut by a buffer that was too small.
	whole := slices.Concat(vnet(0, 0, 0), ether, good)
	headers := vnetHeaderLen + etherHeaderLen + ipv4HeaderLen + udpHeaderLen
	for n := range whole {
		if m, err := parsePacket(whole[:n], len(ether), false); err == nil {
			t.Errorf("parsePacket of %d of %d bytes = %+v, want an error", n, len(whole), m)
		}
		m, err := parsePacket(whole[:n], len(ether), true)
		if n < headers && err == nil || n >= headers && (err != nil || !m.Truncated || len(m.Data) != n-headers) {
			t.Errorf("parsePacket of the first %d of %d bytes = %+v, %v", n, len(whole), m, err)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	src, dst := netip.MustParseAddrPort("10.0.0.1:49443"), netip.MustParseAddrPort("10.0.0.2:4791")
	ether := make([]byte, etherHeaderLen)
	f.Add(slices.Concat(vnet(0, 0, 0), ether, unhex(f, capturedCNP)), true, false)
	f.Add(slices.Concat(vnet(1, 5, 3), ipv4Packet(src, dst, 7, []byte("payload"))), false, false)
	f.Add(slices.Concat(vnet(0, 0, 0), ether, ipv4Packet(src, dst, 7, []byte("payload")), make([]byte, 6)), true, true)
	f.Fuzz(func(t *testing.T, b []byte, withLink, truncated bool) {
		link := 0
		if withLink {
			link = etherHeaderLen
		}
		m, err := parsePacket(b, link, truncated)
		if err != nil {
			return
		}
		if m.Truncated && !truncated || m.SegmentSize < 1 || m.SegmentSize > max(1, len(m.Data)) ||
			len(m.Data) > MaxPayload4 || vnetHeaderLen+link+ipv4HeaderLen+udpHeaderLen+len(m.Data) > len(b) {
			t.Errorf("parsePacket(%x) = %+v", b, m)
		}
		n := 0
		for i := range m.Segments() {
			datagram, _ := m.Segment(i)
			n += len(datagram)
		}
		if n != len(m.Data) {
			t.Errorf("parsePacket(%x): segments have %d of %d bytes", b, n, len(m.Data))
		}
	})
}
