package procs

import (
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// TestReachHung has a file system that does not answer. A look ends all the same, and there is one at a time.
func TestReachHung(t *testing.T) {
	var calls atomic.Int32
	hang := make(chan struct{})
	lstat = func(string) (os.FileInfo, error) {
		calls.Add(1)
		<-hang
		return nil, os.ErrNotExist
	}
	defer func() { lstat = os.Lstat }()
	const socket = "/nonexistent/socket"
	begin := time.Now()
	for range 3 {
		if got := Reach(os.Getpid(), socket); got != socket {
			t.Errorf("Reach = %q, want %q", got, socket)
		}
	}
	if took := time.Since(begin); took > 20*reachTime || calls.Load() != 1 {
		t.Errorf("three looks took %v, with %d calls; want one call, and %v", took, calls.Load(), reachTime)
	}
	close(hang)
	for range 1000 { // until that look has ended
		looks.Lock()
		n := len(looks.in)
		looks.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the look has not ended")
}
