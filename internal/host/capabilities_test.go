package host

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
)

// TestCapabilitiesPeer checks that decisions know the IP version of the TCP connection.
func TestCapabilitiesPeer(t *testing.T) {
	h := newTestHost(t, Config{})
	for _, peer := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("2001:db8::1"), {}} {
		var caps core.Capabilities
		h.capabilities(&caps, nil, peer)
		if caps.Peer != peer {
			t.Errorf("capabilities for a peer at %v: Peer = %v", peer, caps.Peer)
		}
	}
}

// TestRecycle checks that a handshake is used again only if nobody can tell it anything any more.
func TestRecycle(t *testing.T) {
	for _, linked := range []bool{true, false} {
		s := &handshake{buffer: 1}
		if linked {
			s.linkSince = time.Now()
		}
		s.recycle()
		if kept := s.buffer != 0; kept != linked {
			t.Errorf("a link knows it: %v; it was left alone: %v", linked, kept)
		}
	}
}

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
