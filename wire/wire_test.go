package wire

import (
	"errors"
	"math"
	"net/netip"
	"testing"
)

func TestDecodeError(t *testing.T) {
	err := error(&DecodeError{Message: "clc.Decline", Field: "length", Offset: 5, Err: ErrLength})
	if got, want := err.Error(), "clc.Decline: length at offset 5: impossible length"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if !errors.Is(err, ErrLength) || errors.Is(err, ErrReservedEnum) {
		t.Errorf("errors.Is(%v) does not match the cause only", err)
	}
}

func TestStrings(t *testing.T) {
	for _, tt := range []struct {
		got, want string
	}{
		{PeerID{0xb1, 0xa0, 0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef}.String(), "45472@98:03:9b:ab:cd:ef"},
		{MAC{1, 2, 3, 4, 5, 0xff}.String(), "01:02:03:04:05:ff"},
		{QPN(228).String(), "0xe4"},
		{PSN(7534078).String(), "0x72f5fe"},
		{RKey(5501).String(), "0x157d"},
		{AlertToken(5).String(), "0x5"},
		{LinkID(0x100).String(), "00000100"},
		{Token(0x1a).String(), "000000000000001a"},
		{CHID(0xffff).String(), "ffff"},
		{CHID(7).String(), "0007"},
		{ISMGID{Hi: 0xe34ad0f52d1878b5}.String(), "e34ad0f52d1878b5"},
		{ISMGID{Hi: 0xe34ad0f52d1878b5, Lo: 0x15959739727ee7be}.String(), "e34ad0f5-2d18-78b5-1595-9739727ee7be"},
		{ISMGID{Lo: 1}.String(), "00000000-0000-0000-0000-000000000001"},
		{MTU1024.String(), "1024"},
		{MTU(7).String(), "reserved(7)"},
		{SizeCode(0).String(), "16K"},
		{SizeCode(5).String(), "512K"},
		{SizeCode(6).String(), "1M"},
		{SizeCode(15).String(), "512M"},
		{EID{}.String(), ""},
		{EID{'A', 0, ' '}.String(), "A"},
		{EID{'A', 0x1b, 0xff, 'B'}.String(), "A??B"},
	} {
		if tt.got != tt.want {
			t.Errorf("String() = %q, want %q", tt.got, tt.want)
		}
	}
}

func TestGID(t *testing.T) {
	for _, tt := range []struct {
		gid  GID
		addr string
		is4  bool
	}{
		{GID{10: 0xff, 0xff, 192, 0, 2, 1}, "192.0.2.1", true},
		{GID{12: 192, 0, 2, 1}, "192.0.2.1", true}, // right-aligned, as z/OS may send it
		{GID{}, "::", false},
		{GID{15: 1}, "::1", false},
		{GID{10: 0xff, 0xff}, "0.0.0.0", true},
		{GID{10: 0xff, 12: 192, 0, 2, 1}, "::ff00:c000:201", false},
		{GID{0: 0xfe, 0x80, 15: 1}, "fe80::1", false},
	} {
		if got := tt.gid.Addr(); got != netip.MustParseAddr(tt.addr) || tt.gid.String() != tt.addr {
			t.Errorf("GID(%x).Addr() = %v, want %v", tt.gid[:], got, tt.addr)
		}
		if _, is4 := tt.gid.IPv4(); is4 != tt.is4 {
			t.Errorf("GID(%x).IPv4() = %v, want %v", tt.gid[:], is4, tt.is4)
		}
		if got := tt.gid.IsZero(); got != (tt.addr == "::") {
			t.Errorf("GID(%x).IsZero() = %v", tt.gid[:], got)
		}
	}
	if got, want := GIDFromAddr(netip.MustParseAddr("192.0.2.1")), (GID{10: 0xff, 0xff, 192, 0, 2, 1}); got != want {
		t.Errorf("GIDFromAddr = %x, want %x", got[:], want[:])
	}
	if got, want := GIDFromAddr(netip.MustParseAddr("fe80::1%eth0")), (GID{0: 0xfe, 0x80, 15: 1}); got != want {
		t.Errorf("GIDFromAddr = %x, want %x", got[:], want[:])
	}
	if got := GIDFromAddr(netip.Addr{}); got != (GID{}) {
		t.Errorf("GIDFromAddr of no address = %x, want zero", got[:])
	}
}

func TestISMGID(t *testing.T) {
	u := [16]byte{0xe3, 0x4a, 0xd0, 0xf5, 0x2d, 0x18, 0x78, 0xb5, 0x15, 0x95, 0x97, 0x39, 0x72, 0x7e, 0xe7, 0xbe}
	want := ISMGID{Hi: 0xe34ad0f52d1878b5, Lo: 0x15959739727ee7be}
	if got := ISMGIDFromUUID(u); got != want || got.UUID() != u {
		t.Errorf("ISMGIDFromUUID(%x) = %v, want %v and back", u, got, want)
	}
	if want.IsZero() || !(ISMGID{}).IsZero() || (ISMGID{Lo: 1}).IsZero() {
		t.Error("IsZero is wrong")
	}
	for c, want := range map[CHID]bool{0: false, 0xfeff: false, 0xff00: true, 0xfffe: true, 0xffff: true} {
		if got := c.IsEmulated(); got != want {
			t.Errorf("CHID(%v).IsEmulated() = %v, want %v", c, got, want)
		}
	}
}

