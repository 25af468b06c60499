package polling

import (
	"testing"
	"time"
)

// runTrials tells w of waits until the time is over: a packet comes after each, and cost says how long
// that takes with and without leading.
func runTrials(w *Trials, from, until time.Duration, cost func(lead bool) time.Duration) (led, stood int) {
	packets := uint64(from)
	for now := from; now < until; {
		d := cost(w.other)
		if w.other {
			led++
		} else {
			stood++
		}
		now += d
		packets++
		w.Waited(now, d, packets)
	}
	return led, stood
}

// The better way is found, kept, and left when it is no longer the better one.
func TestTrials(t *testing.T) {
	const fast, slow = 5 * time.Microsecond, 40 * time.Microsecond
	leadingPays := func(lead bool) time.Duration {
		if lead {
			return fast
		}
		return slow
	}
	standingPays := func(lead bool) time.Duration { return leadingPays(!lead) }
	w := NewTrials(false)
	if w.other {
		t.Error("new trials begin with the second way")
	}
	led, stood := runTrials(&w, 1, time.Second, leadingPays)
	if !w.other || led < 20*stood {
		t.Errorf("where leading pays: %d leads, %d stands; lead = %v at the end", led, stood, w.other)
	}
	led, stood = runTrials(&w, time.Second, 3*time.Second, standingPays)
	if w.other || stood < 3*led {
		t.Errorf("where it has ceased to pay: %d leads, %d stands; lead = %v at the end", led, stood, w.other)
	}
	same := func(bool) time.Duration { return fast }
	if led, stood = runTrials(&w, 3*time.Second, 4*time.Second, same); led*20 > stood {
		t.Errorf("where it makes no difference: %d leads, %d stands", led, stood)
	}
}

// Long waits say nothing, and end a trial.
func TestTrialsIdle(t *testing.T) {
	w := NewTrials(false)
	if led, _ := runTrials(&w, 1, 10*time.Second, func(bool) time.Duration { return 2 * time.Millisecond }); led != 0 {
		t.Errorf("%d leads at an idle device, want 0", led)
	}
	now := 10 * time.Second
	for packets := uint64(0); w.phase != trialOn && packets < 10000; packets++ {
		now += time.Microsecond
		w.Waited(now, time.Microsecond, packets)
	}
	if !w.other {
		t.Fatalf("no trial in %v of short waits", now-10*time.Second)
	}
	w.Waited(now+trialIdle+1, trialIdle+1, 10001)
	if w.other || w.phase != trialNone {
		t.Errorf("after a long wait in a trial: lead = %v, phase %d; want false, %d", w.other, w.phase, trialNone)
	}
}
