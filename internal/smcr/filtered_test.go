package smcr

import (
	"net/netip"
	"testing"
	"time"
)

// TestFilteredPeers has the memory of peers: longer from time to time, bounded, and forgotten when a link comes about.
func TestFilteredPeers(t *testing.T) {
	var f filteredPeers
	peer := netip.MustParseAddr("192.0.2.1")
	now := time.Unix(1000, 0)
	if f.is(peer, now) {
		t.Error("known without a note")
	}
	for pause := minFilteredPause; pause < maxFilteredPause; pause *= 2 {
		f.note(peer, now)
		f.note(peer, now.Add(pause/2)) // of one that began at the same time
		if !f.is(peer, now.Add(pause-1)) || f.is(peer, now.Add(pause)) {
			t.Errorf("not known for %v", pause)
		}
		now = now.Add(pause)
	}
	for range 2 {
		f.note(peer, now)
		if !f.is(peer, now.Add(maxFilteredPause-1)) || f.is(peer, now.Add(maxFilteredPause)) {
			t.Errorf("not known for %v", maxFilteredPause)
		}
		now = now.Add(maxFilteredPause)
	}
	f.forget(peer)
	f.note(peer, now)
	if !f.is(peer, now) || f.is(peer, now.Add(minFilteredPause)) {
		t.Error("not forgotten")
	}
	for i := range 2 * maxFilteredPeers {
		f.note(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), now)
	}
	if n := len(f.list); n != maxFilteredPeers {
		t.Errorf("%d are remembered, want %d", n, maxFilteredPeers)
	}
	now = now.Add(minFilteredPause)
	other := netip.MustParseAddr("2001:db8::1")
	f.note(other, now)
	if n := len(f.list); n != 1 || !f.is(other, now) {
		t.Errorf("%d are remembered once their time is over, want one", n)
	}
}
