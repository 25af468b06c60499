package smcr

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
)

// TestIdleGroup lets the time of an idle link group run out: the server deletes it, the client complies, and the next connection
// makes another.
func TestIdleGroup(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	client, server := c.binding.group, s.binding.group
	c.close()
	s.close()
	r.client.sweep(time.Now().Add(core.ServerGroupIdleTimeout)) // a client waits longer
	if client.end.isOver() || len(r.client.Status(nil)) != 1 {
		t.Error("the client has ended the group first")
	}
	r.server.sweep(time.Now().Add(core.ServerGroupIdleTimeout))
	for _, g := range []*group{server, client} {
		select {
		case <-g.loop.stopped:
		case <-time.After(fabricPatience):
			t.Fatal("the group has not ended")
		}
	}
	checkEnd(t, r.server, "link group: idle")
	checkEnd(t, r.client, "link group: deleted by peer: program initiated")
	c, s = r.connect()
	exchange(t, c, s)
	for _, f := range []*Fabric{r.client, r.server} {
		if n := len(f.Status(nil)); n != 1 {
			t.Errorf("%d link groups, want a new one", n)
		}
	}
	c.close()
	s.close()
}
