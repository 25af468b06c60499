package polling

import "time"

// Trials decide whether a goroutine that waits for much receives it itself. It leads then, see
// Device.Lead of package rdma. Nobody can tell beforehand whether that pays. It spares waking the
// goroutine for each batch, and the bytes are in the cache of the processor that copies them next.
// The device's goroutine can receive while the other one computes, where there is a processor for
// both.
//
// A period of the way that is not in use comes between two of the one that is, and the way that moved
// more packets in the time wins. Trials become rarer while nothing comes of them.
//
// It is a value: it is told of each wait, and Second says which way to go from then on.
type Trials struct {
	other bool // the second way: lead

	phase trialPhase
	start time.Duration // of the period
	done  uint64        // packets when it began
	waits int           // in it
	left  int           // periods until the next trial
	pause int           // periods between the last two
	usual float64       // packets per nanosecond before the trial
	tried float64       // and in it
}

// A trialPhase is where a trial is.
type trialPhase uint8

const (
	trialNone  trialPhase = iota // the usual way
	trialOn                      // the other one
	trialAfter                   // the usual one again, to compare with
)

const (
	trialPeriod   = 64               // waits
	trialIdle     = time.Millisecond // a longer wait says nothing
	trialMinPause = 8                // periods
	trialMaxPause = 512
	trialGain     = 1.1 // by which the other way has to be better
)

// NewTrials returns trials that begin with the second way, or with the first.
func NewTrials(second bool) Trials {
	return Trials{other: second, left: trialMinPause, pause: trialMinPause}
}

// Second reports whether the second way is the one to go: to lead.
func (w *Trials) Second() bool { return w.other }

// Waited takes that a wait has ended at now, after d, and that packets have been moved in all.
func (w *Trials) Waited(now, d time.Duration, packets uint64) {
	if d > trialIdle { // begin the period again, and give up a trial
		if w.phase == trialOn {
			w.other = !w.other
		}
		w.phase = trialNone
		w.begin(now, packets)
		return
	}
	if w.waits++; w.waits < trialPeriod || now <= w.start {
		return
	}
	rate := float64(packets-w.done) / float64(now-w.start)
	switch w.phase {
	case trialNone:
		w.usual = rate
		if w.left--; w.left <= 0 {
			w.phase, w.other = trialOn, !w.other
		}
	case trialOn:
		w.tried = rate
		w.phase, w.other = trialAfter, !w.other
	case trialAfter:
		w.phase = trialNone
		w.pause = min(2*w.pause, trialMaxPause)
		if w.tried > trialGain*max(w.usual, rate) {
			w.other, w.pause = !w.other, trialMinPause
		}
		w.left = w.pause
	}
	w.begin(now, packets)
}

func (w *Trials) begin(now time.Duration, packets uint64) {
	w.start, w.done, w.waits = now, packets, 0
}
