package clc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

// vectorBytes returns the bytes of the vector with a name.
func vectorBytes(t testing.TB, name string) []byte {
	t.Helper()
	for _, v := range allVectors(t) {
		if v.name == name {
			return unhex(t, v.hex)
		}
	}
	t.Fatalf("no vector %q", name)
	return nil
}

// resize cuts b, or lengthens it with zeros in front of its final eyecatcher, so that it has n bytes
// and says so.
func resize(b []byte, n int) []byte {
	r := make([]byte, n)
	copy(r, b[:len(b)-eyecatcherLen])
	binary.BigEndian.PutUint16(r[5:], uint16(n))
	copy(r[n-eyecatcherLen:], eyecatcherSMCR)
	return r
}

// TestLies patches single fields and says which error that gives, or none.
func TestLies(t *testing.T) {
	const (
		full  = "Proposal v2.1, everything at its maximum" // IP area at 80, v2 at 224, SMC-Dv2 at 520, end at 648
		v4    = "Proposal v2 header, v1 R"                 // IP area at 80, end at 88
		old   = "notes: Proposal IPv4"                     // IP area at 40, end at 48
		old6  = "notes: Proposal IPv6"
		oldD  = "Proposal v1 D"
		noDv2 = "Proposal v2.1 D without SMC-Dv2 extension"
		dOnly = capD + " 4" // v2 at 80, SMC-Dv2 at 152, entries at 200
	)
	for _, tt := range []struct {
		name   string
		offset int
		value  []byte
		field  string // of the error; "" for none
		err    error
	}{
		// The IP area must not overlap the base, nor leave the message, nor overlap the next area.
		{full, 38, []byte{0, 0}, "IP offset", wire.ErrValue},
		{full, 38, []byte{0, 39}, "IP offset", wire.ErrValue},
		{full, 38, []byte{0, 41}, "number of prefixes", wire.ErrValue},
		{full, 38, []byte{0, 181}, "v2 offset", wire.ErrValue},                                              // no prefixes, but ends in v2
		{full, 38, []byte{(648 - 40 - 8) >> 8, (648 - 40 - 8) & 0xff}, "number of prefixes", wire.ErrValue}, // its last 8 bytes
		{full, 38, []byte{(648 - 40 - 7) >> 8, (648 - 40 - 7) & 0xff}, "IP offset", wire.ErrValue},
		{full, 38, []byte{651 >> 8, 651 & 0xff}, "IP offset", wire.ErrValue},
		{full, 38, []byte{652 >> 8, 652 & 0xff}, "IP offset", wire.ErrValue},
		{full, 38, []byte{653 >> 8, 653 & 0xff}, "IP offset", wire.ErrValue},
		{full, 38, []byte{0x7f, 0xff}, "IP offset", wire.ErrValue},
		{full, 38, []byte{0xff, 0xff}, "IP offset", wire.ErrValue},
		{old, 38, []byte{0, 1}, "IP offset", wire.ErrValue},
		{old, 38, []byte{0xff, 0xff}, "IP offset", wire.ErrValue},
		{oldD, 38, []byte{0, 0}, "number of prefixes", wire.ErrValue}, // the GID's bytes as IP area
		{oldD, 38, []byte{0, 16}, "length", wire.ErrLength},           // zeros: an area that ends too early
		{v4, 38, []byte{0, 41}, "IP offset", wire.ErrValue},

		{full, 87, []byte{0}, "", nil},
		{full, 87, []byte{7}, "", nil},
		{full, 87, []byte{9}, "number of prefixes", wire.ErrValue},
		{full, 87, []byte{255}, "number of prefixes", wire.ErrValue},
		{v4, 87, []byte{1}, "number of prefixes", wire.ErrValue},
		{v4, 87, []byte{8}, "number of prefixes", wire.ErrValue},
		{old, 47, []byte{1}, "number of prefixes", wire.ErrValue},
		{old6, 47, []byte{0}, "length", wire.ErrLength},
		{old6, 47, []byte{2}, "number of prefixes", wire.ErrValue},
		{v4, 84, []byte{32}, "", nil},
		{v4, 84, []byte{33}, "IPv4 prefix length", wire.ErrValue},
		{v4, 84, []byte{255}, "IPv4 prefix length", wire.ErrValue},
		{full, 88 + 16, []byte{128}, "", nil},
		{full, 88 + 16, []byte{129}, "IPv6 prefix length", wire.ErrValue},
		{full, 88 + 7*17 + 16, []byte{255}, "IPv6 prefix length", wire.ErrValue},

		// The v2 extension likewise.
		{full, 50, []byte{0, 0}, "", nil}, // taken for absent
		{full, 50, []byte{0, 1}, "v2 offset", wire.ErrValue},
		{full, 50, []byte{0, 28}, "v2 offset", wire.ErrValue}, // on the IP area
		{full, 50, []byte{0, 171}, "v2 offset", wire.ErrValue},
		{full, 50, []byte{(648 - 52 - 40) >> 8, (648 - 52 - 40) & 0xff}, "number of UEIDs", wire.ErrValue},
		{full, 50, []byte{(648 - 52 - 39) >> 8, (648 - 52 - 39) & 0xff}, "v2 offset", wire.ErrValue},
		{full, 50, []byte{651 >> 8, 651 & 0xff}, "v2 offset", wire.ErrValue},
		{full, 50, []byte{652 >> 8, 652 & 0xff}, "v2 offset", wire.ErrValue},
		{full, 50, []byte{653 >> 8, 653 & 0xff}, "v2 offset", wire.ErrValue},
		{full, 50, []byte{0xff, 0xff}, "v2 offset", wire.ErrValue},
		{dOnly, 50, []byte{0, 27}, "v2 offset", wire.ErrValue}, // in the base
		{full, 224, []byte{0}, "", nil},
		{full, 224, []byte{7}, "", nil},
		{full, 224, []byte{9}, "number of UEIDs", wire.ErrValue},
		{full, 224, []byte{255}, "number of UEIDs", wire.ErrValue},
		{dOnly, 80, []byte{2}, "SMC-Dv2 offset", wire.ErrValue}, // its second UEID would be there
		{dOnly, 80, []byte{4}, "number of UEIDs", wire.ErrValue},

		// The SMC-Dv2 extension likewise.
		{full, 230, []byte{0, 0}, "number of ISM entries", wire.ErrValue}, // absent, but with entries
		{full, 230, []byte{0, 1}, "SMC-Dv2 offset", wire.ErrValue},
		{full, 230, []byte{0x01, 0x1f}, "SMC-Dv2 offset", wire.ErrValue},
		{full, 230, []byte{0x01, 0x21}, "number of ISM entries", wire.ErrValue},
		{full, 230, []byte{(648 - 232 - 48) >> 8, (648 - 232 - 48) & 0xff}, "number of ISM entries", wire.ErrValue},
		{full, 230, []byte{(648 - 232 - 47) >> 8, (648 - 232 - 47) & 0xff}, "SMC-Dv2 offset", wire.ErrValue},
		{full, 230, []byte{0xff, 0xff}, "SMC-Dv2 offset", wire.ErrValue},
		{full, 225, []byte{0}, "", nil},
		{full, 225, []byte{1}, "", nil},
		{full, 225, []byte{2}, "ISM entry", wire.ErrValue}, // half an Extended GID
		{full, 225, []byte{3}, "", nil},
		{full, 225, []byte{7}, "ISM entry", wire.ErrValue},
		{full, 225, []byte{9}, "number of ISM entries", wire.ErrValue},
		{full, 225, []byte{255}, "number of ISM entries", wire.ErrValue},
		{dOnly, 81, []byte{3}, "number of ISM entries", wire.ErrValue},
		{noDv2, 89, []byte{1}, "number of ISM entries", wire.ErrValue},
		{dOnly, 200 + 18, []byte{0xff, 0xfe}, "ISM entry", wire.ErrValue}, // the other half has another CHID
		{dOnly, 200 + 18, []byte{0x00, 0x01}, "ISM entry", wire.ErrValue},
		{dOnly, 200 + 8, []byte{0x00, 0x01}, "ISM entry", wire.ErrValue}, // a native device, then half a GID
		{dOnly, 200 + 8, []byte{0xfe, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff}, "", nil},
		{old, 7, []byte{0x12}, "version 1 types", wire.ErrValue},
		{oldD, 7, []byte{0x12}, "version 1 types", wire.ErrValue},

		// Accept and Confirm.
		{"notes: Accept", 7, []byte{0x1a}, "SMC type", wire.ErrReservedEnum},
		{"notes: Accept", 7, []byte{0x1b}, "SMC type", wire.ErrReservedEnum},
		{"notes: Accept", 7, []byte{0x19}, "length", wire.ErrLength}, // SMC-D with SMC-R's length
		{"Accept v1 D", 7, []byte{0x18}, "length", wire.ErrLength},
		{"Confirm v2 D", 7, []byte{0x20}, "length", wire.ErrLength},
		{"Confirm v2 R", 7, []byte{0x28}, "length", wire.ErrLength}, // first contact without FCE
		{"Confirm v2 D", 7, []byte{0x29}, "length", wire.ErrLength},
		{"notes: Accept", 50, []byte{0x20}, "MTU", wire.ErrReservedEnum},
		{"notes: Accept", 50, []byte{0x26}, "MTU", wire.ErrReservedEnum},
		{"notes: Accept", 50, []byte{0x2f}, "MTU", wire.ErrReservedEnum},
		{"notes: Confirm", 50, []byte{0x26}, "", nil}, // does not know whether it is a first contact
		{capOne + " 8", 50, []byte{0x26}, "MTU", wire.ErrReservedEnum},
		{"Confirm v2 R", 50, []byte{0x26}, "", nil},
		{capTwo + " 8", 156, []byte{0}, "number of GIDs", wire.ErrValue},
		{capTwo + " 8", 156, []byte{1}, "", nil},
		{capTwo + " 8", 156, []byte{3}, "number of GIDs", wire.ErrValue},
		{capTwo + " 8", 156, []byte{8}, "number of GIDs", wire.ErrValue},
		{capTwo + " 8", 156, []byte{9}, "number of GIDs", wire.ErrValue},
		{capTwo + " 8", 156, []byte{255}, "number of GIDs", wire.ErrValue},
		{"Confirm v2.1 R, first contact, 8 GIDs", 156, []byte{9}, "number of GIDs", wire.ErrValue},
	} {
		b := vectorBytes(t, tt.name)
		copy(b[tt.offset:], tt.value)
		got, err := Parse(b)
		if tt.err == nil {
			if err != nil {
				t.Errorf("%s with %x at %d: %v, want no error", tt.name, tt.value, tt.offset, err)
			}
			continue
		}
		var d *wire.DecodeError
		if got != nil || !errors.As(err, &d) || d.Field != tt.field || d.Err != tt.err {
			t.Errorf("%s with %x at %d: Parse = %v, %v; want a DecodeError of %s: %v", tt.name, tt.value, tt.offset, got, err, tt.field, tt.err)
		}
	}
}

