// Package dispose closes descriptors that another program has sent, so that nobody waits for it.
package dispose

import (
	"net"
	"runtime"
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

	// hurryTime is how long a system call may take before it is hurried for the first time. After each time
	// the next one takes twice as long, up to maxHurryTime.
	hurryTime    = 10 * time.Millisecond
	maxHurryTime = time.Second

	// patience bounds how long Now waits for a close that takes no time.
	patience = 100 * time.Millisecond
)

// pending holds the descriptors that Close has not closed yet.
var pending struct {
	mu      sync.Mutex
	closing int   // goroutines that close
	waiting []job // for which there is no goroutine
}

// A job is a number of descriptors to close, and a function to call then; nil for none.
type job struct {
	fds  []int
	done func()
}

// Close closes descriptors that a program has sent, or a socket in which some may wait. Negative ones are
// ignored. The last close of a TCP socket with SO_LINGER takes as long as the program wants, unless it is
// hurried ([Hurry]). The close of a file of a file system in user space takes so long all the same. So the
// caller never waits: if too many closes take their time, further descriptors stay open behind them. Any
// goroutine may call it.
func Close(fds ...int) { CloseThen(nil, fds...) }

// CloseThen is [Close], and calls a function when the descriptors are closed, unless it is nil.
func CloseThen(done func(), fds ...int) {
	p := &pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing >= maxClosing { // rule: TestCloseMany
		p.waiting = append(p.waiting, job{fds, done})
		return
	}
	p.closing++
	go func() {
		closeAll(job{fds, done}, false)
		for j, ok := next(); ok; j, ok = next() {
			closeAll(j, true) // whoever sends so many means no good
		}
	}()
}

// Conn closes a Unix socket, with the descriptors in messages that nobody has read. It does not wait.
func Conn(c *net.UnixConn) {
	fd := -1
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(s uintptr) {
			unix.Shutdown(int(s), unix.SHUT_RDWR) // for whoever reads
			if fd, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0); err != nil {
				fd = -1
			}
		})
	}
	if fd < 0 { // closed, or there are no more descriptors
		go Hurry(func() { c.Close() })
		return
	}
	c.Close() // which takes no time, as fd is a copy
	Close(fd)
}

// next takes one of the jobs that wait for a goroutine. If there is none the goroutine ends.
func next() (j job, ok bool) {
	p := &pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.waiting = nil
		p.closing--
		return job{}, false
	}
	j = p.waiting[0]
	p.waiting = p.waiting[1:]
	return j, true
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
		Hurry(func() { unix.Close(fd) })
	}()
	select {
	case <-closed:
	case <-time.After(patience):
	}
}

// closeAll closes descriptors. Once one has taken time no other one of the job lingers.
func closeAll(j job, hurried bool) {
	for _, fd := range j.fds {
		if fd < 0 {
			continue
		}
		if hurried {
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		}
		hurried = Hurry(func() { unix.Close(fd) }) || hurried
	}
	if j.done != nil {
		j.done()
	}
}

// Hurry calls a function that makes a system call, in which descriptors of others may be closed. It sends
// signals to the thread after some time: a signal ends the lingering of sockets, of this and all others that
// the system call closes. It reports whether that was needed. The signal is the one by which the runtime
// interrupts its threads, so programs know that it comes without a reason.
func Hurry(f func()) (late bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	process, thread := unix.Getpid(), unix.Gettid()
	done := make(chan struct{})
	ended := make(chan struct{})
	timer := time.AfterFunc(hurryTime, func() {
		defer close(ended)
		for wait := hurryTime; ; wait = min(2*wait, maxHurryTime) {
			unix.Tgkill(process, thread, unix.SIGURG) // rule: TestHurry
			select {
			case <-done:
				return
			case <-time.After(wait):
			}
		}
	})
	f()
	close(done)
	if timer.Stop() {
		return false
	}
	<-ended // or the signal may be another function's
	return true
}
