package config

import (
	"net/netip"
	"strings"
	"testing"
)

// TestMachine asks for servers in networks of the default and of lists.
func TestMachine(t *testing.T) {
	for _, tt := range []struct {
		list       string
		has, lacks string
	}{
		{"", "10.0.0.1 127.0.0.1 169.254.1.1 172.31.0.1 192.168.0.1 100.64.0.1 100.127.255.255 ::1 fd00::1 fe80::1%eth0 ::ffff:10.0.0.1", "1.1.1.1 172.32.0.1 100.128.0.1 2001:db8::1 ::ffff:1.1.1.1"},
		{"!10.1.0.0/16", "10.2.0.1 192.168.0.1", "10.1.2.3 ::ffff:10.1.2.3 8.8.8.8"},
		{"198.51.100.0/24 !198.51.100.7", "198.51.100.1", "198.51.100.7 10.0.0.1 127.0.0.1"},
		{"any", "1.1.1.1 2001:db8::1", ""},
		{"any !2001:db8::/32", "1.1.1.1", "2001:db8::1"},
		{"none", "", "10.0.0.1 127.0.0.1 1.1.1.1"},
	} {
		m, err := NewMachine(strings.Fields(tt.list))
		if err != nil {
			t.Fatal(err)
		}
		for want, list := range map[bool]string{true: tt.has, false: tt.lacks} {
			for _, a := range strings.Fields(list) {
				if got := m.MayHave(netip.MustParseAddr(a)); got != want {
					t.Errorf("with %q MayHave(%s) = %v", tt.list, a, got)
				}
			}
		}
	}
	if _, err := NewMachine([]string{"10.0.0.0/33"}); err == nil {
		t.Error("10.0.0.0/33 is taken")
	}
}
