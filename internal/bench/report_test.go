package bench

import "testing"

func TestFormatRatio(t *testing.T) {
	for _, tt := range []struct {
		v    float64
		want string
	}{
		{1.0 / 30, "1/30"}, {1.0 / 100, "1/100"}, {0.0123, "1/81.3"}, {0.1, "0.1x"}, {0.15, "0.15x"}, {0.85, "0.85x"},
		{1, "1x"}, {2.5, "2.5x"}, {4, "4x"}, {60, "60x"}, {9.876, "9.88x"}, {1234, "1234x"}, {0, "0x"},
	} {
		if got := FormatRatio(tt.v); got != tt.want {
			t.Errorf("FormatRatio(%v) = %q, want %q", tt.v, got, tt.want)
		}
	}
}
