package clc

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

// TestVectors decodes and encodes every vector.
func TestVectors(t *testing.T) {
	for _, tt := range allVectors(t) {
		t.Run(tt.name, func(t *testing.T) {
			encoded := unhex(t, tt.hex)
			got, err := Parse(encoded)
			if err != nil || !reflect.DeepEqual(got, tt.msg) {
				t.Fatalf("Parse(%x)\n = %v, %v\nwant %v", encoded, got, err, tt.msg)
			}
			if tt.received {
				return
			}
			if err := tt.msg.Validate(); err != nil {
				t.Fatalf("Validate = %v", err)
			}
			prefix := []byte("before")
			if got := tt.msg.Append(prefix); !bytes.Equal(got, append(prefix, encoded...)) {
				t.Errorf("Append:\n got %x\nwant %x", got[len(prefix):], encoded)
			}
		})
	}
}

// TestHeader frames every vector, and the first message in a stream of several.
func TestHeader(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		h, err := ParseHeader(encoded[:HeaderLen])
		if err != nil || h.Len != len(encoded) || h.Type != tt.msg.Type() {
			t.Errorf("%s: ParseHeader(%x) = %+v, %v; want %v of %d bytes", tt.name, encoded[:HeaderLen], h, err, tt.msg.Type(), len(encoded))
		}
		stream := append(bytes.Clone(encoded), "application data"...)
		if got, err := Parse(stream); err != nil || !reflect.DeepEqual(got, tt.msg) {
			t.Errorf("%s with bytes behind it: Parse = %v, %v; want %v", tt.name, got, err, tt.msg)
		}
	}
}

// TestTruncated cuts every vector at every length.
func TestTruncated(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		for n := range encoded {
			got, err := Parse(encoded[:n:n])
			wantDecodeError(t, tt.name, got, err, wire.ErrTruncated)
			if got, err := parsers[tt.msg.Type()](encoded[:n:n]); !errors.Is(err, wire.ErrTruncated) {
				t.Errorf("%s: Parse%v of %d bytes = %v, %v; want ErrTruncated", tt.name, tt.msg.Type(), n, got, err)
			}
		}
	}
}

// TestShortened cuts every vector at every length and makes it say so, with an eyecatcher at its
// end: the message is broken, unless it is of a kind that may end there.
func TestShortened(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		for n := HeaderLen; n < len(encoded); n++ {
			b := bytes.Clone(encoded[:n])
			b[5], b[6] = byte(n>>8), byte(n)
			copy(b[max(HeaderLen, n-eyecatcherLen):], eyecatcherSMCR)
			got, err := Parse(b)
			if mayEndAt(tt.msg, encoded, n) {
				if err != nil {
					t.Errorf("%s shortened to %d bytes: %v, want no error", tt.name, n, err)
				}
				continue
			}
			if err == nil {
				t.Errorf("%s shortened to %d bytes: %v, want an error", tt.name, n, got)
			}
		}
	}
}

// mayEndAt reports whether the first n bytes of a vector can be a whole message.
func mayEndAt(m Message, encoded []byte, n int) bool {
	switch m := m.(type) {
	case Proposal:
		if m.Version == V1 {
			return false
		}
		// Bytes between the last extension and the end are room for growth.
		used := proposalBaseV2Len
		if m.IP != nil {
			used += ipAreaLen + len(m.IP.IPv6)*prefixLen
		}
		if m.Ext != nil {
			used = v2OffsetEnd + int(encoded[50])<<8 + int(encoded[51]) + proposalV2Len + len(m.Ext.UEIDs)*eidLen
			if m.Ext.D != nil {
				v2 := v2OffsetEnd + int(encoded[50])<<8 + int(encoded[51])
				used = v2 + dv2OffsetEnd + int(encoded[v2+6])<<8 + int(encoded[v2+7]) + proposalDv2Len + m.Ext.D.entries()*ismEntryLen
			}
		}
		return n >= used+eyecatcherLen
	case Accept:
		return mayExchangeEndAt(m.exchange(), n)
	case Confirm:
		if m.ClientGIDs != nil && n >= gidsOffset+eyecatcherLen {
			return n >= gidsOffset+len(m.ClientGIDs)*gidLen+eyecatcherLen
		}
		return mayExchangeEndAt(m, n)
	case Decline:
		return n == declineV1Len || m.Version > V1 && n >= declineV2Len
	}
	panic("not a message")
}

func mayExchangeEndAt(c Confirm, n int) bool {
	least := acceptRV2Len
	if c.D != nil {
		least = acceptDV2Len
	}
	if c.FCE != nil {
		least += fceLen
	}
	return c.Version > V1 && n >= least
}

