package link

import (
	"io"
	"sync"
	"testing"

	"github.com/gosmc/smc/wire/cdc"
)

// leave has all connections of a side go from one link to another, and returns when they have.
func (w *twins) leave(side int, from, to *Link, peer *Link) {
	w.t.Helper()
	for _, p := range w.pairs {
		token, _ := p[1-side].rmb.Token(peer)
		if err := p[side].carrier.Move(to, token); err != nil {
			w.t.Error(err)
		}
	}
	from.Leave()
	w.awaitLeft(from)
}

// awaitLeft waits for the event of one link.
func (w *twins) awaitLeft(l *Link) {
	w.t.Helper()
	if got := <-w.left; got != l {
		w.t.Errorf("another link was left")
	}
}

// TestLeave takes links away in the middle of a transfer, one side after the other, as soon as connections have left them: nothing is said twice.
func TestLeave(t *testing.T) {
	watchdog(t)
	const links, size = 4, 4 << 20
	w := newTwins(t, links)
	for range 3 {
		w.connect(settings{code: sizes(2, 2)})
	}
	w.connect(settings{}) // has nothing to say
	var all sync.WaitGroup
	for _, p := range w.pairs[:3] {
		all.Go(func() { exchange(t, p[0], p[1], size) })
	}
	for i := range links - 1 {
		for side := range 2 {
			w.leave(side, w.links[side][i], w.links[side][i+1], w.links[1-side][i+1])
		}
		for _, side := range []int{1, 0} {
			w.links[side][i].Close()
		}
		e := w.pairs[0][i%2]
		_, sent := e.Totals()
		eventually(t, "a while", func() bool { _, now := e.Totals(); return now > sent || now == size })
	}
	all.Wait()
	for _, p := range w.pairs {
		finish(t, p[0], p[1])
	}
	for side := range 2 {
		n := uint64(0)
		for _, l := range w.links[side] {
			n += l.Stats().SentBytes
		}
		if n != 3*size {
			t.Errorf("side %d has written %d bytes, of %d", side, n, 3*size)
		}
		if err := w.links[side][links-1].Err(); err != nil {
			t.Errorf("the last link: %v", err)
		}
	}
}

// TestLeaveUsers has a link left that nobody uses, one whose connections end or fail over, and one twice.
func TestLeaveUsers(t *testing.T) {
	watchdog(t)
	w := newTwins(t, 2)
	mine := w.links[0]
	mine[1].Leave()
	w.awaitLeft(mine[1])
	mine[1].Leave()
	w.awaitLeft(mine[1])

	a, b := w.connect(settings{})
	c, d := w.connect(settings{})
	mine[0].Leave()
	a.Conn.Close()
	a.SendLast(cdc.Closed)
	a.carrier.Detach()
	<-a.carrier.Sent()
	select {
	case <-w.left:
		t.Error("left by one of two")
	default:
	}
	mine[0].Fail(io.ErrClosedPipe) // the other one moves
	w.awaitLeft(mine[0])
	b.Conn.Close()
	finish(t, c, d)
}
