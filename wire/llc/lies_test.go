package llc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"github.com/gosmc/smc/wire"
)

// vectorNamed returns the vector with a name, and its bytes.
func vectorNamed(t testing.TB, name string) (vector, []byte) {
	t.Helper()
	for _, v := range allVectors(t) {
		if v.name == name {
			return v, unhex(t, v.hex)
		}
	}
	t.Fatalf("no vector %q", name)
	return vector{}, nil
}

// TestLies patches single fields and says which error that gives.
func TestLies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		offset int
		value  []byte
		field  string
		err    error
	}{
		{"TEST LINK v1 request", 1, []byte{0}, "length", wire.ErrLength},
		{"TEST LINK v1 request", 1, []byte{43}, "length", wire.ErrLength},
		{"TEST LINK v1 request", 1, []byte{45}, "length", wire.ErrLength},
		{"TEST LINK v1 request", 1, []byte{0, 44}, "length", wire.ErrLength},
		{"TEST LINK v1 request", 1, []byte{255}, "length", wire.ErrLength},
		{"TEST LINK v2 request", 1, []byte{0, 0}, "length", wire.ErrLength},
		{"TEST LINK v2 request", 1, []byte{0, 43}, "length", wire.ErrLength},
		{"TEST LINK v2 request", 1, []byte{43, 0}, "length", wire.ErrLength},
		{"TEST LINK v2 request", 1, []byte{0, 45}, "message", wire.ErrTruncated},
		{"TEST LINK v2 request", 1, []byte{45, 0}, "message", wire.ErrTruncated},
		{"TEST LINK v2 request", 1, []byte{0x20, 0}, "message", wire.ErrTruncated}, // MaxLen
		{"TEST LINK v2 request", 1, []byte{0x20, 0x21}, "length", wire.ErrLength},
		{"TEST LINK v2 request", 1, []byte{0xff, 0xff}, "length", wire.ErrLength},

		// 72 and 16 for each of 2 RKeys: 104.
		{"ADD LINK v2 request", 1, []byte{0, 44}, "length", wire.ErrLength}, // accepted, and then too short
		{"ADD LINK v2 request", 1, []byte{0, 103}, "length", wire.ErrLength},
		{"ADD LINK v2 request", 1, []byte{0, 105}, "message", wire.ErrTruncated},
		{"ADD LINK v2 request", 70, []byte{1, 2}, "number of RKeys", wire.ErrValue},
		{"ADD LINK v2 request", 70, []byte{0xff, 0xff}, "number of RKeys", wire.ErrValue},
		{"ADD LINK v2 reply of Linux", 70, []byte{0x80, 0x80}, "number of RKeys", wire.ErrValue},

		{"CONFIRM RKEY v1 request", 4, []byte{8}, "number of other RTokens", wire.ErrValue},
		{"CONFIRM RKEY v1 request", 4, []byte{255}, "number of other RTokens", wire.ErrValue},
		{"CONFIRM RKEY v2 request", 4, []byte{3}, "number of other RTokens", wire.ErrValue},
		{"CONFIRM RKEY v2 request", 4, []byte{255}, "number of other RTokens", wire.ErrValue},
		{"CONFIRM RKEY CONTINUATION request", 4, []byte{8}, "number of RTokens", wire.ErrValue},
		{"CONFIRM RKEY CONTINUATION request", 4, []byte{255}, "number of RTokens", wire.ErrValue},

		{"DELETE RKEY v1 request", 4, []byte{9}, "number of RKeys", wire.ErrValue},
		{"DELETE RKEY v1 reply", 4, []byte{255}, "number of RKeys", wire.ErrValue},
		{"DELETE RKEY v2 of one", 4, []byte{10}, "number of RKeys", wire.ErrValue},
		{"DELETE RKEY v2 of one", 4, []byte{255}, "number of RKeys", wire.ErrValue},
		{"DELETE RKEY v2 of ten", 4, []byte{11}, "number of RKeys", wire.ErrValue},
		{"DELETE RKEY v2 negative", 4, []byte{8}, "number of RKeys not deleted", wire.ErrValue}, // of 9
		{"DELETE RKEY v2 negative of Linux", 5, []byte{2}, "number of RKeys not deleted", wire.ErrValue},

		{"REQUEST ADD LINK of one", 24, []byte{0}, "number of GIDs", wire.ErrValue},
		{"REQUEST ADD LINK of one", 24, []byte{2}, "number of GIDs", wire.ErrValue},
		{"REQUEST ADD LINK of Linux", 24, []byte{3}, "number of GIDs", wire.ErrValue},
		{"REQUEST ADD LINK of eight", 24, []byte{9}, "number of GIDs", wire.ErrValue},
		{"REQUEST ADD LINK of eight", 24, []byte{255}, "number of GIDs", wire.ErrValue},
	} {
		_, b := vectorNamed(t, tt.name)
		copy(b[tt.offset:], tt.value)
		got, err := Parse(b)
		wantDecodeError(t, tt.name, got, err, tt.err)
		var d *wire.DecodeError
		if errors.As(err, &d) && d.Field != tt.field {
			t.Errorf("%s with %x at %d: Parse: %v, want an error in %q", tt.name, tt.value, tt.offset, err, tt.field)
		}
	}
}

