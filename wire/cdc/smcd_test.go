package cdc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/gosmc/smc/wire"
)

var headerVectors = []struct {
	name        string
	little, big string // the bytes on machines of either byte order
	header      Header
}{
	{
		"empty",
		"fe 00000000000000 0000 00000000 0000 0000 00000000 00 00 0000000000000000",
		"fe 00000000000000 0000 00000000 0000 0000 00000000 00 00 0000000000000000",
		Header{},
	}, {
		"all fields",
		"fe 00000000000000 0807 0c0b0a09 0000 0e0d 1211100f f8 e0 0000000000000000",
		"fe 00000000000000 0708 090a0b0c 0000 0d0e 0f101112 f8 e0 0000000000000000",
		Header{
			Producer: Cursor{0x0708, 0x090a0b0c}, Consumer: Cursor{0x0d0e, 0x0f101112},
			ProducerFlags: WriterBlocked | UrgentPending | UrgentPresent | CursorUpdateRequested | FailoverValidation,
			ConnFlags:     DoneWriting | Closed | Abort,
		},
	}, {
		"one flag in each byte",
		"fe 00000000000000 ffff ffffffff 0000 ffff ffffffff 10 40 0000000000000000",
		"fe 00000000000000 ffff ffffffff 0000 ffff ffffffff 10 40 0000000000000000",
		Header{
			Producer: Cursor{0xffff, 0xffffffff}, Consumer: Cursor{0xffff, 0xffffffff},
			ProducerFlags: CursorUpdateRequested, ConnFlags: Closed,
		},
	},
}

