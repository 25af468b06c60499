package stream

import (
	"runtime"
	"time"
)

// A spinner decides whether a waiter spins before it parks.
//
//	cold   credit is 0: every wait parks
//	       after trialSleeps short sleeps in a row, if the last trial is long enough ago:
//	       hot, with full credit
//	hot    every wait spins first, for at most limit
//	       found something: earns credit; futile: costs the time it took
//	       credit used up: cold, and the next trial has to wait
//
// Spinning by halves would not do: a spin that is shorter than the time in which a sleeping
// peer wakes up finds nothing, and if only one of two ends spins, the other one sleeps. Both
// sleep equally short, so both begin a trial at about the same time.
type spinner struct {
	limit  time.Duration // longest spin; 0 never spins
	credit time.Duration
	shorts int           // short sleeps in a row
	after  time.Time     // no trial before
	pause  time.Duration // after a trial that fails
}

// hit notes that a spin found something.
func (s *spinner) hit() {
	if s.credit += spinEarned; s.credit >= spinCredit {
		s.credit = spinCredit
		s.pause = 0 // spinning pays here
	}
}

// futile notes that a spin did not.
func (s *spinner) futile(spent time.Duration) {
	if s.credit -= spent; s.credit > 0 {
		return
	}
	s.credit, s.shorts = 0, 0
	s.pause = min(max(2*s.pause, trialPause), trialPauseMax)
	s.after = time.Now().Add(s.pause)
}

// slept notes that a wait slept from start to end.
func (s *spinner) slept(start, end time.Time) {
	if s.limit == 0 || s.credit > 0 {
		return
	}
	if end.Sub(start) >= shortSleep {
		s.shorts = 0
		return
	}
	if s.shorts++; s.shorts < trialSleeps || end.Before(s.after) {
		return
	}
	s.shorts = 0
	if runtime.GOMAXPROCS(0) > 1 { // the peer may need our only processor
		s.credit = spinCredit
	}
}
