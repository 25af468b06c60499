package rnic

import "testing"

func TestMayBeSame(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{{"", "", true}, {"NET1", "", true}, {"", "NET1", true}, {"NET1", "NET1", true}, {"NET1", "NET2", false}} {
		if got := mayBeSame(tt.a, tt.b); got != tt.want {
			t.Errorf("mayBeSame(%q, %q) = %v", tt.a, tt.b, got)
		}
	}
}
