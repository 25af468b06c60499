package llc

import (
	"bytes"
	"encoding/binary"
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
				t.Fatalf("Parse(%x)\n = %+v, %v\nwant %+v", encoded, got, err, tt.msg)
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
			// A slice with room for more, which is not zero.
			dirty := bytes.Repeat([]byte{0xee}, MaxLen)
			if got := tt.msg.Append(dirty[:0]); !bytes.Equal(got, encoded) {
				t.Errorf("Append to a slice with room:\n got %x\nwant %x", got, encoded)
			}
		})
	}
}

// parsers has the parser of every type.
var parsers = map[Type]func([]byte) (Message, error){
	TypeConfirmLink:     func(b []byte) (Message, error) { m, err := ParseConfirmLink(b); return m, err },
	TypeAddLink:         func(b []byte) (Message, error) { m, err := ParseAddLink(b); return m, err },
	TypeAddLinkCont:     func(b []byte) (Message, error) { m, err := ParseAddLinkCont(b); return m, err },
	TypeDeleteLink:      func(b []byte) (Message, error) { m, err := ParseDeleteLink(b); return m, err },
	TypeRequestAddLink:  func(b []byte) (Message, error) { m, err := ParseRequestAddLink(b); return m, err },
	TypeConfirmRKey:     func(b []byte) (Message, error) { m, err := ParseConfirmRKey(b); return m, err },
	TypeTestLink:        func(b []byte) (Message, error) { m, err := ParseTestLink(b); return m, err },
	TypeConfirmRKeyCont: func(b []byte) (Message, error) { m, err := ParseConfirmRKeyCont(b); return m, err },
	TypeDeleteRKey:      func(b []byte) (Message, error) { m, err := ParseDeleteRKey(b); return m, err },
}

// zeroOf returns the zero message of a type.
func zeroOf(typ Type) Message {
	for _, zero := range []Message{
		ConfirmLink{}, AddLink{}, AddLinkCont{}, DeleteLink{}, RequestAddLink{}, ConfirmRKey{}, TestLink{}, ConfirmRKeyCont{}, DeleteRKey{},
	} {
		if zero.Type() == typ {
			return zero
		}
	}
	panic("no message " + typ.String())
}

// TestTruncated cuts every vector at every length.
func TestTruncated(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		for n := range encoded {
			got, err := Parse(encoded[:n:n])
			wantDecodeError(t, tt.name, got, err, wire.ErrTruncated)
			typ := tt.msg.Type()
			if got, err := parsers[typ](encoded[:n:n]); !errors.Is(err, wire.ErrTruncated) || !reflect.DeepEqual(got, zeroOf(typ)) {
				t.Errorf("%s: parser of %v with %d bytes = %v, %v; want ErrTruncated and nothing", tt.name, typ, n, got, err)
			}
		}
	}
}

// TestShortened cuts every vector of version 2 at every length and makes it say so, in both byte
// orders: nothing but a message of 44 bytes may lack items that its counts announce.
func TestShortened(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		for n := 1; n < len(encoded); n++ {
			for _, order := range []binary.ByteOrder{binary.BigEndian, binary.LittleEndian} {
				b := bytes.Clone(encoded[:n])
				if n > 2 && tt.msg.Head().Form == V1 {
					b[1] = byte(n)
				} else if n > 2 {
					order.PutUint16(b[1:], uint16(n))
				}
				got, err := Parse(b)
				switch full := tt.msg.(type) {
				case AddLink: // announces more than it has
					least := addLinkV2Len
					if full.Rejected {
						least = MinLen
					}
					if n >= least {
						short, ok := got.(AddLink)
						if err != nil || !ok || !full.Rejected && len(short.RKeys) != min(len(full.RKeys), (n-least)/rkeyPairLen) ||
							len(short.RKeys)+short.Missing != len(full.RKeys)+full.Missing {
							t.Errorf("%s shortened to %d bytes: Parse = %v, %v; want fewer RKeys", tt.name, n, got, err)
						}
						continue
					}
				case RequestAddLink: // may have a tail
					if n >= gidsOffset+len(full.GIDs)*gidLen && n >= MinLen {
						if err != nil {
							t.Errorf("%s shortened to %d bytes: %v, want no error", tt.name, n, err)
						}
						continue
					}
				}
				if err == nil {
					t.Errorf("%s shortened to %d bytes: Parse = %v, want an error", tt.name, n, got)
				}
			}
		}
	}
}