// TestHeaderLies sets wrong eyecatchers, types, versions and lengths in every vector.
func TestHeaderLies(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		check := func(what string, offset int, value []byte, want error) {
			t.Helper()
			b := bytes.Clone(encoded)
			copy(b[offset:], value)
			got, err := Parse(b)
			wantDecodeError(t, tt.name+": "+what, got, err, want)
		}
		for i := range eyecatcherLen {
			check("eyecatcher at start", i, []byte{encoded[i] ^ 0x01}, wire.ErrEyecatcher)
			check("eyecatcher at end", len(encoded)-eyecatcherLen+i, []byte{encoded[len(encoded)-eyecatcherLen+i] ^ 0x80}, wire.ErrEyecatcher)
		}
		for _, typ := range []byte{0, 5, 0x80, 0xff} {
			check("type", 4, []byte{typ}, wire.ErrType)
		}
		check("version", 7, []byte{encoded[7] & 0x0f}, wire.ErrVersion)
		check("length 0", 5, []byte{0, 0}, wire.ErrLength)
		check("length 7", 5, []byte{0, 7}, wire.ErrLength)
		check("length 8", 5, []byte{0, 8}, wire.ErrLength)
		check("length 27", 5, []byte{0, 27}, wire.ErrLength)
		check("length above MaxLen", 5, []byte{(MaxLen + 1) >> 8, (MaxLen + 1) & 0xff}, wire.ErrLength)
		check("length 65535", 5, []byte{0xff, 0xff}, wire.ErrLength)
		check("length 1 more", 5, []byte{byte((len(encoded) + 1) >> 8), byte(len(encoded) + 1)}, wire.ErrTruncated)
		check("length MaxLen", 5, []byte{MaxLen >> 8, MaxLen & 0xff}, wire.ErrTruncated)
	}
}

// TestOtherTypes gives every vector to the parser of every other type.
func TestOtherTypes(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		for typ, parse := range parsers {
			got, err := parse(encoded)
			if typ == tt.msg.Type() {
				if err != nil || !reflect.DeepEqual(got, tt.msg) {
					t.Errorf("%s: Parse%v = %v, %v; want %v", tt.name, typ, got, err, tt.msg)
				}
				continue
			}
			if !errors.Is(err, wire.ErrType) {
				t.Errorf("%s: Parse%v = %v, %v; want ErrType", tt.name, typ, got, err)
			}
		}
	}
}

var parsers = map[Type]func([]byte) (Message, error){
	TypeProposal: func(b []byte) (Message, error) { m, err := ParseProposal(b); return m, err },
	TypeAccept:   func(b []byte) (Message, error) { m, err := ParseAccept(b); return m, err },
	TypeConfirm:  func(b []byte) (Message, error) { m, err := ParseConfirm(b); return m, err },
	TypeDecline:  func(b []byte) (Message, error) { m, err := ParseDecline(b); return m, err },
}

// TestHigherVersions takes header versions 3 to 15 for version 2, as Linux net/smc does.
func TestHigherVersions(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		if encoded[7]>>4 < 2 {
			continue
		}
		for v := byte(3); v <= 15; v++ {
			encoded[7] = v<<4 | encoded[7]&0x0f
			if got, err := Parse(encoded); err != nil || !reflect.DeepEqual(got, tt.msg) {
				t.Errorf("%s as version %d: Parse = %v, %v; want %v", tt.name, v, got, err, tt.msg)
			}
		}
	}
}

// TestEitherEyecatcher accepts "SMCR" and "SMCD" at both ends of every message.
func TestEitherEyecatcher(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		for _, start := range []string{eyecatcherSMCR, eyecatcherSMCD} {
			for _, end := range []string{eyecatcherSMCR, eyecatcherSMCD} {
				copy(encoded, start)
				copy(encoded[len(encoded)-eyecatcherLen:], end)
				if got, err := Parse(encoded); err != nil || !reflect.DeepEqual(got, tt.msg) {
					t.Errorf("%s with eyecatchers %x and %x: Parse = %v, %v; want %v", tt.name, start, end, got, err, tt.msg)
				}
			}
		}
		for _, at := range []int{0, len(encoded) - eyecatcherLen} {
			bad := bytes.Clone(encoded)
			bad[at+eyecatcherLen-1] ^= 1
			if got, err := Parse(bad); !errors.Is(err, wire.ErrEyecatcher) {
				t.Errorf("%s with a wrong eyecatcher at %d: Parse = %v, %v; want ErrEyecatcher", tt.name, at, got, err)
			}
		}
	}
}

