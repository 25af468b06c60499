package near

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"memory", "memory", 0}, {"memry", "memory", 1}, {"memoryy", "memory", 1}, {"nemory", "memory", 1},
		{"listen-prot", "listen-port", 2}, {"", "smc", 3}, {"smc", "", 3}, {"abc", "xyz", 3},
		{strings.Repeat("x", 1<<20), "smc", 1 << 20}, // in no time
	} {
		if got := Distance(tt.a, tt.b); got != tt.want {
			t.Errorf("Distance(%.20q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestNearest(t *testing.T) {
	words := []string{"on", "memory", "listen-port", "listen-ports"}
	for word, want := range map[string]string{"memry": "memory", "listen-prot": "listen-port", "of": "on", "xx": "", "frobnicate": "", "": ""} {
		if got := Nearest(word, words); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