// TestLonger has bytes after every vector: a receive buffer may be longer than 44 bytes, and a longer
// message has to fill its SEND.
func TestLonger(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		for _, n := range []int{1, 4, 100, MaxLen, 1 << 16} {
			b := append(bytes.Clone(encoded), bytes.Repeat([]byte{0xff}, n)...)
			got, err := Parse(b)
			if len(encoded) == MinLen {
				if err != nil || !reflect.DeepEqual(got, tt.msg) {
					t.Errorf("%s with %d bytes after it: Parse = %v, %v; want %v", tt.name, n, got, err, tt.msg)
				}
				continue
			}
			wantDecodeError(t, tt.name+" with bytes after it", got, err, wire.ErrLength)
		}
	}
}

// TestFirstByte has every first byte: 15 are types, and a quarter is to be discarded.
// TestForeign reads type 10, in both versions: it can be told from types that nobody has.
func TestForeign(t *testing.T) {
	for _, first := range []byte{0x0a, 0x2a, 0x0b, 0x2b} {
		b := make([]byte, MinLen)
		b[0], b[1] = first, MinLen
		_, err := Parse(b)
		if !errors.Is(err, wire.ErrType) || errors.Is(err, ErrForeign) != (first&0xf == 10) {
			t.Errorf("type %#x: %v", first, err)
		}
	}
}

func TestFirstByte(t *testing.T) {
	types := map[byte]Type{
		0x01: TypeConfirmLink, 0x02: TypeAddLink, 0x03: TypeAddLinkCont, 0x04: TypeDeleteLink, 0x06: TypeConfirmRKey,
		0x07: TypeTestLink, 0x08: TypeConfirmRKeyCont, 0x09: TypeDeleteRKey,
		0x21: TypeConfirmLink, 0x22: TypeAddLink, 0x24: TypeDeleteLink, 0x25: TypeRequestAddLink, 0x26: TypeConfirmRKey,
		0x27: TypeTestLink, 0x29: TypeDeleteRKey,
	}
	for first := range 256 {
		b := make([]byte, MinLen)
		b[0], b[1], b[3] = byte(first), MinLen, flagReply|flagRejected
		got, err := Parse(b)
		typ, known := types[byte(first)]
		switch {
		case known:
			form := V1
			if first >= 0x20 {
				form = V2Little
			}
			if err != nil || got.Type() != typ || got.Head() != (Header{form, true}) {
				t.Errorf("Parse of type %#02x = %v, %v; want a reply %v %v", first, got, err, typ, form)
			}
			if again := got.Append(nil); again[0] != byte(first) {
				t.Errorf("%v is encoded with type %#02x, want %#02x", got, again[0], first)
			}
		case first>>6 == 2:
			wantDecodeError(t, "optional type", got, err, ErrOptional)
			for n := 1; n < MinLen; n++ { // its length is its own
				got, err := Parse(b[:n])
				wantDecodeError(t, "short optional type", got, err, ErrOptional)
			}
		case first>>6 == 3: // CDC has 0xfe
			wantDecodeError(t, "type of CDC", got, err, wire.ErrType)
		case first>>4 == 0 || first>>4 == 2:
			wantDecodeError(t, "unknown type", got, err, wire.ErrType)
		default:
			wantDecodeError(t, "unknown version", got, err, wire.ErrVersion)
		}
		if err != nil && (errors.Is(err, ErrOptional) != (first>>6 == 2)) {
			t.Errorf("Parse of type %#02x: %v, to be discarded: %v", first, err, first>>6 == 2)
		}
	}
}

