package ism

import (
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The chime is the part of a bell that wakes a sleeping process: how the ringer strikes it, and
// how the bell goroutine waits for it, is in this file and nowhere else.
//
// It is a pair of connected Unix stream sockets, made by the sleeper, which sends one end to the
// peer. An eventfd would be struck in a third of the time, but an eventfd has one set of flags
// for both processes: its maker can fill the counter and take O_NONBLOCK away, and then the
// peer's write(2) does not return. A send with MSG_DONTWAIT returns, whatever the other end does;
// and that a descriptor is a socket can be asked without /proc.

// chimeDrain is after how many invitations to strike the bytes of the chime are thrown away. They
// need not be read to hear the next stroke, because the poller is edge-triggered; they only must
// not fill the socket buffer, which holds some 270 of them.
const chimeDrain = 64

// strike wakes the process that sleeps at the other end. It does not block. If the socket is full
// there are strokes which the sleeper has not heard, and if it is closed there is no sleeper.
func strike(fd int) {
	var one [1]byte
	unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&one)), 1,
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
}

// checkChime checks that a descriptor which a peer has sent is one that strike can use.
func checkChime(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return violation("chime is no Unix socket")
	}
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || typ != unix.SOCK_STREAM {
		return violation("chime is no stream socket")
	}
	return nil
}

// A chimeWaiter is the sleeper's end of a chime.
type chimeWaiter struct {
	ready func() bool // whether there is something to wake up for; set before the first sleep
	file  *os.File
	raw   syscall.RawConn
	poll  func(fd uintptr) bool // w.look, made once
	armed int                   // strokes that may have come since the last drain
	junk  [4 * chimeDrain]byte

	blocking func(fd uintptr) // w.blockOn, made once
	struck   bool             // its result
	seat     uint32           // its argument
	polled   [1]unix.PollFd
}

// open makes the chime and returns the descriptor that the peer gets.
func (w *chimeWaiter) open() (peerEnd int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socketpair", err)
	}
	w.file = os.NewFile(uintptr(fds[0]), "chime")
	if w.raw, err = w.file.SyscallConn(); err != nil {
		w.file.Close()
		unix.Close(fds[1])
		return -1, err
	}
	w.poll, w.blocking = w.look, w.blockOn
	return fds[1], nil
}

// arm is called before the peer is invited to strike, once.
func (w *chimeWaiter) arm() { w.armed++ }

// sleep returns when the chime was struck and ready says yes, or with an error when the chime was
// closed.
//
// RawConn.Read forgets earlier strokes, then calls look, then waits for strokes since. So a stroke
// that comes before sleep is not missed: the side that strikes has first set the words that ready
// looks at.
func (w *chimeWaiter) sleep() error { return w.raw.Read(w.poll) }

func (w *chimeWaiter) look(fd uintptr) bool {
	if w.armed >= chimeDrain {
		w.drain(fd)
	}
	return w.ready()
}

// block is sleep for a wait that is likely to be short: it waits in the kernel, for blockTime at
// most, with a thread of its own that is woken directly, where sleep is woken by way of the
// poller. It does not notice interrupt. It reports whether the chime was struck, or may have been.
//
// If seat is not 0, the thread waits on that processor, see [sitDown].
func (w *chimeWaiter) block(seat uint32) (struck bool) {
	w.seat = seat
	return w.raw.Control(w.blocking) == nil && w.struck
}

func (w *chimeWaiter) blockOn(fd uintptr) {
	// The side that strikes has first cleared the flag that ready looks at. So no stroke is thrown
	// away here without being heard.
	w.drain(fd)
	if w.struck = w.ready(); w.struck {
		return
	}
	if w.seat != 0 {
		defer sitDown(w.seat)()
	}
	w.polled[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	n, err := unix.Poll(w.polled[:], int(blockTime/time.Millisecond))
	// A peer that has closed its end strikes no more.
	w.struck = err == unix.EINTR || n == 1 && w.polled[0].Revents&(unix.POLLHUP|unix.POLLERR) == 0
}

func (w *chimeWaiter) drain(fd uintptr) {
	w.armed = 0
	unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&w.junk)), uintptr(len(w.junk)),
		unix.MSG_DONTWAIT, 0, 0)
}

// interrupt makes a sleep that has begun, or else the next one, return with an error that resume
// knows.
func (w *chimeWaiter) interrupt() { w.file.SetReadDeadline(longAgo) }

var longAgo = time.Unix(1, 0)

// resume takes the error of a sleep, and reports whether it was interrupted and can be called again.
func (w *chimeWaiter) resume(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && w.file.SetReadDeadline(time.Time{}) == nil
}

// close makes sleep return with an error, now and later.
func (w *chimeWaiter) close() {
	w.raw.Control(func(fd uintptr) { empty(int(fd)) })
	w.file.Close()
}