// TestFewerThanAnnounced has ADD LINKs that announce every number of RKeys and have two.
func TestFewerThanAnnounced(t *testing.T) {
	_, b := vectorNamed(t, "ADD LINK v2 request")
	for count := range 1 << 16 {
		b[70], b[71] = byte(count>>8), byte(count)
		a, err := ParseAddLink(b)
		announced := count>>8 + count&0xff
		if count>>8 != 0 && count&0xff != 0 {
			if !errors.Is(err, wire.ErrValue) || !reflect.DeepEqual(a, AddLink{}) {
				t.Errorf("ParseAddLink announcing %#04x RKeys = %v, %v; want ErrValue and nothing", count, a, err)
			}
			continue
		}
		if err != nil || len(a.RKeys) != min(announced, 2) || a.Missing != max(0, announced-2) {
			t.Errorf("ParseAddLink announcing %#04x RKeys = %d RKeys, %d missing, %v", count, len(a.RKeys), a.Missing, err)
		}
	}
}

// TestEveryLength gives every length to ADD LINK and TEST LINK of version 2: of 65536 only those
// that say 44, or as many bytes as there are, are good.
func TestEveryLength(t *testing.T) {
	for _, name := range []string{"ADD LINK v2 request", "ADD LINK v2 reply of Linux", "TEST LINK v2 request", "ADD LINK v2 rejected"} {
		v, b := vectorNamed(t, name)
		for length := range 1 << 16 {
			swapped := length>>8 | length&0xff<<8
			b[1], b[2] = byte(length>>8), byte(length)
			good := length == len(b) || swapped == len(b)
			if got, err := Parse(b); (err == nil) != good {
				t.Errorf("%s with length %#04x: Parse = %v, %v; want no error: %v", name, length, got, err, good)
			} else if good && got.Head().Form == V2Little != (swapped == len(b)) {
				t.Errorf("%s with length %#04x: Parse = %v (from %v)", name, length, got, v.msg)
			}
		}
	}
}

// TestErrorMask has bits for RKeys that are not there.
func TestErrorMask(t *testing.T) {
	_, b := vectorNamed(t, "DELETE RKEY v1 negative")
	b[5] = 0xff
	for count := range 9 {
		b[4] = byte(count)
		want := byte(int(0xff) << (8 - count))
		if d, err := ParseDeleteRKey(b); err != nil || d.ErrorMask != want || len(d.RKeys) != count {
			t.Errorf("ParseDeleteRKey of %d RKeys = %v, %v; want mask %#02x", count, d, err, want)
		}
	}
}

// TestAnswer replies to DELETE RKEY, where every third RKey is unknown.
func TestAnswer(t *testing.T) {
	unknown := func(n int) (keys []wire.RKey) {
		for i := 2; i < n; i += 3 {
			keys = append(keys, rkeys(n)[i])
		}
		return keys
	}
	for _, tt := range []struct {
		n    int
		h    Header
		want DeleteRKey
	}{
		{2, request1, DeleteRKey{Header: reply1, RKeys: rkeys(2)}},
		{3, request1, DeleteRKey{Header: reply1, Negative: true, RKeys: rkeys(3), ErrorMask: 0x20}},
		{8, request1, DeleteRKey{Header: reply1, Negative: true, RKeys: rkeys(8), ErrorMask: 0x24}},
		{2, request2, DeleteRKey{Header: reply2, Count: 2}},
		{8, request2l, DeleteRKey{Header: reply2l, Negative: true, Count: 8, Invalid: 2, RKeys: unknown(8)}},
		{255, request2, DeleteRKey{Header: reply2, Negative: true, Count: 255, Invalid: 85, RKeys: unknown(255)[:8]}},
	} {
		request := DeleteRKey{Header: tt.h, RKeys: rkeys(tt.n)}
		var asked []wire.RKey
		got := request.Answer(func(key wire.RKey) bool {
			asked = append(asked, key)
			return len(asked)%3 != 0
		})
		if !reflect.DeepEqual(got, tt.want) || !reflect.DeepEqual(asked, request.RKeys) {
			t.Errorf("%v.Answer = %v, want %v; asked for %v", request, got, tt.want, asked)
		}
		if again, err := Parse(got.Append(nil)); err != nil || !reflect.DeepEqual(again, Message(tt.want)) {
			t.Errorf("Parse(Append) of %v = %v, %v", got, again, err)
		}
		if !reflect.DeepEqual(request.RKeys, rkeys(tt.n)) {
			t.Errorf("Answer changed the request to %v", request)
		}
	}
}