// TestTypeIn compares with the table of SMCv2 p.81.
func TestTypeIn(t *testing.T) {
	for typ := range Type(16) {
		inV1 := typ >= 1 && typ <= 9 && typ != 5
		inV2 := typ >= 1 && typ <= 9 && typ != 3 && typ != 8
		for version := range 4 {
			want := version == 1 && inV1 || version == 2 && inV2
			if got := typ.In(version); got != want {
				t.Errorf("%v.In(%d) = %v, want %v", typ, version, got, want)
			}
		}
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
					t.Errorf("%s: parser of %v = %v, %v; want %v", tt.name, typ, got, err, tt.msg)
				}
				continue
			}
			if !errors.Is(err, wire.ErrType) {
				t.Errorf("%s: parser of %v = %v, %v; want ErrType", tt.name, typ, got, err)
			}
		}
	}
}

// TestOrders sends every message of version 2 in the other byte order.
func TestOrders(t *testing.T) {
	for _, tt := range allVectors(t) {
		if tt.received || tt.msg.Head().Form == V1 {
			continue
		}
		encoded := unhex(t, tt.hex)
		encoded[1], encoded[2] = encoded[2], encoded[1]
		if a, ok := tt.msg.(AddLink); ok && a.hasV2() {
			encoded[70], encoded[71] = encoded[71], encoded[70]
		}
		want := V2 + V2Little - tt.msg.Head().Form
		if encoded[1] == encoded[2] && tt.msg.Type() == TypeDeleteRKey {
			want = V2 // the one message in which nothing tells
		}
		got, err := Parse(encoded)
		if err != nil || got.Head().Form != want {
			t.Errorf("%s in the other byte order: Parse = %v, %v; want %v", tt.name, got, err, want)
			continue
		}
		if again := got.Append(nil); !bytes.Equal(again, encoded) {
			t.Errorf("%s in the other byte order: Append = %x, want %x", tt.name, again, encoded)
		}
	}
}

// TestEveryCount encodes and decodes ADD LINK and DELETE RKEY with every number of RKeys.
func TestEveryCount(t *testing.T) {
	for n := range MaxRKeys + 1 {
		pairs, _ := manyPairs(n)
		for _, form := range []Form{V2, V2Little} {
			add := testAddLink.with(func(a *AddLink) { a.Form, a.RKeys = form, pairs })
			encoded := add.Append(nil)
			if got, err := ParseAddLink(encoded); err != nil || !reflect.DeepEqual(got, add) || len(encoded) != 72+16*n {
				t.Errorf("ParseAddLink(Append) with %d RKeys, %v = %v, %v of %d bytes; want %v of %d", n, form, got, err, len(encoded), add, 72+16*n)
			}
			if n == 0 || n == MaxRKeys {
				continue
			}
			remove := DeleteRKey{Header: Header{Form: form}, RKeys: rkeys(n)}
			encoded = remove.Append(nil)
			if got, err := ParseDeleteRKey(encoded); err != nil || !reflect.DeepEqual(got, remove) || len(encoded) != max(44, 8+4*n) {
				t.Errorf("ParseDeleteRKey(Append) with %d RKeys, %v = %v, %v of %d bytes; want %v of %d", n, form, got, err, len(encoded), remove, max(44, 8+4*n))
			}
		}
	}
}

// TestReserved sets all reserved bits of every vector.
func TestReserved(t *testing.T) {
	for _, tt := range allVectors(t) {
		encoded := unhex(t, tt.hex)
		for offset, bits := range reservedBits(tt.msg, len(encoded)) {
			encoded[offset] |= bits
		}
		if got, err := Parse(encoded); err != nil || !reflect.DeepEqual(got, tt.msg) {
			t.Errorf("%s with reserved bits set: Parse(%x)\n = %v, %v\nwant %v", tt.name, encoded, got, err, tt.msg)
		}
	}
}

