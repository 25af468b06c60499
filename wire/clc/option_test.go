package clc

import (
	"bytes"
	"testing"
)

func TestOption(t *testing.T) {
	if got, want := AppendOption([]byte{9}), unhex(t, "09 fe06e2d4c3d9"); !bytes.Equal(got, want) {
		t.Errorf("AppendOption = %x, want %x", got, want)
	}
	if got, want := AppendOptionPadded(nil), unhex(t, "0101 fe06e2d4c3d9"); !bytes.Equal(got, want) || len(got) != OptionPaddedLen {
		t.Errorf("AppendOptionPadded = %x, want %x", got, want)
	}
	for _, tt := range []struct {
		options string
		want    bool
	}{
		{"", false},
		{"fe06e2d4c3d9", true},
		{"0101fe06e2d4c3d9", true},
		{"fe06e2d4c3d900", true},
		{"0204ffd7 0402 080aa38e5f2400000000 01 030306 0101fe06e2d4c3d9", true}, // Linux
		{"fe06e2d4c3d9 0204ffd7 0402", true},
		{"fe08e2d4c3d90000", true},           // longer, with more in it
		{"fe07e2d4c3d900", false},            // odd length
		{"fe06e2d4c3c4", false},              // another experiment
		{"fe06e2d4c3", false},                // cut off
		{"fe08e2d4c3d9", false},              // longer than the options
		{"fd06e2d4c3d9", false},              // the other experimental kind
		{"fe04e2d4 c3d9", false},             // too short
		{"fe", false},                        // no length
		{"fe00 fe06e2d4c3d9", false},         // length 0 would loop for ever
		{"fe01 fe06e2d4c3d9", false},         // length 1 too
		{"0500 fe06e2d4c3d9", false},         // likewise for any kind
		{"00 fe06e2d4c3d9", false},           // behind the end
		{"0208fe06e2d4c3d9", false},          // inside another option
		{"02ff fe06e2d4c3d9", false},         // behind a lie
		{"fe0200000000 fe06e2d4c3d9", false}, // ends after the empty option
		{"fe02 fe06e2d4c3d9", true},
		{"0101010101010101010101", false},
	} {
		options := unhex(t, tt.options)
		if got := HasOption(options); got != tt.want {
			t.Errorf("HasOption(%x) = %v, want %v", options, got, tt.want)
		}
	}
	for n := range OptionLen {
		if b := AppendOption(nil)[:n]; ParseOption(b) || HasOption(b) {
			t.Errorf("ParseOption(%x) or HasOption is true, want false", b)
		}
	}
	if b := AppendOption(nil); !ParseOption(b) || ParseOption(append(b, 1, 1)) {
		t.Errorf("ParseOption: want true for %x alone only", b)
	}
}
