package host

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smctest"
)

// meanwhile runs a function beside what a rig does next. The result waits for it.
func meanwhile(f func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return func() { <-done }
}

// poll waits for a condition on a goroutine that is not the test's.
func poll(t testing.TB, what string, cond func() bool) {
	for end := time.Now().Add(fabricPatience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("not so within %v: %s", fabricPatience, what)
			return
		}
	}
}

// TestSMCRAnswer has a server whose peer was asked whether it is there: connections wait for its answer, for a moment, and then make
// another link group.
func TestSMCRAnswer(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	g := s.binding.group

	g.setAnswer(core.AnswerNone, core.AnswerAwaited)
	wait := meanwhile(func() {
		poll(t, "the next connection waits", func() bool {
			r.server.mu.Lock()
			defer r.server.mu.Unlock()
			return r.server.changed != nil
		})
		g.answered()
	})
	c2, s2 := r.connect()
	wait()
	if s2.binding.group != g {
		t.Error("it does not join the group after the answer")
	}

	// Now the peer is not there any more, of which nothing tells but its silence.
	c.binding.group.fail(rnic.ErrDown)
	g.suspect()
	if core.Answer(g.answer.Load()) == core.AnswerNone && !g.isOver() {
		t.Error("nobody waits for the answer of a suspect")
	}
	smctest.Eventually(t, fabricPatience, "the answer is late", func() bool { return g.late() || g.isOver() })
	c3, s3 := r.connect()
	if s3.binding.group == g {
		t.Error("a connection joins the group of a peer that does not answer")
	}
	exchange(t, c3, s3)
	for _, e := range []*fabricEnd{c, s, c2, s2, c3, s3} {
		e.close()
	}
}

// TestSMCRAnswerLate has a connection that waits for the peer's answer to CONFIRM RKEY when that is found to be silent.
func TestSMCRAnswerLate(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	theirs, g := c.binding.group, s.binding.group
	c.close()
	s.close()
	theirs.fail(rnic.ErrDown)
	<-theirs.stopped
	g.mu.Lock()
	clear(g.rmbs.free) // so that the next connection needs another one
	g.mu.Unlock()
	wait := meanwhile(func() {
		poll(t, "the next connection waits", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.rmbs.asked) > 0
		})
		g.setAnswer(core.AnswerNone, core.AnswerLate)
	})
	c, s = r.connect()
	wait()
	if s.binding.group == g {
		t.Error("the connection has joined the group of a peer that does not answer")
	}
	exchange(t, c, s)
	c.close()
	s.close()
}

// TestSMCRIdleGroup lets the time of an idle link group run out: the server deletes it, the client complies, and the next connection
// makes another.
func TestSMCRIdleGroup(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	client, server := c.binding.group, s.binding.group
	c.close()
	s.close()
	r.client.sweep(time.Now().Add(core.ServerGroupIdleTimeout)) // a client waits longer
	if client.isOver() || len(r.client.status(nil)) != 1 {
		t.Error("the client has ended the group first")
	}
	r.server.sweep(time.Now().Add(core.ServerGroupIdleTimeout))
	for _, g := range []*smcrGroup{server, client} {
		select {
		case <-g.stopped:
		case <-time.After(fabricPatience):
			t.Fatal("the group has not ended")
		}
	}
	checkOneEnd(t, r.server, "link group: idle")
	checkOneEnd(t, r.client, "link group: deleted by peer: program initiated")
	c, s = r.connect()
	exchange(t, c, s)
	for _, f := range []*smcrFabric{r.client, r.server} {
		if n := len(f.status(nil)); n != 1 {
			t.Errorf("%d link groups, want a new one", n)
		}
	}
	c.close()
	s.close()
}

// TestSMCREndedHoldsNothing ends a link group that has timers running: one that runs on holds the memory of the links.
func TestSMCREndedHoldsNothing(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	exchange(t, c, s)
	g := c.binding.group
	c.data.Load().Detach()
	c.binding.Detach(true) // it has said its last word
	g.mu.Lock()
	armed := g.asker != nil
	g.mu.Unlock()
	if !armed {
		t.Fatal("the peer is not asked on behalf of a closed connection")
	}
	g.fail(rnic.ErrDown)
	<-g.stopped
	g.mu.Lock()
	for name, timer := range map[string]*time.Timer{"ask": g.asker, "stall": g.stallTimer, "core": g.timer} {
		if timer != nil && timer.Stop() {
			t.Errorf("timer %q runs after the end of the group", name)
		}
	}
	g.mu.Unlock()
	c.binding.Release(true)
	c.binding.Leave()
	s.close()
}

// TestSMCRFinishUnanswered ends a group whose peer does not answer DELETE LINK: it ends all the same, for the reason that it has.
func TestSMCRFinishUnanswered(t *testing.T) {
	var cut atomic.Bool
	r := newFabricRig(t, func(c, _ *rdma.Config) { c.Drop = func([]byte) bool { return cut.Load() } })
	c, s := r.connect()
	g := s.binding.group
	cut.Store(true)
	g.finish(core.EndOperator)
	select {
	case <-g.stopped:
	case <-time.After(fabricPatience):
		t.Error("the group has not ended")
	}
	checkOneEnd(t, r.server, "link group: operator")
	c.close()
	s.close()
}