// TestLengths resizes messages that have a fixed length, or a minimum.
func TestLengths(t *testing.T) {
	for _, tt := range []struct {
		name string
		ok   func(n int) bool
	}{
		{"notes: Accept", func(n int) bool { return n == 68 }},
		{"notes: Confirm", func(n int) bool { return n == 68 }},
		{"Accept v1 D", func(n int) bool { return n == 48 }},
		{"Confirm v1 D", func(n int) bool { return n == 48 }},
		{"Confirm v2 R", func(n int) bool { return n >= 108 }},
		{"Confirm v2 D", func(n int) bool { return n >= 78 }},
		{"Accept v2.0 R, first contact", func(n int) bool { return n >= 144 }},
		{"Accept v2.1 R, first contact", func(n int) bool { return n >= 144 }},
		{"Accept v2.0 D, native ISM, first contact", func(n int) bool { return n >= 114 }},
		// From 164 on there is a list of GIDs: its two entries must be there.
		{"Confirm v2.0 R, first contact", func(n int) bool { return n >= 144 && n < 164 || n >= 196 }},
		{"Decline v1, out of sync", func(n int) bool { return n == 28 || n == 44 }},
		{"Decline v2", func(n int) bool { return n == 28 || n >= 44 }},
		{"notes: Proposal IPv4", func(n int) bool { return n == 52 }},
		{"notes: Proposal IPv6", func(n int) bool { return n == 69 }},
		{"Proposal v2 header, v1 R", func(n int) bool { return n >= 92 }},
	} {
		b := vectorBytes(t, tt.name)
		for n := HeaderLen + eyecatcherLen; n < 400; n++ {
			if got, err := Parse(resize(b, n)); (err == nil) != tt.ok(n) {
				t.Errorf("%s with %d bytes: Parse = %v, %v; want no error: %v", tt.name, n, got, err, tt.ok(n))
			}
		}
	}
}

