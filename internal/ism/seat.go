package ism

import (
	"math"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Two processes that take turns, each sleeping while the other works, are best on one
// processor: the one that rings goes to sleep, and the one that was rung runs at once. On two,
// each ring has to wake an idle processor, which in a virtual machine takes many times longer.
// But the kernel wakes a thread where it last slept, as long as that processor is idle, so that
// two that began apart stay apart. So where waits are short, but not as short as they could
// be, one side waits on the processor of the other; then it may run anywhere again.

// seat returns the processor that the calling thread runs on, counted from 1; 0 if unknown.
func seat() uint32 {
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return 0
	}
	return cpu + 1
}

// sitDown moves the calling thread to a processor; the function that it returns lets it go
// where it likes again.
func sitDown(seat uint32) (getUp func()) {
	var old, only unix.CPUSet
	runtime.LockOSThread()
	// The peer can write anything there: only a processor that we may use counts. As an int of 32 bits
	// it could be negative, which IsSet does not expect.
	if seat-1 > math.MaxInt32 || unix.SchedGetaffinity(0, &old) != nil || !old.IsSet(int(seat-1)) || old.Count() == 1 {
		runtime.UnlockOSThread()
		return func() {}
	}
	only.Set(int(seat - 1))
	if unix.SchedSetaffinity(0, &only) != nil {
		runtime.UnlockOSThread()
		return func() {}
	}
	return func() {
		if unix.SchedSetaffinity(0, &old) != nil {
			old.Fill() // the set that we may use has changed meanwhile
			unix.SchedSetaffinity(0, &old)
		}
		runtime.UnlockOSThread()
	}
}
