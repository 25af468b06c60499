package stream

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A waiter lets one goroutine at a time wait for the peer. It is part of a consumer or a
// producer, and used with that half's lock held.
//
//	spin   while recent waits were short: load what is awaited, pause, load again
//	flag   set our sleep word, then look once more (see the package comment)
//	park   receive from wakeup, which holds one token so that a wake before the park counts
//
// Whether to spin adapts: see [spinner]. A connection whose peer is fast spins, also if both
// ends were asleep before; one of many whose peers are slow does not.
type waiter struct {
	sleeps  *atomic.Uint32 // in shared memory: set by us, cleared by whoever wakes us
	ready   func() bool
	wakeup  chan struct{}
	parked  atomic.Bool // a goroutine is parked, or about to be
	spinner spinner
	want    uint32 // producer only: how much room ends the wait
}

func (w *waiter) init(sleeps *atomic.Uint32, limit time.Duration, ready func() bool) {
	w.sleeps = sleeps
	w.ready = ready
	w.wakeup = make(chan struct{}, 1)
	w.spinner.limit = limit
}

// wake makes a parked goroutine look again. Any goroutine may call it at any time.
func (w *waiter) wake() {
	if w.parked.Load() {
		select {
		case w.wakeup <- struct{}{}:
		default: // one token is enough
		}
	}
}

// wait returns when ready may have become true; the caller looks for itself.
func (w *waiter) wait(stats *Stats) {
	if !w.spin(stats) {
		w.park(stats)
	}
}

// park waits without using the processor. It may return early.
func (w *waiter) park(stats *Stats) {
	// Whoever makes ready true looks at parked or at *sleeps afterwards; we look at ready
	// after having set both.
	w.parked.Store(true)
	w.sleeps.Store(1)
	if !w.ready() {
		stats.Sleeps.Add(1)
		start := time.Now()
		<-w.wakeup
		w.spinner.slept(start, time.Now())
	}
	w.sleeps.Store(0)
	w.parked.Store(false)
}

// spin reports whether ready became true while it spun, if it did at all.
func (w *waiter) spin(stats *Stats) bool {
	if w.spinner.credit <= 0 || processors.Load() == 1 { // the peer may need our only processor
		return false
	}
	start := time.Now()
	var spent, yielded time.Duration
	for {
		for range 16 {
			if w.ready() {
				stats.Spins.Add(1)
				w.spinner.hit()
				return true
			}
			pause(1)
		}
		if spent = time.Since(start); spent >= w.spinner.limit {
			break
		}
		if spent-yielded < spinYield {
			continue
		}
		runtime.Gosched()
		yielded = time.Since(start)
		if yielded-spent > yieldBusy {
			break // others had work to do: do not keep them from it
		}
	}
	stats.Futile.Add(1)
	processors.Store(int32(runtime.GOMAXPROCS(0)))
	w.spinner.futile(spent)
	return w.ready()
}

// processors is GOMAXPROCS as of some recent futile spin: asking takes the scheduler's lock.
var processors atomic.Int32

func init() { processors.Store(int32(runtime.GOMAXPROCS(0))) }
