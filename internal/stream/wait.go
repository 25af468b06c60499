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
// Whether to spin adapts. After a spin that found something the next wait spins too; after
// a futile one the next few do not, and twice as many after the next. So a connection whose
// peer is fast spins, also one whose peer was asleep and spins now, and one of many whose
// peers are slow hardly ever does. A shorter spin would not do in place of fewer: to find a
// peer that is just waking up takes as long as waking up.
type waiter struct {
	sleeps  *atomic.Uint32 // in shared memory: set by us, cleared by whoever wakes us
	ready   func() bool
	wakeup  chan struct{}
	parked  atomic.Bool   // a goroutine is parked, or about to be
	limit   time.Duration // longest spin; 0 never spins
	skip    uint32        // waits from now on that do not spin
	backoff uint32        // of the last futile spin; 0 after one that was not
	want    uint32        // producer only: how much room ends the wait
}

func (w *waiter) init(sleeps *atomic.Uint32, limit time.Duration, ready func() bool) {
	w.sleeps = sleeps
	w.ready = ready
	w.wakeup = make(chan struct{}, 1)
	w.limit = limit
	w.skip, w.backoff = spinBackoff, spinBackoff
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
		<-w.wakeup
	}
	w.sleeps.Store(0)
	w.parked.Store(false)
}

// spin reports whether ready became true while it spun, if it did at all.
func (w *waiter) spin(stats *Stats) bool {
	switch {
	case w.limit == 0:
		return false
	case w.skip > 0:
		w.skip--
		return false
	case processors.Load() == 1: // the peer may need our only processor
		return false
	}
	start := time.Now()
	yielded := time.Duration(0)
	for {
		for range 16 {
			if w.ready() {
				stats.Spins.Add(1)
				w.backoff = 0
				return true
			}
			pause(1)
		}
		spent := time.Since(start)
		if spent >= w.limit {
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
	w.backoff = min(spinBackoffMax, max(spinBackoff, 2*w.backoff))
	w.skip = w.backoff
	return w.ready()
}

// processors is GOMAXPROCS as of some recent futile spin: asking takes the scheduler's lock.
var processors atomic.Int32

func init() { processors.Store(int32(runtime.GOMAXPROCS(0))) }
