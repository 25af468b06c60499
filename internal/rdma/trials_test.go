package rdma

import (
	"testing"
	"time"
)

// runTrials tells w of waits until the time is over: a packet comes after each, and cost says how long
// that takes with and without looking.
func runTrials(w *trials, from, until time.Duration, cost func(look bool) time.Duration) (looked, slept int) {
	packets := uint64(from)
	for now := from; now < until; {
		d := cost(w.other)
		if w.other {
			looked++
		} else {
			slept++
		}
		now += d
		packets++
		w.waited(now, d, packets)
	}
	return looked, slept
}

// The better way is found, kept, and left when it is no longer the better one.
func TestTrials(t *testing.T) {
	const fast, slow = 5 * time.Microsecond, 40 * time.Microsecond
	lookingPays := func(look bool) time.Duration {
		if look {
			return fast
		}
		return slow
	}
	sleepingPays := func(look bool) time.Duration { return lookingPays(!look) }
	w := newTrials(false)
	if w.other {
		t.Error("new trials begin with the second way")
	}
	looked, slept := runTrials(&w, 1, time.Second, lookingPays)
	if !w.other || looked < 20*slept {
		t.Errorf("where looking pays: %d looks, %d sleeps; look = %v at the end", looked, slept, w.other)
	}
	looked, slept = runTrials(&w, time.Second, 3*time.Second, sleepingPays)
	if w.other || slept < 3*looked {
		t.Errorf("where it has ceased to pay: %d looks, %d sleeps; look = %v at the end", looked, slept, w.other)
	}
	same := func(bool) time.Duration { return fast }
	if looked, slept = runTrials(&w, 3*time.Second, 4*time.Second, same); looked*20 > slept {
		t.Errorf("where it makes no difference: %d looks, %d sleeps", looked, slept)
	}
}

// Long waits say nothing, and end a trial.
func TestTrialsIdle(t *testing.T) {
	w := newTrials(false)
	if looked, _ := runTrials(&w, 1, 10*time.Second, func(bool) time.Duration { return 2 * time.Millisecond }); looked != 0 {
		t.Errorf("%d looks at an idle device, want 0", looked)
	}
	now := 10 * time.Second
	for packets := uint64(0); w.phase != trialOn && packets < 10000; packets++ {
		now += time.Microsecond
		w.waited(now, time.Microsecond, packets)
	}
	if !w.other {
		t.Fatalf("no trial in %v of short waits", now-10*time.Second)
	}
	w.waited(now+trialIdle+1, trialIdle+1, 10001)
	if w.other || w.phase != trialNone {
		t.Errorf("after a long wait in a trial: look = %v, phase %d; want false, %d", w.other, w.phase, trialNone)
	}
}

func TestTrialsBarred(t *testing.T) {
	w := newTrials(true)
	if looked, _ := runTrials(&w, 1, time.Second, func(bool) time.Duration { return time.Microsecond }); looked != 0 {
		t.Errorf("%d looks where they are not wanted", looked)
	}
}
