package link

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

var (
	simSeeds = flag.Uint64("seeds", 2000, "how many seeds the simulation plays")
	simSeed  = flag.Uint64("seed", 0, "the only seed to play, if not 0, with its story")
)

// A world is two groups with links between them, whose queue pairs are simulated: reliable and in order each, at any pace beside the
// others, and lost in all the ways that there are. Carriers, links and streams are the real ones. One goroutine does it all, and the
// order of things is all the time there is: a timeout is early or late as the seed says, and both sides' clocks are their own.
type world struct {
	rng   *rand.Rand
	quiet bool // no more faults
	ended bool // a side has lost all its links, or was started again: connections may end before their time
	sides [2]*simSide
	links []*simLink
	conns []*simConn
	total map[string]int
	tell  func(string) // nil: nobody listens
	soon  []func()     // goroutines that have not run
	turns uint64       // messages that have arrived
}

type simSide struct {
	group *Group
	dev   verbs.Device
	pd    verbs.PD
}

// A simLink is a link, with the knowledge of the owners on both sides.
type simLink struct {
	name   int
	ends   [2]*Link
	qps    [2]*simQP
	up     [2]bool // its owner lets connections use it
	lost   [2]bool // its owner has moved them away
	cut    bool    // packets vanish
	slow   bool    // they take a long time
	closed bool
	end    simEndOfLink
}

// A simFailure ends a schedule.
type simFailure string

func (w *world) failf(format string, args ...any) { panic(simFailure(fmt.Sprintf(format, args...))) }

func (w *world) say(format string, args ...any) {
	if w.tell != nil {
		w.tell(fmt.Sprintf(format, args...))
	}
}

func (w *world) fail(side int, l *simLink, why string) {
	if l.ends[side].Err() == nil {
		w.say("%d:%d fails: %s", side, l.name, why)
	}
	l.ends[side].Fail(errors.New(why))
}

// newWorld makes two groups with a link and connections.
func newWorld(t testing.TB, devs [2]verbs.Device, pds [2]verbs.PD, seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 3)), total: map[string]int{}}
	for i := range w.sides {
		w.sides[i] = &simSide{group: NewGroup(), dev: devs[i], pd: pds[i]}
		w.sides[i].group.slow.every, w.sides[i].group.quick.every = 0, 0
		w.sides[i].group.overtaken.run = func(f func()) { w.soon = append(w.soon, f) }
	}
	w.addLink(t)
	w.links[0].up = [2]bool{true, true}
	for range 1 + w.rng.IntN(3) {
		w.connect(t)
	}
	w.addLink(t)
	return w
}

// areas are used again: nobody touches the areas of closed links.
var areas [][]byte

func (w *world) addLink(t testing.TB) {
	sl := &simLink{name: len(w.links)}
	for i, s := range w.sides {
		if len(areas) == 0 {
			areas = append(areas, make([]byte, areaLen))
		}
		l := &Link{group: s.group, dev: s.dev, pd: s.pd, failed: make(chan struct{}), area: areas[len(areas)-1], ready: true}
		areas = areas[:len(areas)-1]
		q := &simQP{w: w, link: sl, side: i}
		l.qp = q
		for k := range cdcSends {
			l.free = append(l.free, uint8(k))
		}
		var err error
		if l.mr, err = s.pd.RegisterMR(l.area, verbs.LocalWrite); err == nil {
			l.at = l.mr.Addr()
			err = l.join()
		}
		if err != nil {
			t.Fatal(err)
		}
		sl.ends[i], sl.qps[i] = l, q
	}
	w.links = append(w.links, sl)
	w.total["links"]++
}

