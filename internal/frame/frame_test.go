package frame

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Headers of IP, laid out by hand; the checksum of the first is right.
const (
	ipv4 = "4500 001c 0000 4000 4011 26cf 0a00 0001 0a00 0002 12b7 12b7 0008 0000"
	ipv6 = "6000 0000 0008 1140 fd000000000000000000000000000001 fd000000000000000000000000000002 12b7 12b7 0008 0000"
	macs = "020000000001 020000000002"

	// Linux cooked, and v2, up to the EtherType and from it on.
	sll  = "0000 0001 0006 0200000000010000"
	sll2 = "0000 00000007 0001 00 06 0200000000010000"
)

func TestStrip(t *testing.T) {
	for _, tt := range []struct {
		name   string
		link   LinkType
		header string // before the IP packet
		ip     string
		want   uint16
	}{
		{"Ethernet", Ethernet, macs + "0800", ipv4, TypeIPv4},
		{"Ethernet, IPv6", Ethernet, macs + "86dd", ipv6, TypeIPv6},
		{"Ethernet, ARP", Ethernet, macs + "0806", ipv4, 0x0806},
		{"Ethernet, tag", Ethernet, macs + "8100 0005 0800", ipv4, TypeIPv4},
		{"Ethernet, QinQ", Ethernet, macs + "88a8 0005 8100 0006 86dd", ipv6, TypeIPv6},
		{"Ethernet, old QinQ", Ethernet, macs + "9100 0005 8100 0006 0800", ipv4, TypeIPv4},
		{"Ethernet, four tags", Ethernet, macs + "88a8 0005 88a8 0005 8100 0006 8100 0007 0800", ipv4, TypeIPv4},
		{"cooked", Cooked, sll + "0800", ipv4, TypeIPv4},
		{"cooked, tag", Cooked, sll + "8100 0005 86dd", ipv6, TypeIPv6},
		{"cooked v2", Cooked2, "0800" + sll2, ipv4, TypeIPv4},
		{"cooked v2, tag", Cooked2, "8100" + sll2 + "0005 86dd", ipv6, TypeIPv6},
		{"cooked v2, QinQ", Cooked2, "88a8" + sll2 + "0005 8100 0006 0800", ipv4, TypeIPv4},
		{"null", Null, "02000000", ipv4, TypeIPv4},
		{"null, IPv6 of some BSD", Null, "1e000000", ipv6, TypeIPv6},
		{"loop", Loop, "00000002", ipv4, TypeIPv4},
		{"raw", Raw, "", ipv4, TypeIPv4},
		{"raw 12", Raw12, "", ipv6, TypeIPv6},
		{"raw 14", Raw14, "", ipv6, TypeIPv6},
		{"IPv4", IPv4, "", ipv4, TypeIPv4},
		{"IPv6", IPv6, "", ipv6, TypeIPv6},
	} {
		header, ip := unhex(t, tt.header), unhex(t, tt.ip)
		b := append(bytes.Clone(header), ip...)
		if got, network, whole := Strip(tt.link, b); got != tt.want || !bytes.Equal(network, ip) || !whole {
			t.Errorf("%s: Strip(%v) = %#x, %x, %v; want %#x, %x", tt.name, tt.link, got, network, whole, tt.want, ip)
		}
		if !tt.link.Known() {
			t.Errorf("%v is not Known", tt.link)
		}
		for n := range header { // n < len(header): always too short
			if _, network, whole := Strip(tt.link, b[:n]); network != nil || whole {
				t.Errorf("%s: Strip of %d bytes = %x, %v; want none", tt.name, n, network, whole)
			}
		}
	}
	if ether, network, whole := Strip(147, unhex(t, ipv4)); ether != 0 || network != nil || !whole || LinkType(147).Known() {
		t.Errorf("Strip(147) = %#x, %x, %v; want nothing", ether, network, whole)
	}
	for _, tag := range Tags() {
		if !IsTag(tag) {
			t.Errorf("IsTag(%#x) = false", tag)
		}
	}
}

// A tag that the kernel has taken out and one that it has left in are found again.
func TestAppend(t *testing.T) {
	ip := unhex(t, ipv4)
	for _, tt := range []struct {
		name string
		got  []byte
		link LinkType
		want string
	}{
		{"Ethernet", AppendTagged(nil, unhex(t, macs+"0800"+ipv4), 0x8100_0005), Ethernet, macs + "8100 0005 0800"},
		{"Ethernet, QinQ", AppendTagged(nil, unhex(t, macs+"8100 0006 0800"+ipv4), 0x88a8_0005), Ethernet, macs + "88a8 0005 8100 0006 0800"},
		{"cooked v2", AppendCooked2(nil, &Header{EtherType: TypeIPv4, Interface: 7, Hardware: 1, AddrLen: 6, Addr: [8]byte{2, 0, 0, 0, 0, 1}}, 0, ip), Cooked2, "0800" + sll2},
		{"cooked v2, tag out", AppendCooked2(nil, &Header{EtherType: TypeIPv4, Interface: 7, Hardware: 1, AddrLen: 6, Addr: [8]byte{2, 0, 0, 0, 0, 1}}, 0x8100_0005, ip), Cooked2, "8100" + sll2 + "0005 0800"},
		{"cooked v2, one out, one in", AppendCooked2(nil, &Header{EtherType: TypeVLAN, Interface: 7, Hardware: 1, AddrLen: 6, Addr: [8]byte{2, 0, 0, 0, 0, 1}}, 0x88a8_0005, unhex(t, "0006 0800"+ipv4)), Cooked2, "88a8" + sll2 + "0005 8100 0006 0800"},
	} {
		if want := append(unhex(t, tt.want), ip...); !bytes.Equal(tt.got, want) {
			t.Errorf("%s:\n got %x\nwant %x", tt.name, tt.got, want)
		}
		if ether, network, whole := Strip(tt.link, tt.got); ether != TypeIPv4 || !bytes.Equal(network, ip) || !whole {
			t.Errorf("%s: Strip = %#x, %x, %v", tt.name, ether, network, whole)
		}
	}
	if got := AppendTagged(nil, []byte{1, 2, 3}, 0x8100_0005); !bytes.Equal(got, []byte{1, 2, 3}) {
		t.Errorf("AppendTagged of 3 bytes = %x", got)
	}
}