// TestEveryOffset puts all 65536 values in each offset of a Proposal, and checks that extensions
// outside the message, or on one another, are never accepted.
func TestEveryOffset(t *testing.T) {
	b := vectorBytes(t, "Proposal v2.1, everything at its maximum")
	const ip, v2, dv2, end = 80, 224, 520, 648
	for _, tt := range []struct {
		name               string
		field              int // where the offset is
		from               int // where it counts from
		least, most, exact int // where the extension may start; where it does
	}{
		{"IP offset", 38, 40, ip, v2 - ipAreaLen, ip},
		{"v2 offset", 50, 52, v2, end - proposalV2Len, v2},
		{"SMC-Dv2 offset", 230, 232, dv2, end - proposalDv2Len - 8*ismEntryLen, dv2},
	} {
		patched := bytes.Clone(b)
		for v := range 1 << 16 {
			binary.BigEndian.PutUint16(patched[tt.field:], uint16(v))
			start := tt.from + v
			switch _, err := Parse(patched); {
			case start == tt.exact && err != nil:
				t.Errorf("%s %d: %v", tt.name, v, err)
			case err == nil && v != 0 && (start < tt.least || start > tt.most):
				t.Errorf("%s %d: no error for an extension at %d, want one in %d to %d", tt.name, v, start, tt.least, tt.most)
			}
		}
	}
}