func (w *world) connect(t testing.TB) {
	sc := &simConn{}
	codes := [2]wire.SizeCode{wire.SizeCode(w.rng.IntN(2)), wire.SizeCode(w.rng.IntN(2))}
	buffer, most, chunk := 16<<10, 80_000, 14
	if w.rng.IntN(30) == 0 { // more than one message takes
		codes, buffer, most, chunk = sizes(4, 4), 256<<10, 800_000, 18
	}
	eyes := [2]bool{w.rng.IntN(4) == 0, w.rng.IntN(4) == 0}
	for i, s := range w.sides {
		sc.ends[i] = &simEnd{name: len(w.conns)*2 + i, size: w.rng.IntN(most), chunk: chunk}
		sc.ends[i].end = (&side{dev: s.dev, group: s.group, link: w.links[0].ends[i]}).prepare(t, codes[i], buffer)
	}
	for i, e := range sc.ends {
		if err := e.carrier.Attach(w.links[0].ends[i], sc.ends[1-i].as(t, eyes[1-i]), eyes[i]); err != nil {
			t.Fatal(err)
		}
		e.open(0)
	}
	w.conns = append(w.conns, sc)
}

// owner takes one event of a side.
func (w *world) owner(side int) bool {
	e, ok := w.sides[side].group.Poll()
	if !ok {
		return false
	}
	if e.Kind == EventLeft {
		w.haveLeft(side, e.Link)
		return true
	}
	if e.Kind != EventFailed {
		w.failf("event %v", e.Kind)
	}
	for _, l := range w.links {
		l.lost[side] = l.lost[side] || l.ends[side] == e.Link
	}
	for _, sc := range w.conns {
		if x := sc.ends[side]; x.carrier.Link() == e.Link {
			w.moveAway(side, sc)
		}
	}
	return true
}

// good returns a link that a side can use, as far as it knows.
func (w *world) good(side int) *simLink {
	var list, last []*simLink
	for _, l := range w.links {
		switch {
		case !l.up[side] || l.ends[side].Err() != nil || l.end.down[side]:
		case l.end.leaving[side]:
			last = append(last, l)
		default:
			list = append(list, l)
		}
	}
	if len(list) == 0 {
		list = last
	}
	if len(list) == 0 {
		return nil
	}
	return list[w.rng.IntN(len(list))]
}

func (w *world) moveAway(side int, sc *simConn) {
	x := sc.ends[side]
	l := w.good(side)
	if l == nil {
		w.say("%d: connection %d has no link", side, x.name)
		w.ended = true
		x.carrier.GiveUp()
		if !x.gone {
			x.failed = true
			x.Fail(errors.New("no link is left"))
		}
		return
	}
	w.move(side, sc, l)
}

func (w *world) move(side int, sc *simConn, l *simLink) {
	x := sc.ends[side]
	token, ok := sc.ends[1-side].rmb.Token(l.ends[1-side])
	if !ok {
		w.failf("no token on link %d", l.name)
	}
	w.say("%d: connection %d moves to %d", side, x.name, l.name)
	w.total["moves"]++
	if err := x.carrier.Move(l.ends[side], token); err != nil {
		w.failf("move: %v", err)
	}
}

// learn has a side hear from the other one that a link is lost.
func (w *world) learn(side int, l *simLink) bool {
	if l.ends[side].Err() != nil || l.ends[1-side].Err() == nil || l.end.shut[1-side] {
		return false
	}
	w.fail(side, l, "the peer says so")
	return true
}

// closeLink gives a link back that both sides have done with.
func (w *world) closeLink(l *simLink) bool {
	if l.closed || !l.lost[0] || !l.lost[1] {
		return false
	}
	for _, sc := range w.conns {
		for i, x := range sc.ends {
			x.carrier.mu.Lock()
			uses := x.carrier.ring != nil && x.carrier.link == l.ends[i]
			x.carrier.mu.Unlock()
			if uses {
				return false
			}
		}
	}
	w.say("link %d is closed", l.name)
	l.closed = true
	for _, e := range l.ends {
		e.Close()
	}
	return true
}

// alive is how many links work, whatever the owners know.
func (w *world) alive() (n int) {
	for _, l := range w.links {
		if !l.cut && l.ends[0].Err() == nil && l.ends[1].Err() == nil && l.up[0] && l.up[1] && !l.end.leaving[0] {
			n++
		}
	}
	return n
}

