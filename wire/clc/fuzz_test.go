package clc

import (
	"bytes"
	"strings"
	"testing"
)

// The fuzz targets check that no input panics, that errors are DecodeErrors, and that accepted
// messages survive being encoded; see checkRoundTrip. Seeds are all vectors of the type.

func fuzzType(f *testing.F, typ Type) {
	for _, v := range allVectors(f) {
		if v.msg.Type() == typ {
			f.Add(unhex(f, v.hex))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// Spend no time on finding the type, eyecatchers and the length.
		if len(b) >= HeaderLen+eyecatcherLen && len(b) <= MaxLen {
			b = resize(b, len(b))
			copy(b, eyecatcherSMCR)
			b[4] = byte(typ)
		}
		checkRoundTrip(t, b)
	})
}

func FuzzProposal(f *testing.F) { fuzzType(f, TypeProposal) }
func FuzzAccept(f *testing.F)   { fuzzType(f, TypeAccept) }
func FuzzConfirm(f *testing.F)  { fuzzType(f, TypeConfirm) }
func FuzzDecline(f *testing.F)  { fuzzType(f, TypeDecline) }

// FuzzParse leaves the input as it is, and checks the header too.
func FuzzParse(f *testing.F) {
	for _, v := range allVectors(f) {
		f.Add(unhex(f, v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkRoundTrip(t, b)
		h, err := ParseHeader(b)
		if err != nil {
			if m, err := Parse(b); err == nil {
				t.Fatalf("Parse(%x) = %v without a good header", b, m)
			}
			return
		}
		if h.Len < declineV1Len || h.Len > MaxLen {
			t.Fatalf("ParseHeader(%x) has length %d", b, h.Len)
		}
		if m, err := Parse(b); err == nil {
			exact, err := Parse(b[:h.Len])
			if err != nil || exact.String() != m.String() {
				t.Fatalf("Parse of exactly %x = %v, %v; want %v", b[:h.Len], exact, err, m)
			}
		}
	})
}

func FuzzOption(f *testing.F) {
	for _, line := range capturedLines(f) {
		if strings.HasPrefix(line.kind, "syn") {
			f.Add(unhex(f, line.hex))
		}
	}
	f.Fuzz(func(t *testing.T, options []byte) {
		if len(options) > 40 {
			return
		}
		if HasOption(options) && !bytes.Contains(options, []byte(eyecatcherSMCR)) {
			t.Fatalf("HasOption(%x) = true without the identifier", options)
		}
		if with := AppendOption(bytes.Clone(options)); HasOption(options) && !HasOption(with) {
			t.Fatalf("HasOption(%x) = false with one more option", with)
		}
	})
}
