package conn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Urgent data is MSG_OOB of a socket. The Go poller does not wait for it, so a call that waits has
// an epoll instance, for which that poller waits. It is made when it is first needed.

// An urgentSocket is the urgent data of a connection without SMC.
type urgentSocket struct {
	socket byteSocket

	mu       sync.Mutex
	closed   bool
	deadline time.Time // of reads

	byte, news *os.File // epoll instances of ReadUrgent and WaitUrgent, nil before their first wait
}

// setDeadline is told the deadline of reads.
func (u *urgentSocket) setDeadline(t time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.deadline = t
	for _, f := range []*os.File{u.byte, u.news} {
		if f != nil {
			f.SetReadDeadline(t) // the error is that it is closed
		}
	}
}

// close ends all waits.
func (u *urgentSocket) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for _, f := range []*os.File{u.byte, u.news} {
		if f != nil {
			f.Close()
		}
	}
}

// open returns the epoll instance in *file, which it makes if there is none.
func (u *urgentSocket) open(file **os.File) (*os.File, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return nil, net.ErrClosed
	case *file != nil:
		return *file, nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err = unix.SetNonblock(fd, true); err == nil {
		err = onSocket(u.socket, func(watched int) error {
			event := unix.EpollEvent{Events: unix.EPOLLPRI | unix.EPOLLRDHUP | unix.EPOLLET,
				Fd: int32(watched)}
			return os.NewSyscallError("epoll_ctl", unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, watched, &event))
		})
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "epoll")
	if err = f.SetReadDeadline(u.deadline); err != nil {
		f.Close()
		return nil, err
	}
	*file = f
	return f, nil
}

// wait calls try until it reports true or an error, again each time when something has happened on
// the socket, of which it is told. Of several callers one waits for that, and the others for that
// one.
func (u *urgentSocket) wait(file **os.File, try func(fd int, events uint32) (done bool, err error)) error {
	f, err := u.open(file)
	if err != nil {
		return err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return net.ErrClosed
	}
	waited := raw.Read(func(epoll uintptr) (done bool) {
		events := make([]unix.EpollEvent, 1)
		unix.EpollWait(int(epoll), events, 0) // first: a later event is news again
		err = onSocket(u.socket, func(fd int) (err error) {
			done, err = try(fd, events[0].Events)
			return err
		})
		return done || err != nil
	})
	switch {
	case errors.Is(waited, os.ErrDeadlineExceeded):
		return os.ErrDeadlineExceeded
	case waited != nil:
		return net.ErrClosed
	}
	return err
}

// urgentEnd is the error for a socket from which no urgent data can come any more, nil for others.
func urgentEnd(fd int) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	if n, err := unix.Poll(fds, 0); n <= 0 {
		if err == unix.EINTR {
			err = nil
		}
		return err
	}
	if fds[0].Revents&unix.POLLERR != 0 { // which error it is, is for Read to tell
		return syscall.ECONNRESET
	}
	return io.EOF
}

// onSocket calls f with the descriptor of a socket.
func onSocket(socket syscall.Conn, f func(fd int) error) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return net.ErrClosed
	}
	return failed
}

// write sends the last byte alone: of a send that is cut short the kernel would mark another one.
func (u *urgentSocket) write(b []byte) (n int, err error) {
	last := max(len(b)-1, 0)
	if n, err = u.socket.Write(b[:last]); err != nil || len(b) == 0 {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return n, err
	}
	raw, err := u.socket.SyscallConn()
	if err != nil {
		return n, err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		for {
			_, failed = unix.SendmsgN(int(fd), b[last:], nil, nil,
				unix.MSG_OOB|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if failed != unix.EINTR {
				return failed != unix.EAGAIN
			}
		}
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, os.ErrDeadlineExceeded
	case err != nil:
		return n, net.ErrClosed
	case failed != nil:
		return n, os.NewSyscallError("send", failed)
	}
	return len(b), nil
}

// read returns the newest urgent byte.
func (u *urgentSocket) read() (value byte, err error) {
	err = u.wait(&u.byte, func(fd int, _ uint32) (bool, error) {
		b := make([]byte, 1)
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_OOB|unix.MSG_DONTWAIT)
		switch {
		case n == 1:
			value = b[0]
			return true, nil
		case err == unix.EINVAL:
			if inline, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE); err == nil &&
				inline != 0 {
				return false, syscall.EINVAL
			}
		case err != nil && err != unix.EAGAIN && err != unix.EINTR:
			return false, os.NewSyscallError("recv", err)
		}
		return false, urgentEnd(fd)
	})
	return value, err
}

// await returns when urgent data has come.
func (u *urgentSocket) await() error {
	return u.wait(&u.news, func(fd int, events uint32) (bool, error) {
		if events&unix.EPOLLPRI != 0 {
			return true, nil
		}
		return false, urgentEnd(fd)
	})
}

// setInline sets SO_OOBINLINE.
func (u *urgentSocket) setInline(inline bool) error {
	value := 0
	if inline {
		value = 1
	}
	return onSocket(u.socket, func(fd int) error {
		return os.NewSyscallError("setsockopt",
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, value))
	})
}

// atMark asks SIOCATMARK.
func (u *urgentSocket) atMark() (at bool, err error) {
	err = onSocket(u.socket, func(fd int) error {
		value, err := unix.IoctlGetInt(fd, unix.SIOCATMARK)
		at = value != 0
		return os.NewSyscallError("ioctl", err)
	})
	return at, err
}
