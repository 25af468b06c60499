package host

import (
	"net/netip"
	"testing"
)

// TestCapabilitiesPeer checks that decisions know the IP version of the TCP connection.
func TestCapabilitiesPeer(t *testing.T) {
	h := newTestHost(t, Config{})
	l := mustListen(t, h, "127.0.0.1:0")
	if got := h.capabilities(nil, l.Addr()).Peer; got != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("capabilities for a peer at %v: Peer = %v", l.Addr(), got)
	}
	if got := h.capabilities(nil, nil).Peer; got.IsValid() {
		t.Errorf("capabilities for no peer: Peer = %v, want none", got)
	}
}
