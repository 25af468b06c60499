package rdma

import "time"

// A watch decides whether the receiving goroutine looks for packets for a while before it goes to
// sleep. To be woken can take longer than two busy peers wait for each other, so looking pays where a
// processor is free for it; where others want the processor, among them perhaps the peer, it costs.
// Nobody can tell beforehand, so it is tried out: a period of the other way between two of the usual
// one, and whoever moved more packets in the time wins. The longer nothing comes of it the rarer are
// the trials.
//
// It is a value: it is told of each wait, and says with look what to do before the next.
type watch struct {
	look bool // before the next sleep

	phase  watchPhase
	start  time.Duration // of the period
	done   uint64        // packets when it began
	waits  int           // in it
	left   int           // periods until the next trial
	pause  int           // periods between the last two
	usual  float64       // packets per nanosecond before the trial
	tried  float64       // and in it
	barred bool          // never look
}

// A watchPhase is where a trial is.
type watchPhase uint8

const (
	watchSteady watchPhase = iota // the usual way
	watchTrial                    // the other one
	watchAfter                    // the usual one again, to compare with
)

const (
	watchPeriod   = 64               // waits
	watchIdle     = time.Millisecond // a longer wait says nothing about looking
	watchMinPause = 8                // periods
	watchMaxPause = 512
	watchGain     = 1.1 // by which the other way has to be better
)

func newWatch(barred bool) watch {
	return watch{barred: barred, left: watchMinPause, pause: watchMinPause}
}

// waited takes that a wait has ended at now, after d, and that packets have been moved in all.
func (w *watch) waited(now, d time.Duration, packets uint64) {
	if w.barred {
		return
	}
	if d > watchIdle { // begin the period again, and give up a trial
		if w.phase == watchTrial {
			w.look = !w.look
		}
		w.phase = watchSteady
		w.begin(now, packets)
		return
	}
	if w.waits++; w.waits < watchPeriod || now <= w.start {
		return
	}
	rate := float64(packets-w.done) / float64(now-w.start)
	switch w.phase {
	case watchSteady:
		w.usual = rate
		if w.left--; w.left <= 0 {
			w.phase, w.look = watchTrial, !w.look
		}
	case watchTrial:
		w.tried = rate
		w.phase, w.look = watchAfter, !w.look
	case watchAfter:
		w.phase = watchSteady
		w.pause = min(2*w.pause, watchMaxPause)
		if w.tried > watchGain*max(w.usual, rate) {
			w.look, w.pause = !w.look, watchMinPause
		}
		w.left = w.pause
	}
	w.begin(now, packets)
}

func (w *watch) begin(now time.Duration, packets uint64) {
	w.start, w.done, w.waits = now, packets, 0
}
