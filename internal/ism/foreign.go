package ism

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A peer may send any descriptor along with a message, and it may be the last one of its file. The
// close of a TCP socket with SO_LINGER then takes as long as its owner wishes. The close of a file
// whose file system is a process (FUSE) takes as long as that process does. The close may be one of
// ours; or the kernel's, within a system call that throws descriptors away: recvmsg that has no
// room for all descriptors, close of a socket in which there are unread ones.
//
// The first kind is waited for by closeForeign, not for long. For the second kind there is
// [unix.RawSyscall]: a thread that the runtime believes to be running is sent a signal after 10 ms,
// because it might be in a loop, and a signal ends the lingering.

// closing counts calls of closeForeign that were not waited for, each with a thread. No peering
// begins when there are many.
var closing atomic.Int32

// closeForeign closes descriptors of a peer that are not known to be harmless.
func closeForeign(fds ...int) {
	unknown := fds[:0:0]
	for _, fd := range fds {
		// Files that know seals are memory.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil {
			unix.Close(fd)
		} else {
			unknown = append(unknown, fd)
		}
	}
	if len(unknown) == 0 {
		return
	}
	closing.Add(1)
	done := make(chan struct{})
	go func() {
		for _, fd := range unknown {
			unix.Close(fd)
		}
		closing.Add(-1)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(foreignCloseTime):
	}
}

// empty throws away the unread messages of a Unix socket, and sees to it that no more come. Then a
// close takes no longer than any other.
func empty(fd int) {
	unix.Shutdown(fd, unix.SHUT_RDWR)
	typ, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	var junk [maxMessage]byte
	for range maxUnread {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&junk)), uintptr(len(junk)),
			unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == unix.EINTR || errno == unix.ECONNRESET:
		case errno != 0, n == 0 && typ == unix.SOCK_STREAM: // elsewhere an empty message looks like the end
			return
		}
	}
}
