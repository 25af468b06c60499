package smcr

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rnic"
)

// TestEndedHoldsNothing ends a link group that has timers running: one that runs on holds the memory of the links.
func TestEndedHoldsNothing(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	exchange(t, c, s)
	g := c.binding.group
	c.data.Load().Detach()
	c.binding.Detach(true) // it has said its last word
	g.mu.Lock()
	armed := g.peer.asker != nil
	g.stalls.start() // as if another link were up
	g.mu.Unlock()
	if !armed {
		t.Fatal("the peer is not asked on behalf of a closed connection")
	}
	g.links.fail(rnic.ErrDown)
	<-g.loop.stopped
	g.mu.Lock()
	for name, timer := range map[string]*time.Timer{"ask": g.peer.asker, "stall": g.stalls.timer, "llcflow": g.timer.timer} {
		if timer != nil && timer.Stop() {
			t.Errorf("timer %q runs after the end of the group", name)
		}
	}
	g.mu.Unlock()
	c.binding.Release(true)
	c.binding.Leave()
	s.close()
}

// TestFinishUnanswered ends a group whose peer does not answer DELETE LINK: it ends all the same, for the reason that it has.
func TestFinishUnanswered(t *testing.T) {
	var cut atomic.Bool
	r := newFabricRig(t, func(c, _ *rdma.Config) { c.Drop = func([]byte) bool { return cut.Load() } })
	c, s := r.connect()
	g := s.binding.group
	cut.Store(true)
	g.end.finish(llcflow.EndOperator)
	select {
	case <-g.loop.stopped:
	case <-time.After(fabricPatience):
		t.Error("the group has not ended")
	}
	checkEnd(t, r.server, "link group: operator")
	c.close()
	s.close()
}