func TestParseEID(t *testing.T) {
	for _, s := range []string{"A", "0", "SMCV2-LAB-UEID", "A.B-C.", "A--B", "ABCDEFGHIJKLMNOPQRSTUVWXYZ-01234"} {
		e, err := ParseEID(s)
		if err != nil || e.String() != s || !e.Valid() || e.IsZero() {
			t.Errorf("ParseEID(%q) = %q, %v; want it back", s, e, err)
		}
		for i := len(s); i < len(e); i++ {
			if e[i] != ' ' {
				t.Errorf("ParseEID(%q) is not padded with blanks: %x", s, e[:])
			}
		}
	}
	for _, s := range []string{
		"", " ", "-A", ".A", " A", "A B", "a", "A_", "A..B", "A\x00", "A\n", "\xc3\x84",
		"ABCDEFGHIJKLMNOPQRSTUVWXYZ-012345",
	} {
		if e, err := ParseEID(s); !errors.Is(err, ErrEID) || !e.IsZero() {
			t.Errorf("ParseEID(%q) = %q, %v; want ErrEID", s, e, err)
		}
	}
	if (EID{}).Valid() || (EID{'A'}).Valid() {
		t.Error("Valid() = true for an EID without blanks at its end")
	}
}

func TestSizeCode(t *testing.T) {
	for _, tt := range []struct {
		n    int
		want SizeCode
	}{
		{math.MinInt, 0}, {0, 0}, {1, 0}, {16 << 10, 0}, {16<<10 + 1, 1}, {32 << 10, 1}, {32<<10 + 1, 2},
		{64 << 10, 2}, {100000, 3}, {512 << 10, 5}, {512 << 20, 15}, {512<<20 + 1, 15}, {math.MaxInt, 15},
	} {
		if got := SizeCodeFor(tt.n); got != tt.want {
			t.Errorf("SizeCodeFor(%d) = %d, want %d", tt.n, got, tt.want)
		}
	}
	for c := range MaxSizeCode + 1 {
		if got, want := c.Bytes(), 1<<(14+c); got != want || SizeCodeFor(got) != c {
			t.Errorf("SizeCode(%d).Bytes() = %d, want %d and back", c, got, want)
		}
	}
	if got, want := SizeCode(255).Bytes(), 512<<20; got != want {
		t.Errorf("SizeCode(255).Bytes() = %d, want %d", got, want)
	}
}

func TestMTU(t *testing.T) {
	for m, want := range map[MTU]int{0: 0, MTU256: 256, MTU512: 512, MTU1024: 1024, MTU2048: 2048, MTU4096: 4096, 6: 0, 15: 0, 255: 0} {
		if got := m.Bytes(); got != want || m.Valid() != (want != 0) {
			t.Errorf("MTU(%d).Bytes() = %d, want %d", uint8(m), got, want)
		}
	}
}

func TestPeerID(t *testing.T) {
	p := PeerID{0x12, 0x34, 1, 2, 3, 4, 5, 6}
	if p.Instance() != 0x1234 || p.MAC() != (MAC{1, 2, 3, 4, 5, 6}) {
		t.Errorf("PeerID(%x): instance %#x, MAC %v", p[:], p.Instance(), p.MAC())
	}
}

func TestPSN(t *testing.T) {
	for _, tt := range []struct {
		p    PSN
		n    int
		want PSN
	}{
		{0, 0, 0}, {0, 1, 1}, {0, -1, MaxPSN}, {MaxPSN, 1, 0}, {MaxPSN, -1, MaxPSN - 1}, {5, 1 << 24, 5},
		{5, -1 << 24, 5}, {1 << 23, 1 << 23, 0}, {0x72f5fe, 0x100, 0x72f6fe}, {0, math.MaxInt, MaxPSN}, {0, math.MinInt, 0},
	} {
		if got := tt.p.Add(tt.n); got != tt.want {
			t.Errorf("PSN(%v).Add(%d) = %v, want %v", tt.p, tt.n, got, tt.want)
		}
	}
	for _, tt := range []struct {
		p, q PSN
		want int
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, MaxPSN, 1}, {MaxPSN, 0, -1}, {1 << 23, 0, -1 << 23}, {0, 1 << 23, -1 << 23},
		{1<<23 - 1, 0, 1<<23 - 1}, {0, 1<<23 - 1, -(1<<23 - 1)}, {10, MaxPSN - 9, 20}, {MaxPSN - 9, 10, -20},
	} {
		if got := tt.p.Sub(tt.q); got != tt.want {
			t.Errorf("PSN(%v).Sub(%v) = %d, want %d", tt.p, tt.q, got, tt.want)
		}
		if got := tt.q.Add(tt.want); got != tt.p {
			t.Errorf("PSN(%v).Add(%d) = %v, want %v", tt.q, tt.want, got, tt.p)
		}
	}
}
