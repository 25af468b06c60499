package rdma

import (
	"testing"
	"time"
)

// runWatch tells w of waits until the time is over: a packet comes after each, and cost says how long
// that takes with and without looking.
func runWatch(w *watch, from, until time.Duration, cost func(look bool) time.Duration) (looked, slept int) {
	packets := uint64(from)
	for now := from; now < until; {
		d := cost(w.look)
		if w.look {
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
func TestWatch(t *testing.T) {
	const fast, slow = 5 * time.Microsecond, 40 * time.Microsecond
	lookingPays := func(look bool) time.Duration {
		if look {
			return fast
		}
		return slow
	}
	sleepingPays := func(look bool) time.Duration { return lookingPays(!look) }
	w := newWatch(false)
	if w.look {
		t.Error("a new watch looks")
	}
	looked, slept := runWatch(&w, 1, time.Second, lookingPays)
	if !w.look || looked < 20*slept {
		t.Errorf("where looking pays: %d looks, %d sleeps; look = %v at the end", looked, slept, w.look)
	}
	looked, slept = runWatch(&w, time.Second, 3*time.Second, sleepingPays)
	if w.look || slept < 3*looked {
		t.Errorf("where it has ceased to pay: %d looks, %d sleeps; look = %v at the end", looked, slept, w.look)
	}
	same := func(bool) time.Duration { return fast }
	if looked, slept = runWatch(&w, 3*time.Second, 4*time.Second, same); looked*20 > slept {
		t.Errorf("where it makes no difference: %d looks, %d sleeps", looked, slept)
	}
}

// Long waits say nothing, and end a trial.
func TestWatchIdle(t *testing.T) {
	w := newWatch(false)
	if looked, _ := runWatch(&w, 1, 10*time.Second, func(bool) time.Duration { return 2 * time.Millisecond }); looked != 0 {
		t.Errorf("%d looks at an idle device, want 0", looked)
	}
	now := 10 * time.Second
	for packets := uint64(0); w.phase != watchTrial && packets < 10000; packets++ {
		now += time.Microsecond
		w.waited(now, time.Microsecond, packets)
	}
	if !w.look {
		t.Fatalf("no trial in %v of short waits", now-10*time.Second)
	}
	w.waited(now+watchIdle+1, watchIdle+1, 10001)
	if w.look || w.phase != watchSteady {
		t.Errorf("after a long wait in a trial: look = %v, phase %d; want false, %d", w.look, w.phase, watchSteady)
	}
}

func TestWatchBarred(t *testing.T) {
	w := newWatch(true)
	if looked, _ := runWatch(&w, 1, time.Second, func(bool) time.Duration { return time.Microsecond }); looked != 0 {
		t.Errorf("%d looks where they are not wanted", looked)
	}
}
