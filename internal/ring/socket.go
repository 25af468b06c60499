package ring

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
)

// token is a byte of the socket that means "look".
var token = [1]byte{0}

// A receiver receives bytes of a socket without waiting. A peer may send descriptors along with any byte:
// the kernel closes those for which there is no room, and that takes as long as the sender wishes. It
// allocates nothing, as a function of package unix does for the sender's name.
type receiver struct {
	header  unix.Msghdr
	part    unix.Iovec
	control [dispose.Room]byte
}

// receive receives at most len(b) bytes, which is more than none.
func (r *receiver) receive(fd uintptr, b []byte) (n int, errno syscall.Errno) {
	r.part.Base = &b[0]
	r.part.SetLen(len(b))
	r.header = unix.Msghdr{Iov: &r.part, Control: &r.control[0]}
	r.header.SetIovlen(1)
	r.header.SetControllen(len(r.control))
	const flags = unix.MSG_DONTWAIT | unix.MSG_CMSG_CLOEXEC
	got, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&r.header)), flags)
	r.part.Base = nil
	if errno != 0 {
		return 0, errno
	}
	if r.header.Controllen > 0 {
		dispose.Control(r.control[:r.header.Controllen])
	}
	return int(got), 0
}

// peek reports whether a byte is there: 1, 0 at the end of the stream, or EAGAIN. b has room for it.
func peek(fd uintptr, b *[1]byte) (n int, errno syscall.Errno) {
	for {
		got, _, errno := unix.Syscall6(
			unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(b)), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return int(got), errno
		}
	}
}

// sendToken sends one token without waiting.
func sendToken(fd uintptr) syscall.Errno {
	for {
		_, _, errno := unix.Syscall6(
			unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&token)), 1, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0,
			0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// hungUp reports whether the peer has closed its end, or the connection has failed.
func hungUp(fd uintptr) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(fds[:], 0)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

// unread is the kernel's count of the data that the peer has not taken out of its socket. It is 0 only if
// there are none.
func unread(fd uintptr) (int, error) { return unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }
