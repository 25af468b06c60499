package polling

import (
	"testing"
	"time"
)

// testSpin is how long a look takes at most.
const (
	testSpin = 50 * time.Microsecond
	testNear = Near * testSpin
)

// waits tells l of n waits of d, each with a look of the same time where one pays, and returns how many looked.
func waits(l *Looks, n int, d time.Duration) (looked int) {
	for range n {
		if l.Pays() {
			looked++
			l.Looked(min(d, testSpin))
		}
		l.Waited(d, testNear)
	}
	return looked
}

// Busy peers are looked for from the second wait on, and idle ones never.
func TestLooks(t *testing.T) {
	l := NewLooks(false)
	if got := waits(&l, 1000, 10*time.Microsecond); got != 999 {
		t.Errorf("%d looks in 1000 short waits, want 999", got)
	}
	if got := waits(&l, 1000, testNear+1); got != 1 {
		t.Errorf("%d looks in 1000 waits that were not short, want 1", got)
	}
	l = NewLooks(true)
	if got := waits(&l, 1000, 10*time.Microsecond); got != 0 {
		t.Errorf("%d looks where they are not wanted", got)
	}
}

// Looks that take long end looking, for longer and longer, until all goes well for as long.
func TestLooksLong(t *testing.T) {
	l := NewLooks(false)
	waits(&l, 1, 0)
	lose := func() { // the processor, in maxLong looks
		t.Helper()
		for range maxLong {
			if !l.Pays() {
				t.Fatal("no look before the limit of long looks")
			}
			l.Looked(lookLong)
			l.Waited(lookLong, lookLong)
		}
	}
	for pause := lookMinPause; pause <= 2*lookMaxPause; pause *= 2 {
		lose()
		want := min(pause, lookMaxPause) - 1 // the last long one counts
		if got := waits(&l, want, time.Microsecond); got != 0 {
			t.Fatalf("%d looks in the %d waits after long ones", got, want)
		}
		if !l.Pays() {
			t.Fatalf("no look %d waits after long ones", want)
		}
	}
	waits(&l, lookMaxPause+1, time.Microsecond)
	lose()
	if l.slept != lookMinPause-1 {
		t.Errorf("a pause of %d waits after a long time without one, want %d", l.slept, lookMinPause-1)
	}
}

// Single long looks are normal.
func TestLooksLongSeldom(t *testing.T) {
	l := NewLooks(false)
	waits(&l, 1, 0)
	for range 10 * maxLong {
		if !l.Pays() {
			t.Fatal("no look after single long ones")
		}
		l.Looked(lookLong)
		waits(&l, lookForget, time.Microsecond)
	}
}
