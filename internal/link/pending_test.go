package link

import (
	"testing"

	"github.com/gosmc/smc/internal/verbs"
)

// An answeringQP counts how often it is told to answer first. It can do nothing else.
type answeringQP struct {
	verbs.QP
	answers int
}

func (q *answeringQP) AnswerFirst() { q.answers++ }

// TestJoinAnswersFirst has the links of a group acknowledge messages before anything else when
// there are several, also those that were there before; the only link has no reason to.
func TestJoinAnswersFirst(t *testing.T) {
	g := NewGroup()
	var qps []*answeringQP
	for n := range 3 {
		q := &answeringQP{}
		qps = append(qps, q)
		if err := (&Link{group: g, failed: make(chan struct{}), qp: q}).join(); err != nil {
			t.Fatal(err)
		}
		for i, q := range qps {
			if (q.answers > 0) != (n > 0) {
				t.Errorf("%d links: link %d was told %d times", n+1, i, q.answers)
			}
		}
	}
}

// TestDetachDropsMove ends a connection without a word of its end, to which nobody listens any more, while it waits to move to another link: it stays where it is, and
// says nothing there.
func TestDetachDropsMove(t *testing.T) {
	watchdog(t)
	w := newTwins(t, 2)
	e, other := w.connect(settings{})
	c := e.carrier
	c.mu.Lock()
	for c.posting {
		c.mu.Unlock()
		c.mu.Lock()
	}
	c.posting = true // somebody is, and the move waits for that
	c.mu.Unlock()
	token, _ := other.rmb.Token(w.links[1][1])
	if err := c.Move(w.links[0][1], RMBToken{RKey: token.RKey, Addr: token.Addr}); err != nil {
		t.Fatal(err)
	}
	if c.Link() != w.links[0][1] {
		t.Fatal("the move does not wait")
	}
	e.Conn.Detach()
	c.Detach()
	c.mu.Lock()
	c.posting = false
	c.settle()
	c.drained()
	moved, gen, ring := c.link == w.links[0][1] || c.move != nil, c.gen.Load(), c.ring
	c.mu.Unlock()
	if moved || gen != 0 || ring != nil {
		t.Errorf("it has moved: %t, %d times; its ring is given back: %t", moved, gen, ring == nil)
	}
	other.Conn.Detach()
	other.carrier.Detach()
}