// step does one thing, as the seed says.
func (w *world) step(t testing.TB) {
	l := w.links[w.rng.IntN(len(w.links))]
	side := w.rng.IntN(2)
	q := l.qps[side]
	sc := w.conns[w.rng.IntN(len(w.conns))]
	switch k := w.rng.IntN(100); {
	case k < 25:
		for range 1 + w.rng.IntN(3) {
			if !l.slow || w.rng.IntN(40) == 0 {
				q.deliver()
			}
		}
	case k < 27:
		q.handle()
	case k < 30:
		w.later()
	case k < 40:
		q.complete()
	case k < 58:
		w.write(side, sc.ends[side])
	case k < 76:
		w.read(side, sc)
	case k < 80:
		q.expire()
	case k < 84:
		w.owner(side)
	case k < 86:
		w.learn(side, l)
	case k < 88:
		w.closeLink(l)
	case k < 90:
		w.finish(sc.ends[side])
	case k < 91:
		l.up[side] = true
	case k < 92:
		w.endAnother(l)
	case k < 94 && !w.ended: // the load is spread
		if to := w.good(side); to != nil && to.ends[1-side].Err() == nil {
			w.move(side, sc, to)
		}
	case k < 95 && w.alive() < 3 && len(w.links) < 12 && !w.ended:
		w.addLink(t)
	case k < 98: // a fault
		if w.alive() > 1 || w.rng.IntN(400) == 0 {
			w.fault(side, l)
		}
	case k < 99:
		l.cut, l.slow = false, false // it flaps
	case w.rng.IntN(10) == 0:
		g := w.sides[side].group
		g.askSilent(&g.slow)
		g.askSilent(&g.quick)
	case w.rng.IntN(1000) == 0:
		w.say("%d is started again", side)
		w.total["restarts"]++
		w.ended = true
		for _, x := range w.links {
			w.fail(side, x, "restart")
		}
	}
}

func (w *world) fault(side int, l *simLink) {
	w.total["faults"]++
	switch w.rng.IntN(4) {
	case 0:
		w.say("%d is silent", l.name)
		l.cut = true
	case 3:
		w.say("%d is slow", l.name)
		l.slow = true
	case 1:
		w.fail(side, l, "the device is down")
	case 2:
		w.fail(0, l, "the device is down")
		w.fail(1, l, "the device is down")
	}
}

// later has goroutines run that were begun.
func (w *world) later() {
	for len(w.soon) > 0 {
		f := w.soon[0]
		w.soon = w.soon[1:]
		w.total["overtaken"]++
		f()
	}
}

// settle has all happen that is under way, without further faults.
func (w *world) settle() {
	w.quiet = true
	for n := 0; ; n++ {
		if n > 20_000 {
			w.failf("there is no end of it")
		}
		busy := false
		for _, l := range w.links {
			for i, q := range l.qps {
				l.up[i] = true
				for q.deliver() {
					busy = true
				}
				q.handle()
				w.later()
				for q.complete() {
					busy = true
				}
				busy = q.expire() || busy
				busy = w.learn(i, l) || busy
			}
			busy = w.closeLink(l) || busy
			busy = l.end.leaving[0] && w.endInOrder(l) || busy
		}
		for i := range w.sides {
			for w.owner(i) {
				busy = true
			}
		}
		for _, sc := range w.conns {
			for i, x := range sc.ends {
				busy = w.write(i, x) || busy
				busy = w.read(i, sc) || busy
				busy = w.finish(x) || busy
			}
		}
		if !busy {
			return
		}
	}
}

