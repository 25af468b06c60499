package config

import (
	"net/netip"
	"testing"
)

func TestPeerRules(t *testing.T) {
	for _, bad := range []string{
		"", ":", ":80", "host", "host:80", "192.0.2.1:", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.1:http", "192.0.2.0/33", "192.0.2.0/24/24",
		"[192.0.2.1", "[2001:db8::1]", "[2001:db8::1]443", "[2001:db8::1]:", "2001:db8::1]:443", "2001:db8::/129", "fe80::1%eth0/64",
	} {
		if r, err := parsePeer(bad); err == nil {
			t.Errorf("parsePeer(%q) = %+v, want an error", bad, r)
		}
	}
	for _, tt := range []struct {
		rules  []string
		remote string
		port   uint16
		want   bool
	}{
		{nil, "192.0.2.1", 80, false},
		{[]string{"192.0.2.1"}, "192.0.2.1", 80, true},
		{[]string{"192.0.2.1"}, "192.0.2.2", 80, false},
		{[]string{"192.0.2.9/24"}, "192.0.2.2", 80, true},
		{[]string{"192.0.2.0/24:80"}, "192.0.2.2", 80, true},
		{[]string{"192.0.2.0/24:80"}, "192.0.2.2", 81, false},
		{[]string{"192.0.2.0/24:80", "192.0.2.2:81"}, "192.0.2.2", 81, true},
		{[]string{"192.0.2.0/24"}, "::ffff:192.0.2.2", 80, true},
		{[]string{"::ffff:192.0.2.1"}, "192.0.2.1", 80, true},
		{[]string{"0.0.0.0/0"}, "2001:db8::1", 80, false},
		{[]string{"2001:db8::/32"}, "2001:db8::1", 80, true},
		{[]string{"[2001:db8::/32]:80"}, "2001:db8::1", 81, false},
		{[]string{"[2001:db8::1]:80"}, "2001:db8::1", 80, true},
		{[]string{"fe80::/10"}, "fe80::1%eth0", 80, true},
	} {
		peers, err := ParsePeers(tt.rules)
		if err != nil {
			t.Fatalf("ParsePeers(%q) = %v", tt.rules, err)
		}
		if got := peers.Speak(netip.MustParseAddr(tt.remote), tt.port); got != tt.want {
			t.Errorf("with %v, Speak(%s, %d) = %v, want %v", tt.rules, tt.remote, tt.port, got, tt.want)
		}
	}
}
