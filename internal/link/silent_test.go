package link

import (
	"io"
	"slices"
	"testing"

	"github.com/gosmc/smc/wire/cdc"
)

// A pair of ends that have moved to their second link, one of which a test looks at when it likes.
type silent struct {
	*twins
	t    *testing.T
	a, b *end
}

func newSilent(t *testing.T) *silent {
	t.Helper()
	watchdog(t)
	w := newTwins(t, 2)
	for _, s := range w.sides {
		s.group.slow.every, s.group.quick.every = 0, 0
	}
	x := &silent{twins: w, t: t}
	x.a, x.b = w.connect(settings{})
	x.say()
	w.links[0][0].Fail(io.ErrClosedPipe)
	w.links[1][0].Fail(io.ErrClosedPipe)
	for i, e := range []*end{x.a, x.b} {
		eventually(t, "the move, and what follows", func() bool { return e.carrier.Link() == w.links[i][1] && e.isIdle() })
	}
	x.rest()
	return x
}

// isIdle reports whether a connection has nothing to send, and nobody sends for it.
func (e *end) isIdle() bool {
	c := e.carrier
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out == 0 && c.move == nil && !c.posting && !c.queued && !c.due()
}

// rest makes all events until now no news.
func (x *silent) rest() {
	g := x.a.side.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if x.a.carrier.silence == nil {
		x.t.Fatal("nobody looks at a connection that has moved")
	}
	x.a.carrier.silence.see()
}

// say has b write a byte, and a read it.
func (x *silent) say() {
	x.t.Helper()
	x.b.Write([]byte("x"))
	if _, err := io.ReadFull(x.a, make([]byte, 1)); err != nil {
		x.t.Fatal(err)
	}
}

// look has a looked at, and reports whether its peer is asked.
func (x *silent) look() bool { return x.lookWith(&x.a.side.group.slow) }

// lookQuick is look, of a connection whose peer holds back.
func (x *silent) lookQuick() bool { return x.lookWith(&x.a.side.group.quick) }

func (x *silent) lookWith(w *lookers) bool {
	x.t.Helper()
	l := x.links[0][1]
	before := l.Stats().SentCDC
	x.a.side.group.askSilent(w)
	n := l.Stats().SentCDC - before
	eventually(x.t, "its arrival", x.a.isIdle)
	if n > 1 {
		x.t.Fatalf("%d messages", n)
	}
	return n == 1
}

// watched is how many connections are looked at, with each pace.
func (x *silent) watched() [2]int {
	g := x.a.side.group
	g.mu.Lock()
	defer g.mu.Unlock()
	return [2]int{len(g.slow.list), len(g.quick.list)}
}

var nobody [2]int

// TestSilent has a peer say nothing after a move: it is asked for a message, with the flag to which Linux answers in any case, less and less
// often, and for ever.
func TestSilent(t *testing.T) {
	x := newSilent(t)
	var asked []int
	for i := 1; i < 200; i++ {
		if x.look() {
			asked = append(asked, i)
			eventually(t, "it asks", func() bool { return x.b.PeerHeader().ProducerFlags&cdc.CursorUpdateRequested != 0 })
		}
	}
	if want := []int{1, 5, 25, 60, 120, 180}; !slices.Equal(asked, want) {
		t.Errorf("asked at looks %v, want %v", asked, want)
	}
	if n := x.watched(); n != [2]int{1, 0} {
		t.Errorf("%d connections are looked at", n)
	}
}

// TestSilentHeldBack has a peer say something whenever it is asked, and never else: it is asked as long as it does, and soon.
func TestSilentHeldBack(t *testing.T) {
	x := newSilent(t)
	if !x.look() {
		t.Error("not asked")
	}
	x.say()
	x.look()
	if n := x.watched(); n != [2]int{0, 1} {
		t.Fatalf("%d connections are looked at", n)
	}
	for i := range 3 * maxVain {
		for n := range 6 {
			if ask := x.lookQuick(); ask != (n == 0 || n == 5) {
				t.Fatalf("asked %t at look %d, after %d times", ask, n, i)
			}
		}
		x.say()
		if x.lookQuick() {
			t.Fatal("asked after there was news")
		}
	}
}

// TestSilentQuickEnds has a peer that held back once say nothing any more: the looks become slow again.
func TestSilentQuickEnds(t *testing.T) {
	x := newSilent(t)
	x.look()
	x.say()
	x.look()
	var asked []int
	for i := 1; x.watched() == [2]int{0, 1}; i++ {
		if x.lookQuick() {
			asked = append(asked, i)
		}
	}
	for i := 2; i < 100; i++ {
		if x.look() {
			asked = append(asked, 1000*i)
		}
	}
	if want := []int{1, 6, 31, 5000, 25_000, 60_000}; !slices.Equal(asked, want) || x.watched() != [2]int{1, 0} {
		t.Errorf("asked at looks %d, want %d; %d connections are looked at", asked, want, x.watched())
	}
}