// TestEveryByte sets every byte of every vector to a few values. Nothing may panic, and accepted
// bytes must be a message that can be told from its bytes again.
func TestEveryByte(t *testing.T) {
	done := map[string]bool{} // the captures repeat themselves
	for _, tt := range allVectors(t) {
		if done[tt.hex] || strings.HasPrefix(tt.name, capTwo) {
			continue
		}
		done[tt.hex] = true
		b := unhex(t, tt.hex)
		for i := range b {
			saved := b[i]
			for _, v := range []byte{0, saved + 1, saved ^ 0x80, 0xff} {
				b[i] = v
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
	if m.Validate() != nil {
		return // of a form that is read but not sent
	}
	encoded := m.Append(nil)
	again, err := Parse(encoded)
	if err != nil {
		t.Fatalf("Parse(%x) of what %v was encoded to: %v", encoded, m, err)
	}
	if twice := again.Append(nil); !bytes.Equal(twice, encoded) {
		t.Fatalf("%v\nencoded %x\nagain   %x", m, encoded, twice)
	}
	if want := asSent(m).String(); again.String() != want {
		t.Fatalf("Parse(Append)\n = %v\nwant %v", again, want)
	}
}

// asSent returns m as it is sent: with its prefixes masked, and in version 1 without the part that
// only the long Decline has.
func asSent(m Message) Message {
	switch m := m.(type) {
	case Proposal:
		if m.IP == nil {
			return m
		}
		ip := &IPArea{IPv4: m.IP.IPv4.Masked()}
		for _, prefix := range m.IP.IPv6 {
			ip.IPv6 = append(ip.IPv6, prefix.Masked())
		}
		m.IP = ip
		return m
	case Decline:
		if m.Version == V1 {
			m.ByType = DiagnosisByType{}
		}
		return m
	}
	return m
}

// TestNineGIDs has Confirms that are long enough for the number of GIDs they announce: 1 to 8 are read,
// any other number is an error (SMCv2 p.77, note 3a).
func TestNineGIDs(t *testing.T) {
	b := vectorBytes(t, "Confirm v2.1 R, first contact, 8 GIDs")
	for count := range (MaxLen - gidsOffset) / gidLen {
		c := resize(b, gidsOffset+count*gidLen+eyecatcherLen)
		c[gidListOffset] = byte(count)
		got, err := Parse(c)
		if count >= 1 && count <= MaxClientGIDs {
			if err != nil || len(got.(Confirm).ClientGIDs) != count {
				t.Errorf("Parse with %d GIDs = %v, %v", count, got, err)
			}
			continue
		}
		if !errors.Is(err, wire.ErrValue) {
			t.Errorf("Parse with %d GIDs = %v, %v; want ErrValue", count, got, err)
		}
	}
}

// TestNineEntries has Proposals that are long enough for the number of ISM devices they announce.
func TestNineEntries(t *testing.T) {
	b := vectorBytes(t, capD+" 4") // one Emulated-ISM device, two entries
	const v2, entries = 80, 200
	if b[v2+1] != 2 {
		t.Fatalf("%d entries, want 2", b[v2+1])
	}
	for count := 0; count <= 255; count++ {
		c := resize(b[:entries+eyecatcherLen], entries+count*ismEntryLen+eyecatcherLen)
		c[v2+1] = byte(count)
		for i := range count {
			binary.BigEndian.PutUint64(c[entries+i*ismEntryLen:], uint64(i+1))
		}
		got, err := Parse(c)
		if count <= MaxISMEntries {
			if err != nil || len(got.(Proposal).Ext.D.Devices) != count {
				t.Errorf("Parse with %d entries = %v, %v", count, got, err)
			}
			continue
		}
		if !errors.Is(err, wire.ErrValue) {
			t.Errorf("Parse with %d entries = %v, %v; want ErrValue", count, got, err)
		}
	}
}
