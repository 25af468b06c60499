package host

import (
	"net/netip"
	"testing"
)

// onVLANs tells hosts in which VLANs their interfaces are. No connection is being made meanwhile: the listener is another one afterwards,
// as its goroutine would not know.
func (r *smcrRig) onVLANs(vlan func(netip.Addr) uint16) {
	r.l.Close()
	r.client.rnics.VLAN, r.server.rnics.VLAN = vlan, vlan
	r.l = mustListen(r.t, r.server, loop2.String()+":0")
}

// TestSMCRVLAN has connections from several VLANs, as far as the hosts can tell: in version 1 each has a link group of its own.
func TestSMCRVLAN(t *testing.T) {
	for _, tt := range []struct {
		version string
		groups  int
	}{
		{"1.0", 2},
		{"2.1", 1}, // its packets are routed
	} {
		t.Run(tt.version, func(t *testing.T) {
			r := newSMCRRig(t, func(c, s *Config) {
				c.SMCRv1, s.SMCRv1 = true, true
				if tt.version == "1.0" {
					c.UEIDs = nil
				}
			})
			for id := range uint16(2) {
				for range 2 {
					r.onVLANs(func(netip.Addr) uint16 { return 5 + id })
					c, s := r.connect()
					checkSMCR(t, c, s)
					if c.Agreed().Version != tt.version {
						t.Errorf("version %s, want %s", c.Agreed().Version, tt.version)
					}
					checkExchange(t, c, s)
					c.Close()
					s.Close()
				}
			}
			if a, b := groupsOf(r.client), groupsOf(r.server); len(a) != tt.groups || len(b) != tt.groups {
				t.Errorf("%d and %d link groups, want %d", len(a), len(b), tt.groups)
			}
		})
	}
}
