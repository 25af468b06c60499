package coretest

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// Everything random in a simulation comes from one seed.
var (
	oneSeed = flag.Uint64("seed", 0, "play only this seed of the simulations, and log it")
	seeds   = flag.Uint64("seeds", defaultSeeds, "how many seeds each simulation plays")
)

// Epoch is when each simulation begins.
var Epoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// Seeds returns how many seeds a simulation plays, from 1 on, and one, the only seed to be played,
// 0 if all are.
func Seeds() (n, one uint64) { return *seeds, *oneSeed }

// Thorough reports whether enough seeds are played that each outcome has to come up.
func Thorough() bool { return *oneSeed == 0 && *seeds >= 1000 }

// A World is virtual time and the events that will happen in it. It belongs to one goroutine.
type World struct {
	Seed uint64
	Rand *rand.Rand
	Now  time.Time

	Quiet bool // only the run of -seed is logged

	t    *testing.T
	seq  int
	todo events
	log  []string
}

// An event happens at a time.
type event struct {
	at  time.Time
	seq int // orders events of the same time
	do  func()
}

// events is a heap of the events to come, the next first.
type events []event

// Len, Less, Swap, Push and Pop are for package heap.
func (q events) Len() int      { return len(q) }
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q events) Less(i, j int) bool {
	c := q[i].at.Compare(q[j].at)
	return c < 0 || c == 0 && q[i].seq < q[j].seq
}
func (q *events) Push(e any) { *q = append(*q, e.(event)) }
func (q *events) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}

func newWorld(t *testing.T, seed uint64) *World {
	return &World{t: t, Seed: seed, Rand: rand.New(rand.NewPCG(seed, 1)), Now: Epoch}
}

// ForEachSeed runs play for every seed, or for the one of -seed. It stops at the first seed that fails.
func ForEachSeed(t *testing.T, play func(w *World)) {
	t.Helper()
	if *oneSeed != 0 {
		w := newWorld(t, *oneSeed)
		defer func() { t.Log(strings.Join(w.log, "\n")) }()
		play(w)
		return
	}
	for seed := uint64(1); seed <= *seeds && !t.Failed(); seed++ {
		play(newWorld(t, seed))
	}
}

// Logf notes an event, to be printed with a failure.
func (w *World) Logf(format string, args ...any) {
	at := fmt.Sprintf("%10v  ", w.Now.Sub(Epoch).Round(time.Microsecond))
	w.log = append(w.log, at+fmt.Sprintf(format, args...))
}

// Failf reports a broken invariant with the seed and the events that led to it.
func (w *World) Failf(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("%s\n%s\nreplay with: go test -run %s -seed=%d", fmt.Sprintf(format, args...),
		strings.Join(w.log, "\n"), w.t.Name(), w.Seed)
}

// At has something happen at a time. Events of one time happen in the order of these calls.
func (w *World) At(at time.Time, do func()) {
	w.seq++
	heap.Push(&w.todo, event{at, w.seq, do})
}

// After has something happen after a time.
func (w *World) After(d time.Duration, do func()) { w.At(w.Now.Add(d), do) }

// Run plays until nothing is left to happen.
func (w *World) Run() {
	for steps := 0; len(w.todo) > 0 && !w.t.Failed(); steps++ {
		if steps > 10_000 {
			w.Failf("the simulation does not end")
			return
		}
		w.step()
	}
}

// RunUntil plays the events up to a time: machines in use always have a timer.
func (w *World) RunUntil(end time.Time) {
	for steps := 0; !w.t.Failed(); steps++ {
		if len(w.todo) == 0 || w.todo[0].at.After(end) {
			w.Now = end
			return
		}
		if steps > 30_000 {
			w.Failf("the simulation does not end")
			return
		}
		w.step()
	}
}

// step plays the next event.
func (w *World) step() {
	e := heap.Pop(&w.todo).(event)
	w.Now = e.at
	e.do()
}

// Delay returns a short time, and now and then a long one.
func (w *World) Delay() time.Duration {
	switch w.Rand.IntN(10) {
	case 0:
		return time.Duration(w.Rand.Int64N(int64(20 * time.Second)))
	case 1, 2:
		return 0
	}
	return time.Duration(w.Rand.Int64N(int64(2 * time.Millisecond)))
}

// Chance reports true in so many of a hundred cases.
func (w *World) Chance(percent int) bool { return w.Rand.IntN(100) < percent }

// Words describes outputs of a machine for a log: each with its type.
func Words[T any](outs []T) string {
	var list []string
	for _, o := range outs {
		list = append(list, fmt.Sprintf("%T%+v", o, o))
	}
	return strings.Join(list, ", ")
}
