package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A descriptor is a socket that is waited for by means of an epoll instance of its own, which in turn
// is in the runtime's poller: it tells the runtime that there is something to read once somebody
// waits for it, and nothing else.
//
// A socket that is in the runtime's poller itself is watched all the time, and for room to write
// too. What a UDP socket sends over loopback or veth leaves it at once and makes room, so each send wakes
// the thread that waits for the runtime; and so does each datagram that comes while the reader is
// awake. Both happen on the processor that the peer is about to need. To sleep in the system call
// is no better: the runtime's monitor thread wakes up whenever a thread comes out of a long one.
type descriptor struct {
	fd int

	mu     sync.RWMutex // held for reading while fd is in use, and for writing to close it
	closed atomic.Bool

	epoll   int // has fd for reading, once each time it is armed
	file    *os.File
	readers syscall.RawConn // of file

	// Who waits for room to write, which is rare, sleeps in ppoll.
	writing sync.Mutex // held by the one who waits
	wake    int        // an eventfd, readable once the descriptor is closed
}

// newDescriptor takes fd over, which does not block. It is closed if there is an error.
func newDescriptor(fd int) (d *descriptor, err error) {
	d = &descriptor{fd: fd, epoll: -1, wake: -1}
	defer func() {
		if err != nil {
			d.Close()
			d = nil
		}
	}()
	if d.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return d, fmt.Errorf("udp: eventfd: %w", err)
	}
	if d.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return d, fmt.Errorf("udp: epoll: %w", err)
	}
	if err := unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLONESHOT}); err != nil {
		return d, fmt.Errorf("udp: epoll: %w", err)
	}
	// Only what does not block is taken into the runtime's poller.
	if err := unix.SetNonblock(d.epoll, true); err != nil {
		return d, fmt.Errorf("udp: epoll: %w", err)
	}
	d.file = os.NewFile(uintptr(d.epoll), "udp")
	if err := d.file.SetReadDeadline(time.Time{}); err != nil { // works only if it is in the poller
		return d, fmt.Errorf("udp: poller: %w", err)
	}
	d.readers, err = d.file.SyscallConn()
	return d, err
}

// Control calls f with the descriptor, which stays open until f returns. The error is net.ErrClosed.
func (d *descriptor) Control(f func(fd uintptr)) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed.Load() {
		return net.ErrClosed
	}
	f(uintptr(d.fd))
	return nil
}

// A readWait is a call of Read, made once and used again, so that waiting allocates nothing.
type readWait struct {
	d   *descriptor
	f   func(fd uintptr) bool
	try func(uintptr) bool
}

func newReadWait(f func(fd uintptr) bool) *readWait {
	w := &readWait{f: f}
	w.try = w.once
	return w
}

func (w *readWait) once(uintptr) bool {
	d := w.d
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed.Load() || w.f(uintptr(d.fd)) {
		return true
	}
	// What has come since f looked is found here, and reported at once.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
	return unix.EpollCtl(d.epoll, unix.EPOLL_CTL_MOD, d.fd, &event) != nil
}

// Read calls w's function until it reports true, and waits for something to read before each call but
// the first. The error is net.ErrClosed, or os.ErrDeadlineExceeded. One call at a time waits.
func (d *descriptor) Read(w *readWait) error {
	w.d = d
	err := d.readers.Read(w.try)
	switch {
	case d.closed.Load():
		return net.ErrClosed
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return net.ErrClosed
}

// setReadDeadline sets the time until which Read waits; zero for ever.
func (d *descriptor) setReadDeadline(t time.Time) error {
	if d.file.SetReadDeadline(t) != nil {
		return net.ErrClosed
	}
	return nil
}

// Write calls f until it reports true, and waits for room to write before each call but the first, no
// longer than until deadline. The error is net.ErrClosed, or os.ErrDeadlineExceeded.
func (d *descriptor) Write(f func(fd uintptr) bool, deadline time.Time) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.mu.RLock()
	defer d.mu.RUnlock()
	for {
		switch {
		case d.closed.Load():
			return net.ErrClosed
		case f(uintptr(d.fd)):
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		timeout := unix.NsecToTimespec(left.Nanoseconds())
		fds := [2]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLOUT}, {Fd: int32(d.wake), Events: unix.POLLIN}}
		unix.Ppoll(fds[:], &timeout, nil) // whatever it says, f looks
	}
}

// Close wakes all who wait, waits until nobody uses the descriptor any more, and closes it. Closing
// twice is no error.
func (d *descriptor) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	if d.wake >= 0 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		unix.Write(d.wake, one[:])
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := unix.Close(d.fd)
	switch {
	case d.file != nil:
		d.file.Close() // owns epoll, and wakes readers
	case d.epoll >= 0:
		unix.Close(d.epoll)
	}
	if d.wake >= 0 {
		unix.Close(d.wake)
	}
	return err
}
