package roce

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

var (
	v4Source      = netip.MustParseAddrPort("10.0.0.1:49443")
	v4Destination = netip.MustParseAddrPort("10.0.0.2:4791")
	v6Source      = netip.MustParseAddrPort("[fd00::1]:49443")
	v6Destination = netip.MustParseAddrPort("[fd00::2]:4791")
)

// zeros returns n zero bytes in hexadecimal.
func zeros(n int) string { return strings.Repeat("00", n) }

// IP packets with the ICRC in their last 4 bytes. The first three are from
// <https://github.com/secdev/scapy>, test/contrib/roce.uts; the others were computed by another
// implementation, which gives the first three too.
var icrcVectors = []struct{ name, hex string }{
	{
		"CNP captured from an adapter", "45c2003c718c4000401191610a0011010a001201 000012b700280000 8100ffff4000011800000000" +
			zeros(16) + "82fd002a",
	}, {
		"UC SEND ONLY of scapy, IPv4", "45010040 0478 4000 40 11 0000 c0a80007 c0a80007 c00012b7002c0000" +
			"2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3",
	}, {
		"UC SEND ONLY of scapy, IPv6", "6e21face 002c 11 ff 20220000000000000000000000001023 20230000000000000000000000001024 c00012b7002c0000" +
			"2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 3e5b743b",
	}, {
		"RC WRITE ONLY, IPv4", "4500004400004000401126a70a0000010a000002c12312b7003000000a70ffff000000128000010011223344556677880000123400000005" +
			"68656c6c6f00000021d79f16",
	}, {
		"RC WRITE ONLY, IPv6", "6000000000301140fd000000000000000000000000000001fd000000000000000000000000000002c12312b700300000" +
			"0a70ffff00000012800001001122334455667788000012340000000568656c6c6f000000a8eda9c8",
	}, {
		"RC ACKNOWLEDGE", "4500003000004000401126bb0a0000010a000002c12312b7001c00001140ffff00000011000001001f000001cdf4dcc4",
	}, {
		"RC ACKNOWLEDGE, NAK", "4500003000004000401126bb0a0000010a000002c12312b7001c00001140ffff000000110000010160000001b76de0ca",
	}, {
		"RC SEND ONLY", "4500005800004000401126930a0000010a000002c12312b70044000004c0ffff0000001280000101fe2c" + zeros(42) + "0f099e07",
	},
}

// split returns the part of an IP packet that a socket would see.
func split(t testing.TB, ip []byte) (f Flow, id uint16, payload []byte) {
	t.Helper()
	packet, ipLen, err := cutIP(ip)
	if err != nil {
		t.Fatalf("cutIP(%x): %v", ip, err)
	}
	var src, dst netip.Addr
	if ipLen == ipv4HeaderLen {
		id = binary.BigEndian.Uint16(packet[4:])
		src, dst = netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
	} else {
		src, dst = netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40]))
	}
	udp := packet[ipLen:]
	return NewFlow(netip.AddrPortFrom(src, binary.BigEndian.Uint16(udp)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(udp[2:]))), id, udp[8:]
}

// checkICRC checks the ICRC of an undamaged IP packet in all ways there are.
func checkICRC(t *testing.T, name string, ip []byte) {
	t.Helper()
	before := bytes.Clone(ip)
	if computed, carried, err := PacketICRC(ip); computed != carried || err != nil {
		t.Errorf("%s: PacketICRC = %#x, %#x, %v; want the same twice", name, computed, carried, err)
	}
	f, id, b := split(t, ip)
	n := len(b) - ICRCLen
	if got, want := f.ICRC(id, b[:n]), binary.LittleEndian.Uint32(b[n:]); got != want {
		t.Errorf("%s: ICRC(%#x) = %#x, want %#x", name, id, got, want)
	}
	if got, v := f.Verify(id, b); got != id || v != Exact {
		t.Errorf("%s: Verify(%#x) = %#x, %v; want exact", name, id, got, v)
	}
	if ip[0]>>4 == 4 {
		for _, other := range []uint16{0, id ^ 1, ^id, id + 0x100, id ^ 0x8000} {
			want := Solved
			if other == id {
				want = Exact
			}
			if got, v := f.Verify(other, b); got != id || v != want {
				t.Errorf("%s: Verify(%#x) = %#x, %v; want %#x, %v", name, other, got, v, id, want)
			}
		}
	} else if got, v := f.Verify(^id, b); got != ^id || v != Exact {
		t.Errorf("%s: Verify(%#x) = %#x, %v; want exact", name, ^id, got, v)
	}
	if !bytes.Equal(ip, before) {
		t.Errorf("%s: the packet was changed", name)
	}
	sealed := bytes.Clone(b)
	clear(sealed[n:])
	if f.Seal(id, sealed); !bytes.Equal(sealed, b) {
		t.Errorf("%s: Seal(%#x):\n got %x\nwant %x", name, id, sealed, b)
	}
}