// reservedBits returns the bits by offset that say nothing in a message of length n.
func reservedBits(m Message, n int) map[int]byte {
	bits := map[int]byte{}
	all := func(from, to int) {
		for i := from; i < to; i++ {
			bits[i] = 0xff
		}
	}
	h := m.Head()
	if h.Form == V1 {
		bits[2] = 0xff
	}
	switch m := m.(type) {
	case ConfirmLink:
		bits[3] = 0x70
		all(36, 44)
		if h.Form == V1 {
			bits[35] = 0xff
		}
	case AddLink:
		bits[3], bits[32] = 0x3f, 0xf0
		all(10, 12)
		all(36, 44)
		switch {
		case m.Rejected && h.Form == V1:
			bits[2] = 0xf0
		case m.Rejected:
			bits[3] = 0x30
			all(44, n)
		case !m.Reply:
			bits[3] = 0x7f // a request cannot reject
		}
		if m.hasV2() {
			bits[44] = 0x7f
			bits[45] = 0xff
			all(62, 70)
			all(72+16*len(m.RKeys), n)
		}
	case AddLinkCont:
		bits[3] = 0x7f
		all(6, 8)
		all(8+16*len(m.RKeys), 44)
	case DeleteLink:
		bits[3] = 0x1f
		if m.All {
			bits[4] = 0xff
		}
		all(9, 44)
	case RequestAddLink:
		bits[3] = 0x3f
		all(4, 24)
		switch {
		case m.Rejected:
			bits[3] = 0x30
			all(24, 44)
		case m.Reply:
			all(24, 44)
		default:
			bits[3] = 0x7f
			all(25, 28)
			all(28+16*len(m.GIDs), n)
		}
	case ConfirmRKey:
		bits[3] = 0x4f
		switch {
		case !m.Reply:
			bits[3] = 0x7f
		case !m.Negative:
			bits[3] = 0x5f
		}
		all(17+13*len(m.Others), 44)
	case ConfirmRKeyCont:
		bits[3] = 0x5f
		if !m.Reply {
			bits[3] = 0x7f
		}
		all(5+13*len(m.RTokens), 44)
	case TestLink:
		bits[3] = 0x7f
		all(20, 44)
	case DeleteRKey:
		bits[3] = 0x5f
		if !m.Reply {
			bits[3] = 0x7f
		}
		if !m.Negative {
			bits[5] = 0xff
		}
		all(6, 8)
		switch {
		case m.isShortReply() && m.Negative:
			all(8+4*min(int(m.Invalid), 8), 44)
		case m.isShortReply():
			all(8, 44)
		default:
			all(8+4*len(m.RKeys), n)
		}
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
		capOne + " 10": "CONFIRM LINK request v2-little-endian link=1 gid=192.168.76.1 mac=52:54:00:00:00:01 qpn=0x11" +
			" user=00000101 max-links=2 max-conns=255 cache-size=0x3",
		capOne + " 14": "ADD LINK request v2-little-endian link=2 gid=192.168.76.1 mac=52:54:00:00:00:01 qpn=0x12 psn=0x4ec373" +
			" mtu=1024 direct=true target=192.168.76.1 rkeys=[0x304=0x5d2@0xff33410403340000]",
		capOne + " 16": "ADD LINK reply v2-little-endian rejected (no reason) link=2 gid=192.168.76.1 mac=52:54:00:00:00:01" +
			" qpn=0x12 psn=0x4ec373 mtu=1024",
		"ADD LINK v2, fewer RKeys than announced": "ADD LINK request v2-little-endian link=2 gid=fe80::9a03:9bff:feab:cdef" +
			" mac=98:03:9b:ab:cd:ef qpn=0x10203 psn=0xa0b0c mtu=1024 direct=true target=192.0.2.1" +
			" rkeys=[0x71727374=0x81828384@0x9192939495969798] missing=2",
		"ADD LINK CONTINUATION of one": "ADD LINK CONTINUATION request v1 link=2 remaining=1" +
			" rkeys=[0x41424344=0x51525354@0x6162636465666768]",
		"DELETE LINK v1 all":        "DELETE LINK request v1 all orderly reason=program initiated (0x00030000)",
		"DELETE LINK v1 reply":      "DELETE LINK reply v1 link=7 orderly reason=unknown link (0x00100000)",
		"REQUEST ADD LINK of Linux": "REQUEST ADD LINK request v2-little-endian gids=[192.0.2.1 fe80::9a03:9bff:feab:cdef]",
		"REQUEST ADD LINK rejected": "REQUEST ADD LINK reply v2 rejected (reason 3)",
		"CONFIRM RKEY v1 negative, retry": "CONFIRM RKEY reply v1 negative retry rtoken=0xd1d2d3d4@0xd5d6d7d8d9dadbdc remaining=1" +
			" others=[2:0xa1a2a3a4@0xa5a6a7a8a9aaabac]",
		"CONFIRM RKEY CONTINUATION negative": "CONFIRM RKEY CONTINUATION reply v1 negative remaining=3 rtokens=[" +
			"2:0xa1a2a3a4@0xa5a6a7a8a9aaabac 3:0xb1b2b3b4@0xb5b6b7b8b9babbbc 4:0xc1c2c3c4@0xc5c6c7c8c9cacbcc]",
		"DELETE RKEY v1 of one":   "DELETE RKEY request v1 rkeys=[0x101]",
		"DELETE RKEY v1 negative": "DELETE RKEY reply v1 negative mask=0x50 rkeys=[0x101 0x102 0x103 0x104 0x105 0x106 0x107 0x108]",
		"DELETE RKEY v2 reply":    "DELETE RKEY reply v2-little-endian count=10",
		"DELETE RKEY v2 negative": "DELETE RKEY reply v2 negative count=255 invalid=9" +
			" rkeys=[0x101 0x102 0x103 0x104 0x105 0x106 0x107 0x108]",
		"TEST LINK v1 reply": "TEST LINK reply v1 data=000102030405060708090a0b0c0d0e0f",
	}
	for _, tt := range allVectors(t) {
		got := tt.msg.String()
		if full, ok := want[tt.name]; ok {
			delete(want, tt.name)
			if got != full {
				t.Errorf("%s: String()\n = %s\nwant %s", tt.name, got, full)
			}
		}
		if !strings.HasPrefix(got, tt.msg.Type().String()+" re") || strings.ContainsAny(got, "\n\r\x00\x1b") || strings.Contains(got, "%!") {
			t.Errorf("%s: String() = %q, want one line that starts with the type", tt.name, got)
		}
	}
	for name := range want {
		t.Errorf("no vector %q", name)
	}
}

