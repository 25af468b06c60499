package host

import (
	"net/netip"
	"slices"
	"strings"
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
		if _, err := New(Config{SMCRPeers: []string{bad}}); err == nil {
			t.Errorf("New with the peer %q succeeds", bad)
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
		h := newTestHost(t, Config{SMCRPeers: tt.rules})
		if got := h.speaksCLC(netip.MustParseAddr(tt.remote), tt.port); got != tt.want {
			t.Errorf("with %v, speaksCLC(%s, %d) = %v, want %v", tt.rules, tt.remote, tt.port, got, tt.want)
		}
	}
	h := newTestHost(t, Config{SMCRPeers: []string{"0.0.0.0/0"}, Disabled: true})
	if h.speaksCLC(netip.MustParseAddr("192.0.2.1"), 80) {
		t.Error("a disabled host has peers")
	}
}

// TestListsFromEnvironment leaves lists to the environment. One that is broken does not keep a program from working.
func TestListsFromEnvironment(t *testing.T) {
	for _, tt := range []struct {
		config, env, want []string // UEIDs, peers, devices
		warns             bool
	}{
		{[]string{"", "", ""}, []string{"", "", ""}, []string{"", "", ""}, false},
		{[]string{"", "", ""}, []string{"A,B", "192.0.2.0/24:80, [2001:db8::/32]:443", "192.0.2.1"}, []string{"A B", "192.0.2.0/24:80 [2001:db8::/32]:443", "192.0.2.1"}, false},
		{[]string{"C", "192.0.2.9", "192.0.2.8"}, []string{"A", "192.0.2.1", "192.0.2.2"}, []string{"C", "192.0.2.9", "192.0.2.8"}, false},
		{[]string{"", "", ""}, []string{"not a UEID: ?", "192.0.2.1:99999", "here"}, []string{"", "", ""}, true},
	} {
		log := new(record)
		for i, variable := range []string{"GOSMC_UEIDS", "GOSMC_SMCR_PEERS", "GOSMC_SMCR_DEVICES"} {
			t.Setenv(variable, tt.env[i])
		}
		h := newTestHost(t, Config{
			UEIDs: strings.Fields(tt.config[0]), SMCRPeers: strings.Fields(tt.config[1]), SMCRDevices: strings.Fields(tt.config[2]), Logger: log.logger(),
		})
		for i, got := range [][]string{h.cfg.UEIDs, h.cfg.SMCRPeers, h.cfg.SMCRDevices} {
			if want := strings.Fields(tt.want[i]); !slices.Equal(got, want) {
				t.Errorf("with %q in the configuration and %q in the environment: %q, want %q", tt.config[i], tt.env[i], got, want)
			}
		}
		if warned := strings.Contains(log.String(), "GOSMC_SMCR_PEERS"); warned != tt.warns {
			t.Errorf("environment %q: the log has %q", tt.env, log.String())
		}
	}
}
