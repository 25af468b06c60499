package run

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// disposing is how many calls of dispose have not come to their end.
var disposing atomic.Int32

// dispose closes descriptors that a program has sent, or a socket in which some may wait. The last close of a TCP socket with SO_LINGER takes as long as the program
// wants, and so does that of a file of a file system in user space, so the caller does not wait. Any goroutine may call it.
func dispose(fds ...int) {
	if disposing.Add(1) <= maxDisposing {
		go func() {
			defer disposing.Add(-1)
			closeAll(fds)
		}()
		return
	}
	defer disposing.Add(-1)
	for _, fd := range fds {
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // whoever sends so many means no good
	}
	closeAll(fds)
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