// check looks at the final state when it is quiet.
func (w *world) check() {
	for _, sc := range w.conns {
		for i, x := range sc.ends {
			from := sc.ends[1-i]
			if w.ended {
				w.total["ended"]++
				continue
			}
			w.total["connections"]++
			if x.failed || !x.gone || !x.eof || x.read != from.size || from.wrote != from.size {
				w.failf("connection %d: failed %t, closed %t, end %t, %d of %d bytes", x.name, x.failed, x.gone, x.eof, x.read, from.size)
			}
			if f := x.PeerFlags(); f&cdc.Closed == 0 || f&cdc.Abort != 0 {
				w.failf("connection %d: the peer's flags are %v", x.name, f)
			}
			select {
			case <-x.carrier.Sent():
			default:
				w.failf("connection %d: still on its way, link %v", x.name, x.carrier.Link().Err())
			}
		}
	}
	w.checkLeft()
	for _, l := range w.links { // both know the same
		if (l.ends[0].Err() == nil) != (l.ends[1].Err() == nil) {
			w.failf("link %d: %v and %v", l.name, l.ends[0].Err(), l.ends[1].Err())
		}
	}
}

// close gives all back.
func (w *world) close() {
	for _, sc := range w.conns {
		for _, x := range sc.ends {
			if !x.gone {
				x.Conn.Detach()
				x.Conn.Close()
				x.carrier.Detach()
			}
			x.carrier.Release()
		}
	}
	for _, s := range w.sides {
		s.group.Close()
	}
	for _, sc := range w.conns {
		for _, x := range sc.ends {
			x.rmb.Free()
		}
	}
	for _, l := range w.links {
		for _, e := range l.ends {
			areas = append(areas, e.area)
		}
	}
}

// play has one schedule, and returns why it has failed.
func play(t testing.TB, devs [2]verbs.Device, pds [2]verbs.PD, seed uint64, tell func(string)) (w *world, failure simFailure) {
	w = newWorld(t, devs, pds, seed)
	w.tell = tell
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(simFailure)
			if !ok {
				panic(r)
			}
			failure = f
		}
		w.close()
	}()
	for range 200 + w.rng.IntN(1500) {
		w.step(t)
	}
	w.settle()
	w.check()
	return w, failure
}

// newSimDevices makes the devices that queue pairs and memory need to have names; nothing goes over
// them.
func newSimDevices(t testing.TB) (devs [2]verbs.Device, pds [2]verbs.PD) {
	t.Helper()
	for i := range devs {
		devs[i] = openDevice(t, randomLoopback(), nil)
		var err error
		if pds[i], err = devs[i].NewPD(); err != nil {
			t.Fatal(err)
		}
	}
	return devs, pds
}

// TestSimMove plays connections over links that come, fail, fall silent, flap and are left, seen by
// either side at any time. Packets of one link overtake another link's, and bytes that are written
// once more are others. Every byte is there once and in order, no connection is lost while a link
// is left, and none is left on a link that is gone. With -seeds it plays more.
func TestSimMove(t *testing.T) {
	watch := *simSeeds <= 10_000
	if watch {
		watchdog(t)
	}
	devs, pds := newSimDevices(t)
	seeds := *simSeeds
	if raceEnabled {
		seeds /= 10
	}
	total := map[string]int{}
	first, last := uint64(1), seeds
	if *simSeed != 0 {
		first, last = *simSeed, *simSeed
	}
	for seed := first; seed <= last; seed++ {
		w, failure := play(t, devs, pds, seed, nil)
		for k, n := range w.total {
			total[k] += n
		}
		if failure == "" {
			continue
		}
		var story []string
		play(t, devs, pds, seed, func(s string) { story = append(story, s) })
		for _, s := range story[max(0, len(story)-80):] {
			t.Log(s)
		}
		t.Fatalf("%s; replay with: go test -run TestSimMove -seed=%d", failure, seed)
	}
	t.Logf("%v", total)
	for _, what := range []string{"connections", "ended", "faults", "left", "links", "moves", "restarts", "spoiled", "validations"} {
		if total[what] == 0 && seeds >= 1000 && first != last {
			t.Errorf("no %s: the simulation misses something", what)
		}
	}
}
