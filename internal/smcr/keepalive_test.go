package smcr

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// TestQuiet has connections ask for tests of their link: the shortest time counts, for as long as its connection lasts.
func TestQuiet(t *testing.T) {
	r := newFabricRig(t, nil)
	r.client.cfg.KeepAlive, r.server.cfg.KeepAlive = -1, -1
	c, s := r.connect()
	other, otherPeer := r.connect()
	g := c.binding.group
	check := func(what string, want time.Duration) {
		t.Helper()
		g.mu.Lock()
		defer g.mu.Unlock()
		if got := g.ctl.TestInterval(); got != want {
			t.Errorf("%s: the link is tested after %v, want %v", what, got, want)
		}
	}
	check("at first", 0)
	other.binding.SetQuiet(60 * time.Second)
	check("one asks", 60*time.Second)
	c.binding.SetQuiet(10 * time.Second)
	check("another one asks for less", 10*time.Second)
	c.binding.SetQuiet(600 * time.Second)
	check("it asks for more", 60*time.Second)
	c.binding.SetQuiet(30 * time.Second)
	c.binding.SetQuiet(0)
	check("it does not ask any more", 60*time.Second)
	other.close()
	smctest.Eventually(t, fabricPatience, "nobody asks after the connection has ended", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.ctl.TestInterval() == 0
	})
	for _, e := range []*fabricEnd{c, s, otherPeer} {
		e.close()
	}
}
