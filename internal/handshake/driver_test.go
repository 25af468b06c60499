package handshake

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
)

// TestCapabilitiesPeer checks that decisions know the IP version of the TCP connection.
func TestCapabilitiesPeer(t *testing.T) {
	d := New(Config{})
	for _, peer := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("2001:db8::1"), {}} {
		var caps core.Capabilities
		d.capabilities(&caps, nil, peer)
		if caps.Peer != peer {
			t.Errorf("capabilities for a peer at %v: Peer = %v", peer, caps.Peer)
		}
	}
}

// TestRecycle checks that a handshake is used again only if nobody can tell it anything any more.
func TestRecycle(t *testing.T) {
	for _, linked := range []bool{true, false} {
		s := &handshake{Request: Request{Buffer: 1}}
		if linked {
			s.linkSince = time.Now()
		}
		s.recycle()
		if kept := s.Buffer != 0; kept != linked {
			t.Errorf("a link knows it: %v; it was left alone: %v", linked, kept)
		}
	}
}
