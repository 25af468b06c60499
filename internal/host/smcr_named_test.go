package host

import (
	"testing"

	"github.com/gosmc/smc/internal/smctest"
)

// TestSMCRNamedNewest has a group that lost its first link and made it again: the server names that
// link for later connections, and both ends write over it, though the other one has fewer.
func TestSMCRNamedNewest(t *testing.T) {
	r, cables := newTwinRig(t, nil)
	r.connect()
	r.awaitRedundancy("symmetric")
	cables.IP(0, "link set cable0 down")
	smctest.Eventually(t, patience, "both ends have lost the link", func() bool { return r.failovers() == 2 })
	cables.IP(0, "link set cable0 up")
	r.awaitRedundancy("symmetric")
	newest := uint8(0)
	for _, l := range r.server.Status().Groups[0].Links {
		newest = max(newest, l.Number)
	}
	for range 6 {
		c, s := r.connect()
		checkSMCR(t, c, s)
		if c.Link() != newest || s.Link() != newest {
			t.Errorf("a later connection is on link %d and on %d, want %d", c.Link(), s.Link(), newest)
		}
		checkTransfer(t, c, s, 1<<20)
	}
}
