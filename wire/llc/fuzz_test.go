package llc

import (
	"errors"
	"testing"
)

// The fuzz targets check that no input panics, that errors are DecodeErrors, and that accepted
// messages survive being encoded; see checkRoundTrip. Seeds are all vectors of the type.

func fuzzType(f *testing.F, typ Type) {
	for _, v := range allVectors(f) {
		if v.msg.Type() == typ {
			f.Add(unhex(f, v.hex), uint8(v.msg.Head().Form))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, form uint8) {
		// Spend no time on finding the type and the length.
		h := Header{Form: Form(form%3 + 1)}
		if len(b) >= MinLen && len(b) <= MaxLen && typ.In(h.Form.Version()) {
			b = append([]byte(nil), b...)
			b[0], b[1] = byte(typ), MinLen
			if h.Form != V1 {
				b[0] |= versionTwo
				h.Form.putUint16(b[1:], uint16(len(b)))
			}
		}
		checkRoundTrip(t, b)
	})
}

func FuzzConfirmLink(f *testing.F)     { fuzzType(f, TypeConfirmLink) }
func FuzzAddLink(f *testing.F)         { fuzzType(f, TypeAddLink) }
func FuzzAddLinkCont(f *testing.F)     { fuzzType(f, TypeAddLinkCont) }
func FuzzDeleteLink(f *testing.F)      { fuzzType(f, TypeDeleteLink) }
func FuzzRequestAddLink(f *testing.F)  { fuzzType(f, TypeRequestAddLink) }
func FuzzConfirmRKey(f *testing.F)     { fuzzType(f, TypeConfirmRKey) }
func FuzzConfirmRKeyCont(f *testing.F) { fuzzType(f, TypeConfirmRKeyCont) }
func FuzzDeleteRKey(f *testing.F)      { fuzzType(f, TypeDeleteRKey) }
func FuzzTestLink(f *testing.F)        { fuzzType(f, TypeTestLink) }

// FuzzParse leaves the input as it is.
func FuzzParse(f *testing.F) {
	for _, v := range allVectors(f) {
		f.Add(unhex(f, v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkRoundTrip(t, b)
		m, err := Parse(b)
		if discard := len(b) > 0 && b[0]>>6 == 2; discard != errors.Is(err, ErrOptional) {
			t.Fatalf("Parse(%x) = %v, %v; want it discarded: %v", b, m, err, discard)
		}
		if len(b) < MinLen && err == nil {
			t.Fatalf("Parse(%x) = %v of %d bytes", b, m, len(b))
		}
	})
}
