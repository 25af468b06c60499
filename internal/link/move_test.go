package link

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire/cdc"
)

// twins are two groups with several links between them, each over devices of its own.
type twins struct {
	t     testing.TB
	sides sides // with the first link
	links [2][]*Link
	cut   []atomic.Bool // a link's packets vanish

	mu    sync.Mutex
	pairs [][2]*end
	left  chan *Link // by connections, see Leave
	done  chan struct{}
	all   sync.WaitGroup
}

// newTwins makes two groups with n links, whose owners move connections when a link fails: each side by itself, when it hears of it.
func newTwins(t testing.TB, n int) *twins {
	t.Helper()
	w := &twins{t: t, cut: make([]atomic.Bool, n), left: make(chan *Link, 8), done: make(chan struct{})}
	for i := range n {
		cfg := &rdma.Config{Drop: func([]byte) bool { return w.cut[i].Load() || rand.IntN(500) == 0 }}
		a, b := openDevice(t, randomLoopback(), cfg), openDevice(t, randomLoopback(), cfg)
		if i == 0 {
			w.sides = joinSides(t, a, b)
			w.links = [2][]*Link{{w.sides[0].link}, {w.sides[1].link}}
			continue
		}
		w.addLink(a, b)
	}
	for i := range w.sides {
		w.all.Go(func() { w.own(i) })
	}
	t.Cleanup(func() { close(w.done); w.all.Wait() })
	return w
}

