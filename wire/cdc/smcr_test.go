package cdc

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatalf("bad vector: %v", err)
	}
	return b
}

var reserved18 = strings.Repeat("00", 18)

// Laid out by hand from RFC 7609 p.126; spaces follow the layout table.
var messageVectors = []struct {
	name string
	hex  string
	msg  Message
}{
	{
		"all zero", "fe 2c 0000 00000000 0000 0000 00000000 0000 0000 00000000 00 00" + reserved18,
		Message{},
	}, {
		"all fields", "fe 2c 0102 03040506 0000 0708 090a0b0c 0000 0d0e 0f101112 f0 e0" + reserved18,
		Message{
			Seq: 0x0102, AlertToken: 0x03040506, Producer: Cursor{0x0708, 0x090a0b0c}, Consumer: Cursor{0x0d0e, 0x0f101112},
			ProducerFlags: WriterBlocked | UrgentPending | UrgentPresent | CursorUpdateRequested,
			ConnFlags:     DoneWriting | Closed | Abort,
		},
	}, {
		"failover validation", "fe 2c ffff 00000007 0000 0000 00000000 0000 0000 00000000 08 00" + reserved18,
		NewFailoverValidation(0xffff, 7),
	},
}

func TestMessage(t *testing.T) {
	for _, tt := range messageVectors {
		encoded := unhex(t, tt.hex)
		if got := tt.msg.Append([]byte{1}); !bytes.Equal(got[1:], encoded) || got[0] != 1 {
			t.Errorf("%s: Append:\n got %x\nwant %x", tt.name, got[1:], encoded)
		}
		if got, err := ParseMessage(append(encoded, 0xff)); err != nil || got != tt.msg {
			t.Errorf("%s: ParseMessage = %v, %v; want %v", tt.name, got, err, tt.msg)
		}
		for n := range encoded {
			got, err := ParseMessage(encoded[:n:n])
			wantDecodeError(t, "truncated", got == Message{}, err, wire.ErrTruncated)
		}
		for _, lie := range []struct {
			offset int
			value  byte
			err    error
		}{
			{0, 0x00, wire.ErrType}, {0, 0x01, wire.ErrType}, {0, 0xff, wire.ErrType},
			{1, 0, wire.ErrLength}, {1, 43, wire.ErrLength}, {1, 45, wire.ErrLength}, {1, 255, wire.ErrLength},
		} {
			b := bytes.Clone(encoded)
			b[lie.offset] = lie.value
			got, err := ParseMessage(b)
			wantDecodeError(t, "lie", got == Message{}, err, lie.err)
		}
		for _, i := range []int{8, 9, 16, 17, 26, 43} {
			encoded[i] = 0xff
		}
		encoded[24] |= 0x07
		encoded[25] |= 0x1f
		if got, err := ParseMessage(encoded); err != nil || got != tt.msg {
			t.Errorf("%s with reserved bits set: ParseMessage = %v, %v; want %v", tt.name, got, err, tt.msg)
		}
	}
}

func wantDecodeError(t *testing.T, what string, empty bool, err, want error) {
	t.Helper()
	var d *wire.DecodeError
	if !empty || !errors.As(err, &d) || !errors.Is(err, want) {
		t.Errorf("%s: %v, empty %v; want a DecodeError: %v and nothing", what, err, empty, want)
	}
}

// TestFailoverValidation checks that only token and number of such a message count.
func TestFailoverValidation(t *testing.T) {
	all := messageVectors[1].msg
	all.ProducerFlags |= FailoverValidation
	want := NewFailoverValidation(all.Seq, all.AlertToken)
	if got := all.Append(nil); !bytes.Equal(got, want.Append(nil)) {
		t.Errorf("%v.Append = %x, want %x", all, got, want.Append(nil))
	}
	encoded := unhex(t, messageVectors[1].hex)
	encoded[24] |= byte(FailoverValidation)
	if got, err := ParseMessage(encoded); err != nil || got != want || !got.IsFailoverValidation() {
		t.Errorf("ParseMessage(%x) = %v, %v; want %v", encoded, got, err, want)
	}
	if all := messageVectors[1].msg; all.IsFailoverValidation() {
		t.Errorf("%v.IsFailoverValidation() = true, want false", all)
	}
}

func TestIsStale(t *testing.T) {
	for _, tt := range []struct {
		seq, last uint16
		want      bool
	}{
		{1, 0, false}, {1, 1, false}, {1, 2, true}, {0, 0xffff, false}, {0xffff, 0, true},
		{0x7fff, 0, false}, {0x8000, 0, true}, {0x8001, 1, true}, {0x8000, 1, false},
	} {
		if got := (Message{Seq: tt.seq}).IsStale(tt.last); got != tt.want {
			t.Errorf("Message %d .IsStale(%d) = %v, want %v", tt.seq, tt.last, got, tt.want)
		}
	}
}

func TestFlagNames(t *testing.T) {
	for f, want := range map[ProducerFlags]string{
		0: "0", WriterBlocked: "WriterBlocked", UrgentPending | UrgentPresent: "UrgentPending|UrgentPresent",
		CursorUpdateRequested: "CursorUpdateRequested", FailoverValidation: "FailoverValidation", 0x07: "0",
	} {
		if got := f.String(); got != want {
			t.Errorf("ProducerFlags(%#x).String() = %q, want %q", uint8(f), got, want)
		}
	}
	for f, want := range map[ConnFlags]string{
		0: "0", DoneWriting: "DoneWriting", Closed: "Closed", Abort: "Abort", DoneWriting | Closed: "DoneWriting|Closed", 0x1f: "0",
	} {
		if got := f.String(); got != want {
			t.Errorf("ConnFlags(%#x).String() = %q, want %q", uint8(f), got, want)
		}
	}
	for f, bit := range map[ProducerFlags]byte{WriterBlocked: 0x80, UrgentPending: 0x40, UrgentPresent: 0x20, CursorUpdateRequested: 0x10, FailoverValidation: 0x08} {
		if byte(f) != bit {
			t.Errorf("%v = %#x, want %#x", f, byte(f), bit)
		}
	}
	m := Message{Seq: 3, AlertToken: 5, Producer: Cursor{1, 0x20}, ProducerFlags: WriterBlocked, ConnFlags: Closed}
	if got, want := m.String(), "CDC seq=3 token=0x5 prod=0001:00000020 cons=0000:00000000 flags=WriterBlocked/Closed"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	if got, want := NewFailoverValidation(3, 5).String(), "CDC failover validation seq=3 token=0x5"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

func FuzzMessage(f *testing.F) {
	for _, v := range messageVectors {
		f.Add(unhex(f, v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= MessageLen {
			b = bytes.Clone(b)
			b[0] = TypeMessage
		}
		m, err := ParseMessage(b)
		if err != nil {
			wantDecodeError(t, "fuzz", m == Message{}, err, errors.Unwrap(err))
			return
		}
		encoded := m.Append(nil)
		if again, err := ParseMessage(encoded); err != nil || again != m || len(encoded) != MessageLen {
			t.Fatalf("ParseMessage(%x) = %v, %v; want %v", encoded, again, err, m)
		}
	})
}
