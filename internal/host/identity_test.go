package host

import (
	"testing"

	"github.com/gosmc/smc/wire"
)

// TestPeerID checks that a host has an identity of its own each time it is made, with a MAC address of nobody's adapter.
func TestPeerID(t *testing.T) {
	seen := make(map[wire.PeerID]bool)
	for range 100 {
		id := newPeerID()
		if mac := id.MAC(); mac[0]&3 != 2 || seen[id] {
			t.Fatalf("peer ID %v: want a MAC that is local and of one station, and one that is new", id)
		}
		seen[id] = true
	}
}