func (w *twins) addLink(devs ...verbs.Device) {
	w.t.Helper()
	var pair [2]*side
	for k, dev := range devs {
		l, err := w.sides[k].group.NewLink(dev)
		if err != nil {
			w.t.Fatal(err)
		}
		pair[k] = &side{dev: dev, link: l}
		w.links[k] = append(w.links[k], l)
	}
	for k := range pair {
		if err := pair[k].link.ReadyToReceive(pair[1-k].peer()); err != nil {
			w.t.Fatal(err)
		}
		if err := pair[k].link.ReadyToSend(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// own is the owner of a side's group.
func (w *twins) own(i int) {
	for {
		select {
		case <-w.sides[i].group.News():
		case <-w.done:
			return
		}
		for e, ok := w.sides[i].group.Poll(); ok; e, ok = w.sides[i].group.Poll() {
			switch e.Kind {
			case EventFailed:
				w.moveAll(i, e.Link)
			case EventLeft:
				w.left <- e.Link
			}
		}
	}
}

// moveAll moves the connections that a side has on a link to the side's first good one.
func (w *twins) moveAll(i int, failed *Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, pair := range w.pairs {
		c := pair[i].carrier
		for k, l := range w.links[i] {
			if l.Err() != nil {
				continue
			}
			if c.Link() == failed {
				if token, ok := pair[1-i].rmb.Token(w.links[1-i][k]); !ok {
					c.GiveUp()
				} else if err := c.Move(l, token); err != nil && l.Err() == nil {
					w.t.Errorf("move: %v", err)
				} else if err != nil {
					continue // it has failed just now, and its event will not find c there
				}
			}
			break
		}
	}
}

func (w *twins) connect(set settings) (a, b *end) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	a, b = w.sides.connect(w.t, set)
	w.pairs = append(w.pairs, [2]*end{a, b})
	return a, b
}

// TestMove moves bytes both ways through many connections, fails their link in the middle, as either side or both notice it, or as
// packets vanish, and compares every byte. Whatever the reason, each side moves on its own.
func TestMove(t *testing.T) {
	watchdog(t)
	rounds := 6
	if raceEnabled {
		rounds = 3
	}
	for round := range rounds {
		r := rand.New(rand.NewPCG(uint64(round), 9))
		w := newTwins(t, 3)
		set := []settings{{}, {code: sizes(0, 4), sendBuffer: 16 << 10}, {eyecatcher: [2]bool{true, true}}, {code: sizes(2, 2)}}[round%4]
		conns, size := 10, 400_000
		var all sync.WaitGroup
		for range conns {
			a, b := w.connect(set)
			all.Go(func() {
				exchange(t, a, b, size)
				finish(t, a, b)
			})
		}
		var ends []*end
		for _, p := range w.pairs {
			ends = append(ends, p[0], p[1])
		}
		for k := range 2 { // two of the three links, one after the other
			// In the middle of the transfer, wherever that is.
			goal := uint64(r.IntN(size * conns))
			eventually(t, "some of it", func() bool {
				var n uint64
				for _, e := range ends {
					_, sent := e.Totals()
					n += sent
				}
				return n/2 >= goal
			})
			switch r.IntN(4) {
			case 0:
				w.links[0][k].Fail(io.ErrClosedPipe)
			case 1:
				w.links[1][k].Fail(io.ErrClosedPipe)
			case 2:
				w.links[0][k].Fail(io.ErrClosedPipe)
				w.links[1][k].Fail(io.ErrClosedPipe)
			case 3: // as TEST LINK finds out
				w.cut[k].Store(true)
				w.links[r.IntN(2)][k].Fail(io.ErrClosedPipe)
			}
		}
		all.Wait()
		for i := range w.sides {
			w.sides[i].group.mu.Lock()
			if n := len(w.sides[i].group.attached); n > 0 {
				t.Errorf("round %d: %d connections still have a send ring", round, n)
			}
			w.sides[i].group.mu.Unlock()
			for k, l := range w.links[i] {
				if st := l.Stats(); st.Malformed > 0 || st.UnknownToken > uint64(conns) {
					t.Errorf("round %d, link %d: %+v", round, k, st)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

// TestMoveClosing has a connection closed, with data and Closed on their way, when the link fails: all of it arrives.
func TestMoveClosing(t *testing.T) {
	for _, size := range []int{40_000, 0} { // with none, it is Closed that is on its way
		testMoveClosing(t, size)
	}
}

func testMoveClosing(t *testing.T, size int) {
	watchdog(t)
	w := newTwins(t, 2)
	a, b := w.connect(settings{code: sizes(2, 2)})
	w.cut[0].Store(true)
	message := make([]byte, size)
	for i := range message {
		message[i] = byte(i * 7)
	}
	if _, err := a.Write(message); err != nil {
		t.Fatal(err)
	}
	a.Conn.Close()
	a.SendLast(cdc.Closed)
	a.carrier.Detach()
	select {
	case <-a.carrier.Sent():
		t.Fatal("sent over a link that is cut")
	default:
	}
	w.links[0][0].Fail(io.ErrClosedPipe)
	got, err := io.ReadAll(b)
	if err != nil || string(got) != string(message) {
		t.Errorf("read %d bytes, %v; want %d", len(got), err, len(message))
	}
	if b.PeerFlags()&cdc.Closed == 0 {
		eventually(t, "Closed", func() bool { return b.PeerFlags()&cdc.Closed != 0 })
	}
	<-a.carrier.Sent() // rule: TestMoveClosing
}

// TestMoveEndsOldLink has the receiver of the validation message give up the link that the
// connection has left: bytes that were sent there must not arrive later.
func TestMoveEndsOldLink(t *testing.T) {
	watchdog(t)
	w := newTwins(t, 2)
	a, b := w.connect(settings{})
	a.Write([]byte("x"))
	io.ReadFull(b, make([]byte, 1))
	w.links[0][0].Fail(io.ErrClosedPipe)
	<-w.links[1][0].Failed()
	if err := w.links[1][0].Err(); !errors.Is(err, ErrMoved) {
		t.Errorf("the other end failed for %v", err)
	}
	go b.Write([]byte("y"))
	if _, err := io.ReadFull(a, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// A teller is a connection whose peer is played: the peer's messages come over the link that a test
// likes.
type teller struct {
	*twins
	e *end
}

func newTeller(t *testing.T, links int) *teller {
	t.Helper()
	w := newTwins(t, links)
	return &teller{w, w.sides[0].prepare(t, 0, 0)}
}

// say sends a message over link number k, and waits until it has come.
func (w *teller) say(k int, m cdc.Message) {
	w.t.Helper()
	m.AlertToken = w.e.carrier.AlertToken()
	before := w.links[0][k].Heard()
	if err := w.links[1][k].SendLLC(m.Append(nil), 0); err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, "the message", func() bool { return w.links[0][k].Heard() > before })
	w.e.carrier.group.overtaken.wait(w.t)
}

// wait waits until nothing is put aside.
func (o *overtaken) wait(t testing.TB) {
	t.Helper()
	eventually(t, "a look at what was put aside", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return !o.runs
	})
}

// attach has the connection write over link number k.
func (w *teller) attach(k int) {
	w.t.Helper()
	other := w.sides[1].prepare(w.t, 0, 0)
	if err := w.e.carrier.Attach(w.links[0][k], other.asOn(w.t, w.links[1][k]), false); err != nil {
		w.t.Fatal(err)
	}
	w.e.open(0)
}

// checkLeft looks which links are given up as the peer has left them.
func (w *teller) checkLeft(when string, want ...bool) {
	w.t.Helper()
	for k, left := range want {
		if err := w.links[0][k].Err(); left != errors.Is(err, ErrMoved) || !left && err != nil {
			w.t.Fatalf("%s: link %d has failed for %v, want %t", when, k, err, left)
		}
	}
}

// TestMoveBeforeAttach is TestMoveEndsOldLink where all that came over the old link came before the
// connection was attached, messages over the new one included or not.
func TestMoveBeforeAttach(t *testing.T) {
	watchdog(t)
	for _, late := range []bool{false, true} {
		w := newTeller(t, 2)
		w.say(0, cdc.Message{Seq: 1, Producer: cdc.Cursor{Count: 5}})
		if !late {
			w.attach(1)
		}
		w.say(1, cdc.NewFailoverValidation(1, 0))
		w.say(1, cdc.Message{Seq: 2, Producer: cdc.Cursor{Count: 5}})
		w.checkLeft(fmt.Sprint("late ", late), true, false)
		if late {
			w.attach(1)
		}
		if n, err := w.e.Read(make([]byte, 10)); n != 5 || err != nil {
			t.Errorf("Read = %d, %v", n, err)
		}
	}
}

// TestMoveLateValidation has a peer that moves twice, as the first link that it has moved to fails too. The validation message that it sent
// there comes before, between or after those that follow, or never: the links that it has left are given up, and never the last one.
func TestMoveLateValidation(t *testing.T) {
	watchdog(t)
	validation, next := cdc.NewFailoverValidation(1, 0), cdc.Message{Seq: 2, Producer: cdc.Cursor{Count: 7}}
	type said struct {
		link int
		m    cdc.Message
	}
	first, last, data := said{1, validation}, said{2, validation}, said{2, next}
	for name, tt := range map[string]struct {
		said []said
		left bool // the link that was moved to first
	}{
		"never":   {[]said{last, data}, false},
		"before":  {[]said{first, last, data}, true},
		"twice":   {[]said{first, last, last, first, data}, true},
		"between": {[]said{last, first, data}, false}, // it may be the newer one
		"after":   {[]said{last, data, first}, false},
	} {
		w := newTeller(t, 4)
		w.attach(2)
		w.say(0, cdc.Message{Seq: 1, Producer: cdc.Cursor{Count: 5}})
		for _, x := range tt.said {
			w.checkLeft(name, false, false, false)
			w.say(x.link, x.m)
			if x == data {
				w.checkLeft(name, true, tt.left, false)
				break
			}
		}
		if name == "after" {
			w.say(first.link, first.m)
			w.checkLeft(name, true, false, false)
		}
		w.say(2, cdc.Message{Seq: 3, Producer: cdc.Cursor{Count: 8}})
		w.checkLeft(name, true, tt.left, false)
		if n, err := w.e.Read(make([]byte, 10)); n != 8 || err != nil {
			t.Errorf("%s: Read = %d, %v", name, n, err)
		}
		w.say(3, cdc.NewFailoverValidation(3, 0))
		w.say(3, cdc.Message{Seq: 4, Producer: cdc.Cursor{Count: 9}})
		w.checkLeft(name+", moved again", true, tt.left || name == "after" || name == "between", true, false)
	}
}

// TestMoveStale has an old message come over a link that the peer has left before it could be heard there: it is the link of the newest
// message that is given up when the peer moves, attached or not yet.
func TestMoveStale(t *testing.T) {
	watchdog(t)
	for _, attached := range []bool{false, true} {
		w := newTeller(t, 3)
		if attached {
			w.attach(2)
		}
		w.say(0, cdc.Message{Seq: 5, Producer: cdc.Cursor{Count: 5}})
		w.say(1, cdc.Message{Seq: 2, Producer: cdc.Cursor{Count: 5}})
		w.say(2, cdc.NewFailoverValidation(5, 0))
		w.say(2, cdc.Message{Seq: 6, Producer: cdc.Cursor{Count: 6}})
		w.checkLeft(fmt.Sprint("attached ", attached), true, false, false)
	}
}

// TestMoveLost has validation messages of peers whose messages have arrived, and of one whose
// messages have not: that connection ends, and no other.
func TestMoveLost(t *testing.T) {
	watchdog(t)
	for seq, lost := range map[uint16]bool{0: false, 9: false, 10: false, 11: true, 2000: true, 65535: false} {
		l, _ := newLiar(t, settings{})
		l.say(t, cdc.Message{Seq: 10, Producer: cdc.Cursor{Count: 5}})
		io.ReadFull(l.Conn, make([]byte, 4)) // which has seen it
		l.say(t, cdc.NewFailoverValidation(seq, l.carrier.AlertToken()))
		l.say(t, cdc.Message{Seq: 12, Producer: cdc.Cursor{Count: 3}}) // said again, with less
		k, _ := l.Conn.Read(make([]byte, 10))                          // looks at it
		l.say(t, cdc.Message{Seq: 13, Producer: cdc.Cursor{Count: 6}})
		n, err := io.ReadFull(l.Conn, make([]byte, 1))
		if n += k; lost != (err != nil) || !lost && n != 2 {
			t.Errorf("validation of %d: read %d bytes, %v", seq, n, err)
		}
		if l.side.link.Err() != nil {
			t.Errorf("validation of %d: the link failed for %v", seq, l.side.link.Err())
		}
	}
	// Without one, a cursor that goes back is a lie.
	l, _ := newLiar(t, settings{})
	l.say(t, cdc.Message{Seq: 10, Producer: cdc.Cursor{Count: 5}})
	io.ReadFull(l.Conn, make([]byte, 5)) // which has seen it
	l.say(t, cdc.Message{Seq: 12, Producer: cdc.Cursor{Count: 3}})
	if n, err := io.ReadFull(l.Conn, make([]byte, 6)); err == nil {
		t.Errorf("read %d bytes up to a cursor that went back", n)
	}
	// As it is over another link, which Linux net/smc moves connections that are closing to without a word.
	w := newTeller(t, 2)
	w.attach(0)
	w.say(0, cdc.Message{Seq: 10, Producer: cdc.Cursor{Count: 5}})
	io.ReadFull(w.e, make([]byte, 5))
	w.say(1, cdc.Message{Seq: 11, Producer: cdc.Cursor{Count: 3}})
	w.say(1, cdc.Message{Seq: 12, Producer: cdc.Cursor{Count: 6}})
	if n, err := w.e.Read(make([]byte, 6)); n != 1 || err != nil {
		t.Errorf("read %d bytes, %v from a peer that has moved without a word", n, err)
	}
	w.checkLeft("moved without a word", false, false)
	// A cursor that is nowhere is a lie, whatever was validated.
	l, _ = newLiar(t, settings{})
	l.say(t, cdc.Message{Seq: 1, Producer: cdc.Cursor{Count: 5}})
	l.say(t, cdc.NewFailoverValidation(1, l.carrier.AlertToken()))
	l.say(t, cdc.Message{Seq: 2, Producer: cdc.Cursor{Count: 1 << 30}})
	if n, err := io.ReadFull(l.Conn, make([]byte, 6)); err == nil {
		t.Errorf("read %d bytes up to a cursor that is nowhere", n)
	}
}

// TestMoveGivenUp has a group lose all links: nothing is left that waits for another one.
func TestMoveGivenUp(t *testing.T) {
	watchdog(t)
	w := newTwins(t, 2)
	a, _ := w.connect(settings{})
	w.cut[0].Store(true)
	w.cut[1].Store(true)
	a.Write(make([]byte, 1000))
	a.Conn.Close()
	a.SendLast(cdc.Closed)
	a.carrier.Detach()
	w.links[0][0].Fail(io.ErrClosedPipe)
	w.links[0][1].Fail(io.ErrClosedPipe)
	<-a.carrier.Sent()
	a.awaitDrained(t)
}

// TestMoveGood moves connections to and fro between links that are good, in the middle of a transfer: nothing is said twice, and no
// link ends.
func TestMoveGood(t *testing.T) {
	watchdog(t)
	w := newTwins(t, 2)
	a, b := w.connect(settings{code: sizes(2, 2)})
	var all sync.WaitGroup
	all.Go(func() { exchange(t, a, b, 8<<20) })
	for i := range 200 {
		for k, e := range []*end{a, b} {
			to := (i + k) % 2
			token, _ := w.pairs[0][1-k].rmb.Token(w.links[1-k][to])
			if err := e.carrier.Move(w.links[k][to], token); err != nil {
				t.Fatal(err)
			}
			_, sent := e.Totals()
			eventually(t, "a while", func() bool { _, now := e.Totals(); return now > sent || now == 8<<20 })
		}
	}
	all.Wait()
	finish(t, a, b)
	for i := range w.sides {
		for k, l := range w.links[i] {
			if st := l.Stats(); l.Err() != nil || st.SentBytes == 0 {
				t.Errorf("link %d of side %d: %v, %+v", k, i, l.Err(), st)
			}
		}
	}
	if n := w.links[0][0].Stats().SentBytes + w.links[0][1].Stats().SentBytes; n != 8<<20 {
		t.Errorf("%d bytes were written, of %d", n, 8<<20)
	}
}

// TestMoveEarly has a connection move between links while its data path is being made. It is for the race detector.
func TestMoveEarly(t *testing.T) {
	watchdog(t)
	w := newTwins(t, 2)
	a, b := w.connect(settings{})
	var both sync.WaitGroup
	both.Go(func() {
		for i := range 100 {
			token, _ := w.pairs[0][1].rmb.Token(w.links[1][i%2])
			if err := a.carrier.Move(w.links[0][i%2], token); err != nil {
				t.Error(err)
			}
		}
	})
	both.Go(func() {
		for range 100 {
			if cfg := a.carrier.Stream(); cfg.Doorbell == nil {
				t.Error("an attached connection has no doorbell")
			}
		}
	})
	both.Wait()
	exchange(t, a, b, 1<<10)
	finish(t, a, b)
}

// TestMoveNotReady has moves that cannot be.
func TestMoveNotReady(t *testing.T) {
	w := newTwins(t, 2)
	a, _ := w.connect(settings{})
	w.links[0][1].Fail(io.ErrClosedPipe)
	if err := a.carrier.Move(w.links[0][1], RMBToken{}); !errors.Is(err, ErrNotReady) {
		t.Errorf("to a link that has failed: %v", err)
	}
	l, err := w.sides[0].group.NewLink(w.sides[0].dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.carrier.Move(l, RMBToken{}); !errors.Is(err, ErrNotReady) {
		t.Errorf("to one that is not connected: %v", err)
	}
	if err := a.carrier.Move(w.links[0][0], RMBToken{}); err != nil || a.carrier.Link() != w.links[0][0] {
		t.Errorf("to its own: %v", err)
	}
}

// TestTokenOfFreed asks for the token of an RMB that is freed meanwhile, as by an owner that hears
// of a failure.
func TestTokenOfFreed(t *testing.T) {
	s := newSides(t, nil)
	a, _ := s.connect(t, settings{})
	a.carrier.Release()
	var all sync.WaitGroup
	asking, freed := make(chan struct{}), make(chan struct{})
	all.Go(func() {
		a.rmb.Token(a.side.link)
		close(asking)
		for {
			_, ok := a.rmb.Token(a.side.link)
			select {
			case <-freed:
				return
			default:
				if !ok {
					return
				}
			}
		}
	})
	<-asking
	a.rmb.Free()
	close(freed)
	all.Wait()
	if token, ok := a.rmb.Token(a.side.link); ok {
		t.Errorf("an RMB that is freed has token %v", token)
	}
}
