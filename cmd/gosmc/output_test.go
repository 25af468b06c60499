package main

import "testing"

func TestCutAddress(t *testing.T) {
	for _, tt := range []struct {
		addr  string
		width int
		want  string
	}{
		{"127.0.0.1:80", 23, "127.0.0.1:80"},
		{"[2001:db8:1:2:3:4:5:6]:50000", 23, "[2001:db8:1:2:3..:50000"},
		{"[fe80::1%eth0]:80", 12, "[fe80::..:80"},
		{"a-very-long-name-without-port", 10, "a-very-l.."},
		{"long.example:65000", 3, "..:65000"},
		{"", 5, ""},
	} {
		if got := cutAddress(tt.addr, tt.width); got != tt.want {
			t.Errorf("cutAddress(%q, %d) = %q, want %q", tt.addr, tt.width, got, tt.want)
		}
	}
}
