package handshake

import (
	"context"
	"net/netip"
	"testing"
	"time"
)

// A full listener ends a handshake of the peer that has the most, its oldest, and none that has not had its time.
func TestBacklog(t *testing.T) {
	honest, crowded := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var b Backlog
	var ctxs []context.Context
	for _, peer := range []netip.Addr{honest, crowded, crowded} {
		ctx, remove := b.Add(context.Background(), peer)
		defer remove()
		ctxs = append(ctxs, ctx)
	}
	ended := func() (list []int) {
		for i, ctx := range ctxs {
			if ctx.Err() != nil {
				list = append(list, i)
			}
		}
		return list
	}
	now := time.Now()
	if b.Evict(now.Add(evictAfter / 2)); len(ended()) != 0 {
		t.Errorf("handshakes %v have ended before their time", ended())
	}
	if b.Evict(now.Add(2 * evictAfter)); len(ended()) != 1 || ended()[0] != 1 {
		t.Errorf("handshakes %v have ended, want the oldest of the peer that has two", ended())
	}
}