// TestReserved sets all reserved bits.
func TestReserved(t *testing.T) {
	byName := map[string]vector{}
	for _, tt := range allVectors(t) {
		byName[tt.name] = tt
	}
	for _, tt := range []struct {
		name string
		bits map[int]byte // at this offset and, if negative, from the end
	}{
		{"Proposal v1 R and D", ones(map[int]byte{7: 0x0c, 85: 0xff, 86: 0xff}, 50, 80)},
		{"notes: Proposal IPv4", map[int]byte{7: 0x0c, 45: 0xff, 46: 0xff}},
		{"Proposal v2 header, v1 R", ones(map[int]byte{85: 0xff, 86: 0xff}, 40, 80)},
		{"Proposal v2.1, everything at its maximum", ones(ones(ones(map[int]byte{
			85: 0xff, 86: 0xff, // IP area
			226: 0xff, 227: 0x0e, 228: 0xff, 229: 0xff,
		}, 60, 80), 252, 264), 552, 568)},
		{"notes: Accept", map[int]byte{7: 0x04, 51: 0xff, 60: 0xff}},
		{"notes: Confirm", map[int]byte{7: 0x0c, 51: 0xff, 60: 0xff}},
		{"Accept v1 D", ones(map[int]byte{7: 0x04, 25: 0x0f, 26: 0xff, 27: 0xff}, 32, 44)},
		{"Confirm v1 D", ones(map[int]byte{7: 0x0c, 25: 0x0f, 26: 0xff, 27: 0xff}, 32, 44)},
		{"Accept v2.0 R, first contact", ones(map[int]byte{51: 0xff, 60: 0xff, 104: 0x7f, 106: 0xff, 107: 0xff}, 96, 104)},
		{"Accept v2.1 R, first contact", ones(ones(map[int]byte{104: 0x7f}, 96, 104), 148, 156)},
		{"Accept v2.0 D, native ISM, first contact", ones(map[int]byte{7: 0x04, 25: 0x0f, 74: 0xff, 76: 0xff, 77: 0xff}, 66, 74)},
		{"Accept v2.1 D, Emulated-ISM, first contact", ones(map[int]byte{7: 0x04, 74: 0xff, 110: 0xff, 111: 0xff}, 118, 126)},
		{"Confirm v2.0 R, first contact", ones(map[int]byte{7: 0x04, 157: 0xff, 158: 0xff, 159: 0xff}, 140, 156)},
		{"Confirm v2.1 R, first contact, 8 GIDs", map[int]byte{7: 0x04, 157: 0xff, 158: 0xff, 159: 0xff}},
		{"Confirm v2 D", ones(map[int]byte{7: 0x04, 25: 0x0f, 26: 0xff, 27: 0xff}, 66, 74)},
		{"Decline v1, out of sync", map[int]byte{7: 0x07, 20: 0x0f, 21: 0xff, 22: 0xff, 23: 0xff}},
		{"Decline v2", map[int]byte{7: 0x07, 20: 0x0f, 21: 0xff, 22: 0xff, 23: 0xff}},
	} {
		v, ok := byName[tt.name]
		if !ok {
			t.Fatalf("no vector %q", tt.name)
		}
		encoded := unhex(t, v.hex)
		for offset, bits := range tt.bits {
			encoded[offset] |= bits
		}
		if got, err := Parse(encoded); err != nil || !reflect.DeepEqual(got, v.msg) {
			t.Errorf("%s with reserved bits set: Parse\n = %v, %v\nwant %v", tt.name, got, err, v.msg)
		}
	}
}

// ones adds all bits of the bytes from start up to end, without it, to bits.
func ones(bits map[int]byte, start, end int) map[int]byte {
	for i := start; i < end; i++ {
		bits[i] = 0xff
	}
	return bits
}

// TestNoAlias overwrites the input after it was parsed.
func TestNoAlias(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		got, err := Parse(encoded)
		clear(encoded)
		if err != nil || !reflect.DeepEqual(got, tt.msg) {
			t.Errorf("%s: the message changed with its input: %v, %v; want %v", tt.name, got, err, tt.msg)
		}
	}
}