func TestICRC(t *testing.T) {
	for _, tt := range icrcVectors {
		checkICRC(t, tt.name, unhex(t, tt.hex))
	}
}

// randomIP returns an IP packet around b, with all that may change on the way set at random, and
// with its ICRC set by PacketICRC.
func randomIP(t testing.TB, r *rand.Rand, v4 bool, b []byte) []byte {
	t.Helper()
	udpLen := udpHeaderLen + len(b)
	ip := make([]byte, ipv6HeaderLen)
	if v4 {
		ip = ip[:ipv4HeaderLen]
	}
	for i := range ip {
		ip[i] = byte(r.Uint32())
	}
	if v4 {
		ip[0], ip[6], ip[7], ip[9] = 0x45, 0x40, 0, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4HeaderLen+udpLen))
	} else {
		ip[0], ip[6] = 0x60|ip[0]&0x0f, 17
		binary.BigEndian.PutUint16(ip[4:], uint16(udpLen))
	}
	if a, ok := netip.AddrFromSlice(ip[len(ip)-16:]); !v4 && ok && a.Is4In6() {
		t.Fatalf("%v: not an address to test with", a)
	}
	ip = binary.BigEndian.AppendUint32(ip, r.Uint32()) // ports
	ip = binary.BigEndian.AppendUint16(ip, uint16(udpLen))
	ip = binary.BigEndian.AppendUint16(ip, uint16(r.Uint32()))
	ip = append(ip, b...)
	computed, _, err := PacketICRC(ip)
	if err != nil {
		t.Fatalf("PacketICRC: %v", err)
	}
	binary.LittleEndian.PutUint32(ip[len(ip)-ICRCLen:], computed)
	return ip
}

// TestICRCAllLengths compares the fast way with the plain one for packets of every length that
// can be sent, up to the largest UDP datagram.
func TestICRCAllLengths(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 65527)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	check := func(n int) {
		if n <= 65507 {
			checkICRC(t, "IPv4", randomIP(t, r, true, b[:n]))
		}
		if n <= 65527 {
			checkICRC(t, "IPv6", randomIP(t, r, false, b[:n]))
		}
	}
	for n := MinPacketLen; n <= 4200; n += 4 {
		b[4] = byte(n / 4) // every value of the byte that does not count
		check(n)
	}
	for n := 4204; n <= len(b); n += 4 * (1 + r.IntN(200)) {
		check(n)
	}
	for _, n := range []int{8168, 8172, 8192, 8196, 65500, 65504, 65524} {
		check(n)
	}
}

// TestVerifyBad gives Verify datagrams that are no packets.
func TestVerifyBad(t *testing.T) {
	f4, f6 := NewFlow(v4Source, v4Destination), NewFlow(v6Source, v6Destination)
	b := make([]byte, 1<<17)
	for _, n := range []int{0, 1, 3, 4, 8, 12, 13, 14, 15, 17, 18, 19, 1041, 65528, 65532, 65536, 1 << 17} {
		b := b[:n:n]
		if n >= MinPacketLen {
			f4.Seal(7, b) // right, but for the length
		}
		if got, v := f4.Verify(7, b); got != 0 || v != Bad {
			t.Errorf("Verify of %d bytes = %d, %v; want bad", n, got, v)
		}
		if n >= MinPacketLen {
			f6.Seal(7, b)
		}
		if got, v := f6.Verify(7, b); got != 0 || v != Bad {
			t.Errorf("Verify of %d bytes = %d, %v; want bad", n, got, v)
		}
	}
	for v, want := range map[Verdict]string{Bad: "bad", Exact: "exact", Solved: "solved", 3: "impossible verdict"} {
		if got := v.String(); got != want {
			t.Errorf("Verdict(%d).String() = %q, want %q", uint8(v), got, want)
		}
	}
}