// TestEveryByte sets every byte of every vector to a few values, and bytes with flags and counts to
// all values. Nothing may panic, and accepted bytes must be a message that can be told from its
// bytes again.
func TestEveryByte(t *testing.T) {
	done := map[string]bool{} // the captures repeat themselves
	for _, tt := range allVectors(t) {
		b := unhex(t, tt.hex)
		if done[tt.hex] || len(b) > 256 {
			continue
		}
		done[tt.hex] = true
		for i := range b {
			saved := b[i]
			for v := range 256 {
				if i > 5 && v != 0 && v != 1 && v != 255 && byte(v) != saved+1 && byte(v) != saved^0x80 {
					continue
				}
				b[i] = byte(v)
				checkRoundTrip(t, b)
			}
			b[i] = saved
		}
	}
}

// checkRoundTrip checks that b is rejected with a DecodeError, or that the message in it comes
// back after it was encoded.
func checkRoundTrip(t *testing.T, b []byte) {
	t.Helper()
	original := bytes.Clone(b)
	m, err := Parse(b)
	if !bytes.Equal(b, original) {
		t.Fatalf("Parse(%x) changed its input to %x", original, b)
	}
	if err != nil {
		var d *wire.DecodeError
		if m != nil || !errors.As(err, &d) || d.Message == "" || d.Field == "" || d.Offset < 0 || d.Offset > len(b) {
			t.Fatalf("Parse(%x) = %v, %v; want nil and a DecodeError within the message", b, m, err)
		}
		return
	}
	if s := m.String(); s == "" {
		t.Fatalf("Parse(%x).String() is empty", b)
	}
	if err := m.Validate(); err != nil {
		if !mayLack(m) {
			t.Fatalf("Parse(%x) = %v which cannot be sent: %v", b, m, err)
		}
		return
	}
	encoded := m.Append(nil)
	if n := len(encoded); n < MinLen || n > addLinkV2Len+MaxRKeys*rkeyPairLen || n > MinLen && m.Head().Form == V1 {
		t.Fatalf("%v is encoded to %d bytes", m, n)
	}
	again, err := Parse(encoded)
	if err != nil {
		t.Fatalf("Parse(%x) of what %v was encoded to: %v", encoded, m, err)
	}
	switch sent := m.(type) {
	case AddLink: // announced RKeys that are not there are not sent
		sent.Missing = 0
		m = sent
	case DeleteRKey: // of 1028 bytes, which does not tell its form
		if len(sent.RKeys) == MaxRKeys {
			sent.Form = V2
			m = sent
		}
	}
	if !reflect.DeepEqual(again, m) {
		t.Fatalf("Parse(Append)\n = %+v\nwant %+v", again, m)
	}
}

// mayLack reports whether m is one of the messages that are read and never sent.
func mayLack(m Message) bool {
	switch m := m.(type) {
	case AddLink:
		return !m.Reply && m.isEmpty()
	case DeleteRKey:
		return !m.Reply && len(m.RKeys) == 0
	}
	return false
}

// TestNineGIDs has REQUEST ADD LINKs that are long enough for the number of GIDs they announce: 1 to 8
// are read, any other number is an error (SMCv2 p.77, note 3a).
func TestNineGIDs(t *testing.T) {
	_, full := vectorNamed(t, "REQUEST ADD LINK of eight")
	for count := range 256 {
		b := make([]byte, max(MinLen, gidsOffset+count*gidLen))
		copy(b, full)
		binary.BigEndian.PutUint16(b[1:], uint16(len(b)))
		b[gidCountOffset] = byte(count)
		got, err := Parse(b)
		if count >= 1 && count <= MaxGIDs {
			if err != nil || len(got.(RequestAddLink).GIDs) != count {
				t.Errorf("Parse with %d GIDs = %v, %v", count, got, err)
			}
			continue
		}
		wantDecodeError(t, "REQUEST ADD LINK", got, err, wire.ErrValue)
	}
}

// TestLongerFixed has messages of version 2 with a fixed length of 44 that say that they are
// longer, and are: they are read without their tail, see [Parse].
func TestLongerFixed(t *testing.T) {
	tried := 0
	for _, tt := range allVectors(t) {
		switch tt.msg.Type() {
		case TypeConfirmLink, TypeDeleteLink, TypeConfirmRKey, TypeTestLink:
		default:
			continue
		}
		if tt.msg.Head().Form.Version() != 2 {
			continue
		}
		for _, n := range []int{45, 60, 255, 256, MaxLen} {
			b := append(unhex(t, tt.hex), bytes.Repeat([]byte{0xff}, n-MinLen)...)
			form := tt.msg.Head().Form
			form.putUint16(b[1:], uint16(n))
			got, err := Parse(b)
			if err != nil || got.String() != tt.msg.String() {
				t.Errorf("%s, %d bytes long: Parse = %v, %v; want %v", tt.name, n, got, err, tt.msg)
			}
			got, err = Parse(b[:n-1])
			wantDecodeError(t, tt.name+" that lacks a byte", got, err, wire.ErrTruncated)
			tried++
		}
	}
	if tried < 20 {
		t.Errorf("%d messages were tried", tried)
	}
}
