package stream

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A waiter lets one goroutine at a time wait for the peer. It is part of a consumer or a
// producer, and used with that half's lock held.
//
//	spin   while recent waits were short: load the awaited word, pause, load again
//	flag   set our sleep word, then look once more (see the package comment)
//	park   wait for a token in wakeup, as [Doorbell] says
//
// Whether to spin adapts: see [spinner]. A connection whose peer is fast spins, also if both
// ends were asleep before; one of many whose peers are slow does not.
type waiter struct {
	sleeps  *atomic.Uint32 // in shared memory: set by us, cleared by the side that wakes us
	ready   func() bool
	wakeup  chan struct{} // has room for one token
	parked  atomic.Bool   // a goroutine is parked, or about to be, and nobody has woken it
	leads   atomic.Bool   // it waits in bell.Lead, or is about to
	bell    Doorbell      // nil: somebody else waits for the peer's rings
	woken   func() bool   // there is a token
	spinner spinner
	want    uint32 // producer only: how much room ends the wait
	prompt  int    // waits that ended at once, less some for each that did not, see linger

	written   *atomic.Uint64 // consumer only: bytes that we have written, see linger
	writtenAt uint64         // as of the last wait that ended at once
}

// A Doorbell is where the rings of a peer arrive, for all connections with it. A goroutine that
// parks waits there itself if it is the only one, which spares it being woken by another one. The
// rest wait to be woken by the goroutine that leads.
type Doorbell interface {
	// Parked counts the goroutines that are parked and that nobody has woken yet. Stream
	// keeps it; as long as it is not zero somebody has to wait for rings.
	Parked() *atomic.Int32

	// Lead waits for rings and passes them on, until until says that it is enough. It
	// returns at once if somebody else leads, and when the peer is gone.
	Lead(until func() bool)

	// Interrupt makes the goroutine that leads ask until again.
	Interrupt()
}

func (w *waiter) init(sleeps *atomic.Uint32, limit time.Duration, bell Doorbell, ready func() bool) {
	w.sleeps = sleeps
	w.ready = ready
	w.wakeup = make(chan struct{}, 1)
	w.woken = func() bool { return len(w.wakeup) > 0 }
	w.bell = bell
	w.spinner.limit = limit
}

// wake makes a parked goroutine look again, and reports whether there was one. Any goroutine may
// call it at any time.
func (w *waiter) wake() bool {
	if !w.parked.Load() || !w.unpark() {
		return false
	}
	select {
	case w.wakeup <- struct{}{}:
	default: // one token is enough
	}
	if w.leads.Load() {
		w.bell.Interrupt()
	}
	return true
}

// unpark reports whether it is the one that ends a park.
func (w *waiter) unpark() bool {
	if !w.parked.CompareAndSwap(true, false) {
		return false
	}
	if w.bell != nil {
		w.bell.Parked().Add(-1)
	}
	return true
}

// expect takes the steps of a goroutine that is about to park, for no goroutine: the next wake ends
// it.
func (w *waiter) expect() {
	if w.bell != nil {
		w.bell.Parked().Add(1)
	}
	if !w.parked.CompareAndSwap(false, true) && w.bell != nil {
		w.bell.Parked().Add(-1) // it was expected already
	}
	w.sleeps.Store(1)
	if w.bell != nil {
		w.bell.Lead(func() bool { return true }) // so that somebody does, now that one is parked
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
	timed := !w.crowded() // in a crowd nobody spins, however short the wait
	// The side that makes ready true looks at parked or at *sleeps afterwards; we look at ready
	// after having set both.
	if w.bell != nil {
		w.bell.Parked().Add(1) // first: it may be too high for a moment, but never too low
	}
	w.parked.Store(true)
	w.sleeps.Store(1)
	if !w.ready() {
		stats.Sleeps.Add(1)
		var start time.Time
		if timed {
			start = time.Now()
		}
		if w.bell != nil {
			// The goroutine that wakes us puts the token in and looks at leads afterwards; Lead
			// looks for the token after leads was set.
			w.leads.Store(true)
			w.bell.Lead(w.woken)
			w.leads.Store(false)
		}
		<-w.wakeup
		if timed {
			w.spinner.slept(start, time.Now())
		}
	}
	w.sleeps.Store(0)
	w.unpark()
	select {
	case <-w.wakeup: // came when we had already seen for ourselves
	default:
	}
}

// crowded reports whether others are parked that wait for the same peer. It has work for each of
// them, and a processor that spins here is one that the peer, or one of them, could use.
func (w *waiter) crowded() bool { return w.bell != nil && w.bell.Parked().Load() > crowd }

// linger lets a peer go on that writes little at a time and all the time. Looking at every write
// takes the cache line of the cursor away from it each time, which costs it more than the write.
// prompt says that the wait ended at once: one for an answer takes longer. Nor does a reader linger
// that writes in between: the peer may wait for that write.
func (w *waiter) linger(prompt bool) {
	if !prompt || w.written == nil {
		w.prompt /= 2 // rule: TestLinger: w.prompt /= 2 -> _ = 0
		return
	}
	if n := w.written.Load(); n != w.writtenAt { // rule: TestLinger: n != w.writtenAt -> n+1 == 0
		w.prompt, w.writtenAt = 0, n
		return
	}
	if w.prompt = min(w.prompt+1, promptWaits); w.prompt < promptWaits { // rule: TestLinger: w.prompt < promptWaits -> true
		return
	}
	for start := time.Now(); ; {
		pause(8)
		if spent := time.Since(start); spent >= lingerTime || spent <= 0 {
			// 0: in a bubble, where time stands still
			return
		}
	}
}

// spin reports whether ready became true while it spun, if it did at all.
func (w *waiter) spin(stats *Stats) bool {
	if w.spinner.credit <= 0 || w.crowded() {
		return false
	}
	start := time.Now()
	var spent, yielded time.Duration
	for {
		for i := range 16 {
			if w.ready() {
				stats.Spins.Add(1)
				w.spinner.hit()
				w.linger(i < promptLooks && spent == 0)
				return true
			}
			pause(1)
		}
		spent = time.Since(start)
		if spent >= w.spinner.limit || spent == 0 {
			// 0: in a bubble of testing/synctest, where time stands still
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
	w.spinner.futile(spent)
	return w.ready()
}