// TestVerifyDamage changes every bit of packets, and of the bytes around them.
func TestVerifyDamage(t *testing.T) {
	for _, tt := range icrcVectors {
		ip := unhex(t, tt.hex)
		v4 := ip[0]>>4 == 4
		wrongSolved, tried := 0, 0
		for bit := range 8 * len(ip) {
			b := bytes.Clone(ip)
			b[bit/8] ^= 1 << (bit % 8)
			computed, carried, err := PacketICRC(b)
			bth := 28
			if !v4 {
				bth = 48
			}
			if bit/8 < bth || bit/8 == bth+4 { // headers, or the byte that does not count
				masked := v4 && (bit/8 == 1 || bit/8 == 8 || bit/8 == 10 || bit/8 == 11) ||
					!v4 && (bit/8 == 0 && bit%8 < 4 || bit/8 >= 1 && bit/8 <= 3 || bit/8 == 7) ||
					bit/8 == bth-2 || bit/8 == bth-1 || bit/8 == bth+4
				if err == nil && (computed == carried) != masked {
					t.Errorf("%s with byte %d changed: PacketICRC says good %t, want %t", tt.name, bit/8, computed == carried, masked)
				}
				continue
			}
			if err != nil || computed == carried {
				t.Errorf("%s with bit %d changed: PacketICRC = %#x, %#x, %v; want different", tt.name, bit, computed, carried, err)
			}
			f, id, payload := split(t, b)
			got, v := f.Verify(id, payload)
			tried++
			switch {
			case v == Exact, v == Solved && !v4, v == Bad && got != 0:
				t.Errorf("%s with bit %d changed: Verify = %#x, %v", tt.name, bit, got, v)
			case v == Solved: // allowed if it is true
				wrongSolved++
				if again, v := f.Verify(got, payload); again != got || v != Exact {
					t.Errorf("%s with bit %d changed: Verify = %#x, solved; then %v", tt.name, bit, got, v)
				}
			}
		}
		if tried < 8*16 || wrongSolved > 1 { // 1 in 65,536
			t.Errorf("%s: %d of %d damaged packets passed as solved", tt.name, wrongSolved, tried)
		}
	}
}

// TestVerifyIPv6 has a packet over IPv6 that differs from a good one as two packets over IPv4 do whose
// identifications differ. IPv6 has none to be solved for, so that it is bad.
func TestVerifyIPv6(t *testing.T) {
	f4, f6 := NewFlow(v4Source, v4Destination), NewFlow(v6Source, v6Destination)
	b := make([]byte, 64)
	n := len(b) - ICRCLen
	for _, id := range []uint16{1, 0x100, 0x1234, 0xffff} {
		diff := f4.ICRC(0, b[:n]) ^ f4.ICRC(id, b[:n])
		binary.LittleEndian.PutUint32(b[n:], f4.ICRC(0, b[:n])^diff)
		if got, v := f4.Verify(0, b); got != id || v != Solved {
			t.Errorf("Verify over IPv4 = %#x, %v; want %#x, solved", got, v, id)
		}
		binary.LittleEndian.PutUint32(b[n:], f6.ICRC(0, b[:n])^diff)
		if got, v := f6.Verify(0, b); got != 0 || v != Bad {
			t.Errorf("Verify over IPv6 = %#x, %v; want bad", got, v)
		}
	}
}

// TestVerifyFragmentBits checks that only the identification is solved for, not the bits after it.
func TestVerifyFragmentBits(t *testing.T) {
	ip := unhex(t, icrcVectors[3].hex)
	ip[ipv4ID], ip[ipv4Flags] = 0x55, 0 // DF clear
	computed, _, err := PacketICRC(ip)
	if err != nil {
		t.Fatalf("PacketICRC without DF: %v", err)
	}
	binary.LittleEndian.PutUint32(ip[len(ip)-ICRCLen:], computed)
	f, _, b := split(t, ip)
	for _, id := range []uint16{0, 0x5500} {
		if got, v := f.Verify(id, b); got != 0 || v != Bad {
			t.Errorf("Verify(%#x) of a packet without DF = %#x, %v; want bad", id, got, v)
		}
	}
}

func TestNewFlow(t *testing.T) {
	b := make([]byte, MinPacketLen)
	mapped := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	}
	zoned := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(a.Addr().WithZone("eth0"), a.Port())
	}
	if NewFlow(mapped(v4Source), v4Destination) != NewFlow(v4Source, v4Destination) ||
		NewFlow(v4Source, mapped(v4Destination)) != NewFlow(v4Source, v4Destination) {
		t.Error("NewFlow of a v4-mapped address is not that of the IPv4 address")
	}
	if NewFlow(zoned(v6Source), zoned(v6Destination)) != NewFlow(v6Source, v6Destination) {
		t.Error("NewFlow with a zone is not that without")
	}
	if NewFlow(v4Source, v4Destination) == NewFlow(v4Destination, v4Source) {
		t.Error("NewFlow is the same in both directions")
	}
	// No such packets, but nothing breaks.
	for _, f := range []Flow{NewFlow(v4Source, v6Destination), NewFlow(v6Source, v4Destination), NewFlow(netip.AddrPort{}, netip.AddrPort{})} {
		f.Seal(1, b)
		if got, v := f.Verify(1, b); got != 1 || v != Exact {
			t.Errorf("Verify(1) = %d, %v; want exact", got, v)
		}
	}
}

