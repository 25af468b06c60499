package ism

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func affinity(t *testing.T) (set unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

// A thread that sat down may afterwards run where it could before.
func TestSitDown(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := affinity(t)
	for cpu := range 1024 {
		if !before.IsSet(cpu) {
			continue
		}
		getUp := sitDown(uint32(cpu) + 1)
		if during := affinity(t); during.Count() != 1 || !during.IsSet(cpu) {
			t.Errorf("sitDown(%d): may run on %d processors, want processor %d alone", cpu+1, during.Count(), cpu)
		}
		if got := seat(); got != uint32(cpu)+1 {
			t.Errorf("seat() = %d, want %d", got, cpu+1)
		}
		getUp()
		if after := affinity(t); after != before {
			t.Errorf("after getUp: affinity %v, want %v", after, before)
		}
	}
}

// The number comes from memory that the peer writes.
func TestSitDownNowhere(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := affinity(t)
	for _, n := range []uint32{0, 1 << 10, 1 << 16, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<31 + 1<<20, 1<<32 - 1} {
		if n != 0 && n <= 1<<31 && before.IsSet(int(n-1)) {
			continue // a processor that we may use
		}
		getUp := sitDown(n)
		if during := affinity(t); during != before {
			t.Errorf("sitDown(%d): affinity %v, want %v", n, during, before)
		}
		getUp()
	}
}