func TestBegins(t *testing.T) {
	// A tag of priority 2 or 3 begins as an IP header does.
	like4 := "4500 0800 0000 4000 4011 1eeb 0a00 0001 0a00 0002"
	like6 := "6000 86dd 6000 1140 fd000000000000000000000000000001 fd000000000000000000000000000002"
	for _, tt := range []struct {
		name   string
		told   uint16
		data   string
		length int // 0 means the length of data
		want   uint16
	}{
		{"IPv4", TypeIPv4, ipv4, 0, TypeIPv4},
		{"IPv6", TypeIPv6, ipv6, 0, TypeIPv6},
		{"tag, IPv4", TypeIPv4, "0005 0800" + ipv4, 0, TypeVLAN},
		{"tag, IPv6", TypeIPv6, "0005 86dd" + ipv6, 0, TypeVLAN},
		{"tag like IPv4", TypeIPv4, "4500 0800" + ipv4, 0, TypeVLAN},
		{"tag like IPv6", TypeIPv6, "6000 86dd" + ipv6, 0, TypeVLAN},
		{"IPv4 like a tag", TypeIPv4, like4, 2048, TypeIPv4},
		{"IPv6 like a tag", TypeIPv6, like6, 40 + 0x6000, TypeIPv6},
		{"two tags", TypeIPv4, "0005 8100 0006 0800" + ipv4, 0, TypeVLAN},
		{"another protocol", 0x0806, "0005 0806" + ipv4, 0, 0x0806},
		{"neither", TypeIPv4, "0005 0806" + ipv4, 0, TypeIPv4},
		{"short", TypeIPv4, "0005 0800", 0, TypeIPv4},

		{"a tag that is told", TypeVLAN, "0005 0800" + ipv4, 0, TypeVLAN},
		{"an outer tag that is told", TypeQinQ, "0005 8100 0006 86dd" + ipv6, 0, TypeQinQ},
		{"a tag like IPv4 that is told", TypeVLAN, "4500 0800" + ipv4, 0, TypeVLAN},
		{"a tag like IPv6 that is told", TypeVLAN, "6000 86dd" + ipv6, 0, TypeVLAN},
		{"IPv4 told as a tag", TypeVLAN, ipv4, 0, TypeIPv4},
		{"IPv6 told as a tag", TypeQinQ, ipv6, 0, TypeIPv6},
	} {
		b := unhex(t, tt.data)
		if tt.length == 0 {
			tt.length = len(b)
		}
		if got := Begins(tt.told, b, tt.length); got != tt.want {
			t.Errorf("%s: Begins(%#x, %x, %d) = %#x, want %#x", tt.name, tt.told, b, tt.length, got, tt.want)
		}
		for n := range b {
			Begins(tt.told, b[:n:n], tt.length) // must not panic
		}
	}
}

func TestPoint(t *testing.T) {
	cooked := Packet{Link: Cooked2, Data: unhex(t, "0800"+sll2+ipv4), Source: 2}
	if got := cooked.Point(); got != (Point{2, 7}) {
		t.Errorf("Point of a cooked packet = %v, want interface 7 of source 2", got)
	}
	plain := Packet{Link: Ethernet, Source: 2, Interface: 3}
	if got := plain.Point(); got != (Point{2, 3}) {
		t.Errorf("Point = %v, want interface 3 of source 2", got)
	}
}

func FuzzStrip(f *testing.F) {
	f.Add(uint16(Ethernet), unhex(f, macs+"8100 0005 0800"+ipv4))
	f.Add(uint16(Cooked2), unhex(f, "88a8"+sll2+"0005 8100 0006 0800"+ipv4))
	f.Fuzz(func(t *testing.T, link uint16, b []byte) {
		ether, network, whole := Strip(LinkType(link), b)
		if !bytes.HasSuffix(b, network) || !whole && network != nil || IsTag(ether) {
			t.Errorf("Strip(%d, %x) = %#x, %x, %v", link, b, ether, network, whole)
		}
		Begins(ether, network, len(network))
	})
}
