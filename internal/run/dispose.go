package run

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// disposal is what dispose has not closed yet.
var disposal struct {
	mu      sync.Mutex
	closing int   // goroutines that do
	waiting []int // descriptors for which there is none
}

// dispose closes descriptors that a program has sent, or a socket in which some may wait. The last close of a TCP socket with SO_LINGER takes as long as the program
// wants, and so does that of a file of a file system in user space, so the caller never waits: not even where very many take their time, behind which others stay open.
// Any goroutine may call it.
func dispose(fds ...int) {
	d := &disposal
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing >= maxDisposing { // rule: TestDisposeMany
		d.waiting = append(d.waiting, fds...)
		return
	}
	d.closing++
	go func() {
		closeAll(fds)
		for fd, ok := nextDisposed(); ok; fd, ok = nextDisposed() {
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // whoever sends so many means no good
			closeAll([]int{fd})
		}
	}()
}

// Dispose closes descriptors for which, or for what may wait in which, the caller must not wait.
func Dispose(fds ...int) { dispose(fds...) }

// ControlLen is room for as many descriptors as come with one message.
const ControlLen = controlLen

// DisposeControl closes what has come with a message of a peer that is to send none.
func DisposeControl(control []byte) {
	if fds := descriptors(control); len(fds) > 0 {
		dispose(fds...)
	}
}

// nextDisposed takes one of the descriptors that wait for a goroutine that closes them. If there is none that goroutine ends.
func nextDisposed() (fd int, ok bool) {
	d := &disposal
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) == 0 {
		d.waiting = nil
		d.closing--
		return -1, false
	}
	fd = d.waiting[0]
	d.waiting = d.waiting[1:]
	return fd, true
}

// disposeNow closes a descriptor of which somebody else has a copy, so that this takes no time, and is done when it returns. Should it take time all the same it goes on
// without the caller.
func disposeNow(fd int) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		unix.Close(fd)
	}()
	select {
	case <-closed:
	case <-time.After(closePatience):
	}
}