// TestAllocs checks that the data path makes no garbage.
func TestAllocs(t *testing.T) {
	f := NewFlow(v4Source, v4Destination)
	ip := unhex(t, icrcVectors[3].hex)
	encoded := ip[28:]
	buffer := make([]byte, 0, 2048)
	var p Packet
	if n := testing.AllocsPerRun(100, func() {
		if p.Parse(encoded) != nil {
			t.Error("Parse fails")
		}
		buffer = p.Append(buffer[:0])
		buffer = append(buffer, 0, 0, 0, 0)
		f.Seal(3, buffer)
		if got, v := f.Verify(0, buffer); got != 3 || v != Solved {
			t.Errorf("Verify(0) = %d, %v; want 3, solved", got, v)
		}
		f = NewFlow(v4Source, v4Destination)
		if _, _, err := PacketICRC(ip); err != nil {
			t.Errorf("PacketICRC: %v", err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// FuzzVerify damages one to four neighbouring bytes of a sealed packet. That is never Exact, as a
// CRC finds all bursts of up to 32 bits, and Solved only if it is right for the identification that
// was found.
func FuzzVerify(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), uint16(0), uint16(1), uint16(0), uint32(1), true)
	f.Add([]byte("0123456789ab"), uint16(0x1234), uint16(0), uint16(7), uint32(0xff000000), true)
	f.Add(make([]byte, 1036), uint16(0x1234), uint16(0), uint16(500), uint32(0xffffffff), false)
	f.Fuzz(func(t *testing.T, b []byte, id, guess, at uint16, damage uint32, v4 bool) {
		if len(b) < BTHLen || len(b) > 9000 {
			return
		}
		b = append(bytes.Clone(b[:len(b)&^3]), 0, 0, 0, 0)
		flow := NewFlow(v4Source, v4Destination)
		if !v4 {
			flow = NewFlow(v6Source, v6Destination)
		}
		flow.Seal(id, b)
		want := Exact
		if v4 && guess != id {
			want = Solved
		} else {
			id = guess
		}
		if got, v := flow.Verify(guess, b); got != id || v != want {
			t.Fatalf("Verify(%#x, %x) = %#x, %v; want %#x, %v", guess, b, got, v, id, want)
		}
		i := int(at) % (len(b) - 3)
		binary.LittleEndian.PutUint32(b[i:], binary.LittleEndian.Uint32(b[i:])^damage)
		if i <= 4 && 4 < i+4 {
			damage &^= 0xff << (8 * (4 - i)) // does not count
		}
		if damage == 0 {
			return
		}
		switch got, v := flow.Verify(id, b); v {
		case Bad:
			if got != 0 {
				t.Fatalf("Verify(%#x, %x) = %#x, bad", id, b, got)
			}
		case Exact:
			t.Fatalf("Verify(%#x, %x) = exact after damage %#x at %d", id, b, damage, i)
		case Solved:
			if again, v := flow.Verify(got, b); !v4 || got == id || again != got || v != Exact {
				t.Fatalf("Verify(%#x, %x) = %#x, solved; then %v", id, b, got, v)
			}
		}
	})
}

// FuzzPacketICRC compares the plain way with the fast one for whatever is an IP packet.
func FuzzPacketICRC(f *testing.F) {
	for _, tt := range icrcVectors {
		f.Add(unhex(f, tt.hex))
	}
	f.Fuzz(func(t *testing.T, ip []byte) {
		computed, carried, err := PacketICRC(ip)
		if err != nil {
			if computed != 0 || carried != 0 {
				t.Fatalf("PacketICRC(%x) = %#x, %#x, %v", ip, computed, carried, err)
			}
			return
		}
		flow, id, b := split(t, ip)
		if ip[0]>>4 == 4 && ip[ipv4Flags] != dontFragment || flow.headers == &headersIPv4 && ip[0]>>4 == 6 {
			return // a Flow has DF set, and does not send v4-mapped addresses over IPv6
		}
		n := len(b) - ICRCLen
		if got := flow.ICRC(id, b[:n]); got != computed {
			t.Fatalf("ICRC(%#x, %s) = %#x, want %#x", id, hex.EncodeToString(b[:n]), got, computed)
		}
	})
}
