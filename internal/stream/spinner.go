package stream

import (
	"runtime"
	"sync"
	"time"
)

// A spinner decides whether a waiter spins before it parks.
//
//	cold   credit is 0: every wait parks
//	       after trialSleeps short sleeps in a row, if the gate lets it: on trial
//	trial  every wait spins first, for at most limit
//	       found something: earns credit; futile: costs the time it took
//	       after trialHits finds: hot; credit used up: cold
//	hot    as on trial, but nobody has to wait for it
//
// Spinning by halves would not do: a spin that is shorter than the time in which a sleeping
// peer wakes up finds nothing, and if only one of two ends spins, the other one sleeps. Both
// sleep equally short, so both begin a trial at about the same time.
type spinner struct {
	limit  time.Duration // longest spin; 0 never spins
	credit time.Duration
	shorts int       // short sleeps in a row
	after  time.Time // no trial before
	trial  int       // finds that are missing until the trial is over; 0: not on trial
}

// hit notes that a spin found something.
func (s *spinner) hit() {
	s.credit = min(s.credit+spinEarned, spinCredit)
	if s.trial > 0 {
		if s.trial--; s.trial == 0 {
			gate.leave(s, time.Now(), true)
		}
	}
}

// futile notes that a spin did not.
func (s *spinner) futile(spent time.Duration) {
	if s.credit -= spent; s.credit > 0 {
		return
	}
	now := time.Now()
	s.credit, s.shorts = 0, 0
	s.after = now.Add(trialPause)
	if s.trial > 0 {
		s.trial = 0
		gate.leave(s, now, false)
	}
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
	// On a single processor the peer may need the one we would spin on.
	if runtime.GOMAXPROCS(0) > 1 && gate.enter(s, end) {
		s.credit, s.trial = spinCredit, trialHits
	}
}

// A trialGate lets few waiters of the process be on trial at a time, and none for a while after
// one has failed: where many connections are busy, each of them now and then looks as if
// spinning could pay, and all trials together would take the time that they need.
type trialGate struct {
	mu    sync.Mutex
	on    [maxTrials]*spinner
	since [maxTrials]time.Time
	after time.Time     // no trial before
	pause time.Duration // after the next failure; doubles until one succeeds
}

var gate trialGate

// enter reports whether s may begin a trial.
func (g *trialGate) enter(s *spinner, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Before(g.after) {
		return false
	}
	for i := range g.on {
		// A connection may have ended, or wait for long, in the middle of its trial.
		if g.on[i] == nil || g.on[i] == s || now.Sub(g.since[i]) > trialTime {
			g.on[i], g.since[i] = s, now
			return true
		}
	}
	return false
}

// leave ends the trial of s, and notes whether spinning has paid.
func (g *trialGate) leave(s *spinner, now time.Time, paid bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.on {
		if g.on[i] == s {
			g.on[i] = nil
		}
	}
	if paid {
		g.pause, g.after = 0, time.Time{}
		return
	}
	g.pause = min(max(2*g.pause, trialPause), trialPauseMax)
	g.after = now.Add(g.pause)
}
