package ring

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
)

// These are the methods of an End that a socket has, too.

// Close implements [net.Conn]. The kernel closes descriptors that wait in the socket, and that takes as long
// as their sender wishes: another goroutine has it do that.
func (e *End) Close() error {
	e.closed.Store(true)
	kept := -1
	e.raw.Control(func(fd uintptr) {
		if copied, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			kept = copied
		}
	})
	err := e.socket.Close() // ends the calls that wait
	e.in.close(kept)
	e.out.close()
	e.mu.Lock()
	if e.gift != nil {
		unmap(e.gift, 2*giftBytes)
		e.gift = nil
	}
	e.mu.Unlock()
	if kept >= 0 {
		dispose.Close(kept)
	}
	return err
}

// CloseRead ends receiving. Bytes that are in the ring are read still.
func (e *End) CloseRead() error {
	e.mu.Lock()
	if m := e.in.ring; m != nil {
		m.half(atShut).Store(1) // its writer needs no token
	}
	e.mu.Unlock()
	return e.socket.CloseRead()
}

// CloseWrite ends sending.
func (e *End) CloseWrite() error {
	e.leaveOut(false)
	return e.socket.CloseWrite()
}

// LeaveOut has all bytes that are written from now on go in-band, where urgent data can be sent.
func (e *End) LeaveOut() error {
	if err := e.leaveOut(true); err != nil {
		return opError("write", err)
	}
	return nil
}

// SetDeadline implements [net.Conn].
func (e *End) SetDeadline(t time.Time) error {
	e.in.deadline.set(e.began, t)
	e.out.deadline.set(e.began, t)
	return e.socket.SetDeadline(t)
}

// SetReadDeadline implements [net.Conn].
func (e *End) SetReadDeadline(t time.Time) error {
	e.in.deadline.set(e.began, t)
	return e.socket.SetReadDeadline(t)
}

// SetWriteDeadline implements [net.Conn].
func (e *End) SetWriteDeadline(t time.Time) error {
	e.out.deadline.set(e.began, t)
	return e.socket.SetWriteDeadline(t)
}

// LocalAddr implements [net.Conn].
func (e *End) LocalAddr() net.Addr { return e.socket.LocalAddr() }

// RemoteAddr implements [net.Conn].
func (e *End) RemoteAddr() net.Addr { return e.socket.RemoteAddr() }

// SetReadBuffer sets the size of the socket's buffer, which has no effect on rings.
func (e *End) SetReadBuffer(bytes int) error { return e.socket.SetReadBuffer(bytes) }

// SetWriteBuffer is SetReadBuffer for sending.
func (e *End) SetWriteBuffer(bytes int) error { return e.socket.SetWriteBuffer(bytes) }

// SyscallConn returns the socket, for calls that receive and send no bytes.
func (e *End) SyscallConn() (syscall.RawConn, error) { return e.socket.SyscallConn() }