// TestString has one line for every vector, and a few lines in full.
func TestString(t *testing.T) {
	want := map[string]string{
		"notes: Proposal IPv6": "Proposal v1 v1=R v2=none peer=14660@98:03:9b:ab:cd:ef gid=fe80::9a03:9bff:feab:cdef" +
			" mac=98:03:9b:ab:cd:ef prefixes=::1/128",
		capD + " 4": "Proposal v2 v1=none v2=D peer=0@00:00:00:00:00:00 mac=00:00:00:00:00:00 release=1" +
			" max-conns=0 max-links=0 features=0x0001 ueids=[\"SMCV2-LAB-UEID\"]" +
			" devices=[ffff/e34ad0f5-2d18-78b5-1595-9739727ee7be]",
		"notes: Accept": "Accept v1 first-contact SMC-R peer=45472@98:03:9b:ab:cd:ef gid=fe80::9a03:9bff:feab:cdef" +
			" mac=98:03:9b:ab:cd:ef qpn=0xe4 psn=0x72f5fe rkey=0x157d rmbe=1 token=0x5 size=64K mtu=1024 addr=0xf0a60000",
		capD + " 18": "Accept v2 SMC-D gid=e34ad0f5-2d18-78b5-1595-9739727ee7be chid=ffff token=dc9a19f66d32c61c dmbe=0" +
			" size=64K link=00010000 eid=\"SMCV2-LAB-UEID\"",
		capOne + " 8": "Confirm v2 first-contact SMC-R peer=39468@52:54:00:00:00:02 gid=192.168.76.2 mac=52:54:00:00:00:02" +
			" qpn=0x11 psn=0x62e745 rkey=0x3ec rmbe=1 token=0x1 size=64K mtu=1024 addr=0xff432b9ec3460000" +
			" eid=\"SMCV2-LAB-UEID\" os=Linux release=1 host=\"(none)\" features=0x0001 direct=true max-conns=255 max-links=2" +
			" gids=[192.168.76.2]",
		"Decline v1, out of sync": "Decline v1 SYNCERR (0x04000000) os=Linux peer=45472@98:03:9b:ab:cd:ef out-of-sync",
		"Decline v2 of z/OS": "Decline v2 VENDOR (0x52060001) os=z/OS peer=45472@98:03:9b:ab:cd:ef" +
			" dv2=0x50010001 dv1=0x50010002 rv2=0x50010003 rv1=0x50010004",
	}
	for _, tt := range allVectors(t) {
		got := tt.msg.String()
		if full, ok := want[tt.name]; ok {
			delete(want, tt.name)
			if got != full {
				t.Errorf("%s: String()\n = %s\nwant %s", tt.name, got, full)
			}
		}
		if !strings.HasPrefix(got, tt.msg.Type().String()+" v") || strings.ContainsAny(got, "\n\r\x00\x1b") || strings.Contains(got, "%!") {
			t.Errorf("%s: String() = %q, want one line that starts with the type and version", tt.name, got)
		}
	}
	for name := range want {
		t.Errorf("no vector %q", name)
	}
}

func TestSMCTypes(t *testing.T) {
	for _, tt := range []struct {
		r, d  bool
		types SMCTypes
		bits  uint8
		text  string
	}{
		{true, false, TypesR, 0, "R"},
		{false, true, TypesD, 1, "D"},
		{false, false, TypesNone, 2, "none"},
		{true, true, TypesBoth, 3, "R+D"},
	} {
		got := MakeSMCTypes(tt.r, tt.d)
		if got != tt.types || uint8(got) != tt.bits || got.HasR() != tt.r || got.HasD() != tt.d || got.String() != tt.text {
			t.Errorf("MakeSMCTypes(%v, %v) = %v, want %v, %d", tt.r, tt.d, got, tt.types, tt.bits)
		}
	}
	for _, tt := range []struct{ got, want string }{
		{SMCTypes(4).String(), "types 4"}, {Type(9).String(), "type 9"}, {TypeConfirm.String(), "Confirm"},
		{OS(4).String(), "OS 4"}, {OSZOS.String(), "z/OS"}, {OSAIX.String(), "AIX"}, {OSUnknown.String(), "unknown"},
	} {
		if tt.got != tt.want {
			t.Errorf("String() = %q, want %q", tt.got, tt.want)
		}
	}
}

// TestRoom checks the reserve in MaxLen and the size of the largest Proposal.
func TestRoom(t *testing.T) {
	if n := len(vectorBytes(t, "Proposal v2.1, everything at its maximum")); n != 652 || n > MaxLen {
		t.Errorf("the largest Proposal has %d bytes, want 652, and at most %d", n, MaxLen)
	}
}

// wantDecodeError checks that a parser failed with a DecodeError for the right cause and returned
// no message.
func wantDecodeError(t *testing.T, what string, got Message, err, want error) {
	t.Helper()
	var d *wire.DecodeError
	if got != nil || !errors.As(err, &d) || !errors.Is(err, want) {
		t.Errorf("%s: Parse = %v, %v; want a DecodeError: %v", what, got, err, want)
	}
}