// TestSilentInVain has a peer that held back once only read from then on: the looks become slow again.
func TestSilentInVain(t *testing.T) {
	x := newSilent(t)
	x.look()
	x.say()
	x.look()
	asked := 0
	for range 3 * maxVain {
		x.a.Write([]byte("x"))
		if _, err := io.ReadFull(x.b, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its arrival", x.a.isIdle)
		for range 2 {
			if x.lookQuick() {
				asked++
			}
		}
	}
	if n := x.watched(); asked != maxVain || n != [2]int{1, 0} {
		t.Errorf("asked %d times, want %d; %d connections are looked at", asked, maxVain, n)
	}
}

// TestSilentLate has a peer hold back each message, and answer so late that its bytes do not count as the answer, as on a slow machine: it is
// asked for each of them, however many they are, and also after a long silence of both programs.
func TestSilentLate(t *testing.T) {
	x := newSilent(t)
	for i := range 3 * maxVain {
		if !x.look() {
			t.Fatalf("not asked for message %d", i)
		}
		for range slowPace.window + 1 {
			x.look()
		}
		x.say()
		if x.look() {
			t.Fatalf("asked after message %d", i)
		}
	}
	for range 100 {
		x.look()
	}
	x.say()
	x.look()
	if n := x.watched(); !x.look() || n != [2]int{1, 0} {
		t.Errorf("not asked after a long silence; %d connections are looked at", n)
	}
}

// TestSilentEnds has connections end while they are looked at, in each way.
func TestSilentEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(x *silent)
	}{
		{"the peer's direction", func(x *silent) {
			x.b.CloseWrite()
			x.b.SendFlags(cdc.DoneWriting)
			eventually(t, "the end", func() bool { return x.a.PeerFlags()&cdc.DoneWriting != 0 })
		}},
		{"the connection", func(x *silent) { x.a.close(cdc.Closed); x.a.awaitDrained(t) }},
		{"its use", func(x *silent) { x.a.Conn.Close(); x.a.carrier.Detach() }},
		{"its memory", func(x *silent) { x.a.carrier.Release() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newSilent(t)
			tt.do(x)
			if x.look() {
				t.Error("asked")
			}
			if x.look(); x.watched() != nobody {
				t.Error("looked at for ever")
			}
		})
	}
	x := newSilent(t)
	x.a.side.group.Close()
	if x.watched() != nobody {
		t.Error("looked at, where the group is closed")
	}
}

// TestSilentPeerMoved has the peer alone move a connection after a failure, as its validation message says.
func TestSilentPeerMoved(t *testing.T) {
	watchdog(t)
	u := newUnsaid(t, false)
	g := u.sides[0].group
	watched := func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return u.e.carrier.silence != nil
	}
	if watched() {
		t.Error("looked at before it has moved")
	}
	u.say(1, 1, 0, cdc.FailoverValidation)
	eventually(t, "looks", watched)
}

// TestSilentMoved has a connection move after a failure, and from a good link, over which nothing was lost.
func TestSilentMoved(t *testing.T) {
	devs, pds := newSimDevices(t)
	for _, failed := range []bool{false, true} {
		w := newWorld(t, devs, pds, 1)
		x := w.conns[0].ends[0]
		x.size = 10_000
		for x.carrier.posted == 0 {
			w.write(0, x)
		}
		for from := w.links[0].qps[0]; from.deliver() || from.complete(); {
		}
		if failed {
			w.fail(0, w.links[0], "device down")
		}
		w.move(0, w.conns[0], w.links[1])
		if x.carrier.link != w.links[1].ends[0] || (x.carrier.silence != nil) != failed {
			t.Errorf("failed %t: moved %t, looked at %t", failed, x.carrier.link == w.links[1].ends[0], x.carrier.silence != nil)
		}
		w.close()
	}
}

// TestSilentTimer has nobody call the function that looks at connections that have moved.
func TestSilentTimer(t *testing.T) {
	watchdog(t)
	w := newTwins(t, 2)
	a, b := w.connect(settings{})
	a.Write([]byte("x"))
	io.ReadFull(b, make([]byte, 1))
	w.links[0][0].Fail(io.ErrClosedPipe)
	eventually(t, "it asks", func() bool { return b.PeerHeader().ProducerFlags&cdc.CursorUpdateRequested != 0 })
}
