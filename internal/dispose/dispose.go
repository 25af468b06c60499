// Package dispose closes descriptors that another program has sent, so that nobody waits for it.
package dispose

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Room has room for as many descriptors as come with one message, and for the sender's credentials. The
// kernel closes those for which there is none, and the receiver waits for that.
const Room = 2048

const (
	// maxClosing bounds the goroutines that close descriptors: each may have a thread wait, of which Go
	// has 10000.
	maxClosing = 4096

	// patience bounds how long Now waits for a close that takes no time.
	patience = 100 * time.Millisecond
)

// pending holds the descriptors that Close has not closed yet.
var pending struct {
	mu      sync.Mutex
	closing int   // goroutines that close
	waiting []int // descriptors for which there is no goroutine
}

// Close closes descriptors that a program has sent, or a socket in which some may wait. Negative ones are
// ignored. The last close of a TCP socket with SO_LINGER takes as long as the program wants, and so does the
// close of a file of a file system in user space. So the caller never waits: if too many closes take their
// time, further descriptors stay open behind them. Any goroutine may call it.
func Close(fds ...int) {
	p := &pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing >= maxClosing { // rule: TestCloseMany
		p.waiting = append(p.waiting, fds...)
		return
	}
	p.closing++
	go func() {
		closeAll(fds)
		for fd, ok := next(); ok; fd, ok = next() {
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // whoever sends so many means no good
			closeAll([]int{fd})
		}
	}()
}

// next takes one of the descriptors that wait for a goroutine. If there is none the goroutine ends.
func next() (fd int, ok bool) {
	p := &pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.waiting = nil
		p.closing--
		return -1, false
	}
	fd = p.waiting[0]
	p.waiting = p.waiting[1:]
	return fd, true
}

// Control closes the descriptors that have come with a message of a peer that is to send none.
func Control(control []byte) {
	if fds := Descriptors(control); len(fds) > 0 {
		Close(fds...)
	}
}

// Descriptors returns the descriptors that have come with a message.
func Descriptors(control []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if list, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, list...)
		}
	}
	return fds
}

// Now closes a descriptor of which somebody else has a copy, so that this takes no time, and is done when it
// returns. Should it take time all the same it goes on without the caller.
func Now(fd int) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		unix.Close(fd)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
