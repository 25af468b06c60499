package top

import (
	"errors"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/inventory"
)

// typeKeys has a view take keys, and returns how many filters came into force.
func typeKeys(v *View, keys string) (n int) {
	for i := range len(keys) {
		if v.key(keys[i]) {
			n++
		}
	}
	return n
}

// TestPrompt types filters: a view takes them when they are complete, and keeps the old one where one
// is given up or wrong. Keys of a view are letters meanwhile.
func TestPrompt(t *testing.T) {
	wrong := errors.New("want mode")
	v := View{Sort: "bytes", Filter: func(words string) error {
		if strings.Contains(words, "wrong") {
			return wrong
		}
		return nil
	}}
	for _, tt := range []struct {
		keys    string
		applied int
		words   string
		line    string // part of the line about keys
	}{
		{"/mode tcp", 0, "", "filter (Enter: use, Esc: keep the old one): mode tcp_"},
		{"\r", 1, "mode tcp", "q: end   [mode tcp]"},
		{"/\x7f\b\x7funix\n", 1, "mode unix", "[mode unix]"},
		{"/x\x1b", 0, "mode unix", "[mode unix]"},
		{"/\x15wrong\r", 0, "mode unix", "want mode"},
		{"t", 0, "mode unix", "[mode unix]"},
		{"/\x15\x7f\x01\xff\r", 1, "", "q: end"},
		{"/" + strings.Repeat("x", 300) + "\r", 1, strings.Repeat("x", maxTyped), "xxx]"},
	} {
		if n := typeKeys(&v, tt.keys); n != tt.applied || v.Words != tt.words || !strings.Contains(v.keys(), tt.line) {
			t.Errorf("keys %q: %d filters, %q, %q; want %d, %q, %q", tt.keys, n, v.Words, v.keys(), tt.applied, tt.words, tt.line)
		}
	}
	if v.Sort != "tcp" {
		t.Errorf("order %q, want tcp", v.Sort)
	}
}

// TestSummary counts connections of all services.
func TestSummary(t *testing.T) {
	for _, tt := range []struct {
		list []inventory.Activity
		want string
	}{
		{nil, "no connection"},
		{[]inventory.Activity{{Modes: map[string]int{"Unix": 49}}, {Modes: map[string]int{"Unix": 1, "SMC-D": 2}}}, "52 of 52 outside TCP (100 %): 50 Unix, 2 SMC-D"},
		{
			[]inventory.Activity{
				{Modes: map[string]int{"Unix": 1, "TCP": 3}, Reasons: []inventory.ReasonCount{{Tag: "OTHER_USER", Count: 2}, {Count: 1}}},
				{Modes: map[string]int{"TCP": 4}, Reasons: []inventory.ReasonCount{{Count: 4}}},
			},
			"1 of 8 outside TCP (12 %): 1 Unix;  7 TCP, mostly no visible reason",
		},
		{[]inventory.Activity{{Modes: map[string]int{"TCP": 1}, Reasons: []inventory.ReasonCount{{Tag: "SHORT", Count: 1}}}}, "0 of 1 outside TCP (0 %);  1 TCP, SHORT"},
	} {
		if got := (&Report{Activity: tt.list}).summary(); got != tt.want {
			t.Errorf("summary of %+v = %q, want %q", tt.list, got, tt.want)
		}
	}
}