func TestNames(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Type(0).String(), "type 0"}, {TypeAddLinkCont.String(), "ADD LINK CONTINUATION"},
		{V2.String(), "v2"}, {Form(0).String(), "form 0"},
		{RejectNoPath.String(), "no alternate path available"}, {RejectMTU.String(), "invalid MTU value"}, {RejectReason(9).String(), "reason 9"},
		{DeleteReason(0).String(), "no reason (0x00000000)"}, {DeleteLostPath.String(), "lost path (0x00010000)"},
		{DeleteOperator.String(), "operator initiated (0x00020000)"}, {DeleteViolation.String(), "protocol violation (0x00040000)"},
		{DeleteAsymmetric.String(), "asymmetric link no longer needed (0x00050000)"},
		{DeleteUnknownGroup.String(), "unknown link group (0x00200000)"}, {DeleteReason(7).String(), "unknown reason (0x00000007)"},
	} {
		if tt.got != tt.want {
			t.Errorf("String() = %q, want %q", tt.got, tt.want)
		}
	}
}

// TestHasNoEyecatcher has the condition with which Linux net/smc accepts a peer.
func TestHasNoEyecatcher(t *testing.T) {
	for size := range uint8(16) {
		c := ConfirmLink{CacheSize: size}
		if got, want := c.HasNoEyecatcher(), size&3 != 0; got != want {
			t.Errorf("cache size %#x: HasNoEyecatcher() = %v, want %v", size, got, want)
		}
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
