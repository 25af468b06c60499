package bench

import (
	"slices"
	"testing"
)

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

// What rows must reach is a promise to users; changing one is a decision, and not an accident.
func TestMusts(t *testing.T) {
	for _, tt := range []struct {
		row, subject, against string
		must, aim             float64
	}{
		{"connect", transportSMCD, transportTCP, 0.4, 0.5},
		{"http-4", transportSMCD, transportTCP, 0.95, 1.2},
		{"http-8", transportSMCD, transportTCP, 1.05, 1.2},
		{"http", transportSMCD, transportTCP, 1.3, 1.6},
		{"smcr-bulk-2links", transportLinks, transportLink, 0.9, 1.1},
		{"smcr-failover", transportLinks, "", 2, 0.2},
		{"smcr-failover-silent", transportLinks, "", 3, 1},
	} {
		b := findRow(tt.row)
		if b == nil {
			t.Errorf("there is no row %s", tt.row)
			continue
		}
		if want := (bound{tt.subject, tt.against, tt.must, tt.aim}); !slices.Contains(b.bounds, want) {
			t.Errorf("%s has the bounds %v, want %v among them", tt.row, b.bounds, want)
		}
	}
	for row, conns := range map[string]int{"http-4": 4, "http-8": 8, "http": 64, "smcr-bulk-2links": 8, "smcr-failover": 100, "smcr-failover-silent": 100} {
		if b := findRow(row); b != nil && b.settings.Conns != conns {
			t.Errorf("%s uses %d connections, want %d", row, b.settings.Conns, conns)
		}
	}
}
