package smcr

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smctest"
)

// TestKnockDuringChange asks the kernel of a peer while links are made, whose other ends are not
// known before. The test is for the race detector.
func TestKnockDuringChange(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	defer c.close()
	defer s.close()
	g := c.binding.group
	g.peer.knock()
	smctest.Eventually(t, fabricPatience, "it is asked", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		l := g.links.all[0]
		was := l.peer
		l.peer = netip.Addr{}
		l.peer = was
		return !g.peer.knocking.Load()
	})
	exchange(t, c, s)
}

// meanwhile runs a function beside the next steps of a rig. The result waits for it.
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

// TestAnswer has a server whose peer was asked whether it is there: connections wait for its answer, for a moment, and then make
// another link group.
func TestAnswer(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	g := s.binding.group

	g.peer.setAnswer(core.AnswerNone, core.AnswerAwaited)
	wait := meanwhile(func() {
		poll(t, "the next connection waits", func() bool {
			r.server.mu.Lock()
			defer r.server.mu.Unlock()
			return r.server.changed != nil
		})
		g.peer.answered()
	})
	c2, s2 := r.connect()
	wait()
	if s2.binding.group != g {
		t.Error("it does not join the group after the answer")
	}

	// Now the peer is not there any more, of which nothing tells but its silence.
	c.binding.group.links.fail(rnic.ErrDown)
	g.peer.suspect()
	if core.Answer(g.peer.answer.Load()) == core.AnswerNone && !g.end.isOver() {
		t.Error("nobody waits for the answer of a suspect")
	}
	smctest.Eventually(t, fabricPatience, "the answer is late", func() bool { return g.peer.late() || g.end.isOver() })
	c3, s3 := r.connect()
	if s3.binding.group == g {
		t.Error("a connection joins the group of a peer that does not answer")
	}
	exchange(t, c3, s3)
	for _, e := range []*fabricEnd{c, s, c2, s2, c3, s3} {
		e.close()
	}
}

// TestAnswerLate has a connection that waits for the peer's answer to CONFIRM RKEY when that is found to be silent.
func TestAnswerLate(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	theirs, g := c.binding.group, s.binding.group
	c.close()
	s.close()
	theirs.links.fail(rnic.ErrDown)
	<-theirs.loop.stopped
	g.mu.Lock()
	clear(g.rmbs.free) // so that the next connection needs another one
	g.mu.Unlock()
	wait := meanwhile(func() {
		poll(t, "the next connection waits", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.rmbs.asked) > 0
		})
		g.peer.setAnswer(core.AnswerNone, core.AnswerLate)
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.rmbs.asked) > 0 {
			t.Error("the connection waits on")
		}
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