func TestHeader(t *testing.T) {
	for _, tt := range headerVectors {
		encoded := unhex(t, tt.little)
		if bigEndian {
			encoded = unhex(t, tt.big)
		}
		if got := tt.header.Append([]byte{1}); !bytes.Equal(got[1:], encoded) || got[0] != 1 {
			t.Errorf("%s: Append:\n got %x\nwant %x", tt.name, got[1:], encoded)
		}
		if got, err := ParseHeader(append(slices.Clone(encoded), "data"...)); err != nil || got != tt.header {
			t.Errorf("%s: ParseHeader = %v, %v; want %v", tt.name, got, err, tt.header)
		}
		for n := range encoded {
			got, err := ParseHeader(encoded[:n:n])
			wantDecodeError(t, "truncated", got == Header{}, err, wire.ErrTruncated)
		}
		for _, typ := range []byte{0, 0xff, 0xef} {
			b := bytes.Clone(encoded)
			b[0] = typ
			got, err := ParseHeader(b)
			wantDecodeError(t, "type", got == Header{}, err, wire.ErrType)
		}
		for _, i := range []int{1, 7, 14, 15, 24, 31} {
			encoded[i] = 0xff
		}
		encoded[22] |= 0x07
		encoded[23] |= 0x1f
		if got, err := ParseHeader(encoded); err != nil || got != tt.header {
			t.Errorf("%s with reserved bits set: ParseHeader = %v, %v; want %v", tt.name, got, err, tt.header)
		}
	}
	if got, want := headerVectors[2].header.String(), "CDC prod=ffff:ffffffff cons=ffff:ffffffff flags=CursorUpdateRequested/Closed"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

// TestWords checks the words for atomic access against the bytes, in both byte orders.
func TestWords(t *testing.T) {
	type order struct {
		name   string
		bytes  binary.ByteOrder
		pack   func(Cursor, uint16) uint64
		unpack func(uint64) (Cursor, uint16)
	}
	for _, o := range []order{
		{"little-endian", binary.LittleEndian, packLittle, unpackLittle},
		{"big-endian", binary.BigEndian, packBig, unpackBig},
	} {
		for _, tt := range headerVectors {
			want := unhex(t, tt.little)
			if o.bytes == binary.BigEndian {
				want = unhex(t, tt.big)
			}
			flags := uint16(tt.header.ProducerFlags)<<8 | uint16(tt.header.ConnFlags)
			got := make([]byte, 16)
			o.bytes.PutUint64(got, o.pack(tt.header.Producer, 0))
			o.bytes.PutUint64(got[8:], o.pack(tt.header.Consumer, flags))
			if !bytes.Equal(got, want[8:24]) {
				t.Errorf("%s, %s: words are %x, want %x", o.name, tt.name, got, want[8:24])
			}
			if c, f := o.unpack(o.bytes.Uint64(want[8:])); c != tt.header.Producer || f != 0 {
				t.Errorf("%s, %s: unpack = %v, %#x; want %v", o.name, tt.name, c, f, tt.header.Producer)
			}
			if c, f := o.unpack(o.bytes.Uint64(want[16:])); c != tt.header.Consumer || f != flags {
				t.Errorf("%s, %s: unpack = %v, %#x; want %v, %#x", o.name, tt.name, c, f, tt.header.Consumer, flags)
			}
		}
	}
	if native := binary.NativeEndian.Uint16([]byte{1, 0}) == 0x100; native != bigEndian {
		t.Errorf("bigEndian = %v, want %v", bigEndian, native)
	}
	if got := binary.NativeEndian.AppendUint64(nil, TypeWord); !bytes.Equal(got, []byte{0xfe, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("TypeWord is %x in memory, want fe and zeros", got)
	}
}

// TestReservedFlags checks that reserved flags are neither written nor read.
func TestReservedFlags(t *testing.T) {
	c := Cursor{1, 2}
	if got, want := PackConsumer(c, 0xff, 0xff), PackConsumer(c, allProducerFlags, allConnFlags); got != want {
		t.Errorf("PackConsumer with reserved flags = %x, want %x", got, want)
	}
	if _, p, f := UnpackConsumer(^uint64(0)); p != allProducerFlags || f != allConnFlags {
		t.Errorf("UnpackConsumer of all ones = %v, %v; want all flags", p, f)
	}
	if got := UnpackProducer(^uint64(0)); got != (Cursor{0xffff, 0xffffffff}) {
		t.Errorf("UnpackProducer of all ones = %v", got)
	}
}

// TestUrgentWord checks that the flags about urgent data are at offset 14, and nothing else is.
func TestUrgentWord(t *testing.T) {
	c := Cursor{0x0102, 0x03040506}
	for _, f := range []ProducerFlags{0, UrgentPending, UrgentPresent, UrgentPending | UrgentPresent} {
		for _, other := range []ProducerFlags{0, WriterBlocked | CursorUpdateRequested | FailoverValidation | 7} {
			w := PackUrgent(c, f|other)
			b := binary.NativeEndian.AppendUint64(nil, w)
			if want := binary.NativeEndian.AppendUint64(nil, PackProducer(c)); !bytes.Equal(b[:6], want[:6]) || b[6] != byte(f) || b[7] != 0 {
				t.Errorf("PackUrgent(%v, %v) is %x", c, f|other, b)
			}
			if got, flags := UnpackUrgent(w); got != c || flags != f {
				t.Errorf("UnpackUrgent(%x) = %v, %v, want %v, %v", b, got, flags, c, f)
			}
			if got := UnpackProducer(w); got != c {
				t.Errorf("UnpackProducer(%x) = %v, want %v", b, got, c)
			}
		}
	}
	if _, flags := UnpackUrgent(^uint64(0)); flags != UrgentPending|UrgentPresent {
		t.Errorf("UnpackUrgent of all ones has %v", flags)
	}
}

func FuzzHeader(f *testing.F) {
	for _, v := range headerVectors {
		f.Add(unhex(f, v.little))
		f.Add(unhex(f, v.big))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= HeaderLen {
			b = bytes.Clone(b)
			b[0] = TypeMessage
		}
		h, err := ParseHeader(b)
		if err != nil {
			wantDecodeError(t, "fuzz", h == Header{}, err, errors.Unwrap(err))
			return
		}
		encoded := h.Append(nil)
		if again, err := ParseHeader(encoded); err != nil || again != h || len(encoded) != HeaderLen {
			t.Fatalf("ParseHeader(%x) = %v, %v; want %v", encoded, again, err, h)
		}
	})
}
