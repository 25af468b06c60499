package main

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// connectTime bounds connect(2), and each read and write: the guest is slow, but not that slow.
const connectTime = 90 * time.Second

// A socket is an AF_SMC socket, which blocks. It is a talk.Conn.
type socket struct {
	fd    int
	close sync.Once
}

func newSocket() (*socket, error) {
	const overTCP4 = 0 // SMCPROTO_SMC, linux/smc.h
	fd, err := unix.Socket(unix.AF_SMC, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, overTCP4)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd}
	wait := unix.NsecToTimeval(int64(connectTime))
	for _, opt := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, opt, &wait); err != nil {
			s.Close()
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	return s, nil
}

// rawAddr is addr as AF_SMC wants it: a struct sockaddr_in, for which package unix asks for a
// socket of AF_INET.
func rawAddr(addr netip.AddrPort) unix.RawSockaddrInet4 {
	raw := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: addr.Addr().As4()}
	port := (*[2]byte)(unsafe.Pointer(&raw.Port))
	port[0], port[1] = byte(addr.Port()>>8), byte(addr.Port())
	return raw
}

func (s *socket) withAddr(call uintptr, name string, addr netip.AddrPort) error {
	raw := rawAddr(addr)
	if _, _, errno := unix.Syscall(call, uintptr(s.fd), uintptr(unsafe.Pointer(&raw)), unsafe.Sizeof(raw)); errno != 0 {
		return os.NewSyscallError(name, errno)
	}
	return nil
}

func connect(dest netip.AddrPort) (*socket, error) {
	s, err := newSocket()
	if err != nil {
		return nil, err
	}
	if err := s.withAddr(unix.SYS_CONNECT, "connect", dest); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func listen(port uint16) (*socket, error) {
	s, err := newSocket()
	if err != nil {
		return nil, err
	}
	err = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = s.withAddr(unix.SYS_BIND, "bind", netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	}
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(s.fd, 128))
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *socket) accept() (*socket, error) {
	fd, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(s.fd), 0, 0, 0, 0, 0) // accept is not everywhere
	for errno == unix.EINTR {
		fd, _, errno = unix.Syscall6(unix.SYS_ACCEPT4, uintptr(s.fd), 0, 0, 0, 0, 0)
	}
	if errno != 0 {
		return nil, os.NewSyscallError("accept", errno)
	}
	return &socket{fd: int(fd)}, nil
}

// name returns a port of the socket as it is in headers. AF_SMC's getsockname has an address of its
// TCP socket.
func (s *socket) name(call uintptr) (port [2]byte, errno unix.Errno) {
	var raw unix.RawSockaddrInet4
	size := uint32(unsafe.Sizeof(raw))
	_, _, errno = unix.Syscall(call, uintptr(s.fd), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)))
	return *(*[2]byte)(unsafe.Pointer(&raw.Port)), errno
}

// port returns the port of the socket here, 0 if it has none.
func (s *socket) port() uint16 {
	port, _ := s.name(unix.SYS_GETSOCKNAME)
	return uint16(port[0])<<8 | uint16(port[1])
}

// mode returns the mode that the kernel has given the connection.
func (s *socket) mode() string {
	local, errno := s.name(unix.SYS_GETSOCKNAME)
	if errno != 0 {
		return fmt.Sprintf("mode=unknown (getsockname: %v)", errno)
	}
	remote, errno := s.name(unix.SYS_GETPEERNAME)
	if errno != 0 {
		return fmt.Sprintf("mode=unknown (getpeername: %v)", errno)
	}
	mode, err := diagMode(local, remote)
	if err != nil {
		return fmt.Sprintf("mode=unknown (%v)", err)
	}
	return mode
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := unix.Read(s.fd, b)
	for err == unix.EINTR { // the runtime's signals
		n, err = unix.Read(s.fd, b)
	}
	switch {
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return n, nil
}

func (s *socket) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, err := unix.Write(s.fd, b[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, os.NewSyscallError("write", err)
		}
		done += n
	}
	return len(b), nil
}

// WriteUrgent sends with MSG_OOB.
func (s *socket) WriteUrgent(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, err := unix.SendmsgN(s.fd, b[done:], nil, nil, unix.MSG_OOB)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, os.NewSyscallError("send", err)
		}
		done += n
	}
	return len(b), nil
}

// WaitUrgent waits for POLLPRI.
func (s *socket) WaitUrgent() error {
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLPRI}}
	for {
		n, err := unix.Poll(fds, int(connectTime.Milliseconds()))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("poll", err)
		case n == 0:
			return os.ErrDeadlineExceeded
		case fds[0].Revents&unix.POLLPRI != 0:
			return nil
		default:
			return fmt.Errorf("poll: events %#x", fds[0].Revents)
		}
	}
}

// ReadUrgent receives with MSG_OOB.
func (s *socket) ReadUrgent() (byte, error) {
	b := make([]byte, 1)
	n, _, err := unix.Recvfrom(s.fd, b, unix.MSG_OOB)
	for err == unix.EINTR {
		n, _, err = unix.Recvfrom(s.fd, b, unix.MSG_OOB)
	}
	if err == nil && n != 1 {
		return 0, fmt.Errorf("recv with MSG_OOB: %d bytes", n)
	}
	return b[0], os.NewSyscallError("recv", err)
}

// AtUrgentMark is SIOCATMARK.
func (s *socket) AtUrgentMark() (bool, error) {
	at, err := unix.IoctlGetInt(s.fd, unix.SIOCATMARK)
	return at != 0, os.NewSyscallError("ioctl", err)
}

// SetUrgentInline is SO_OOBINLINE.
func (s *socket) SetUrgentInline(inline bool) error {
	value := 0
	if inline {
		value = 1
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, value))
}

func (s *socket) CloseWrite() error {
	return os.NewSyscallError("shutdown", unix.Shutdown(s.fd, unix.SHUT_WR))
}

func (s *socket) SetLinger(seconds int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(seconds)}))
}

func (s *socket) Close() (err error) {
	s.close.Do(func() {
		unix.Shutdown(s.fd, unix.SHUT_RDWR) // ends a system call of another goroutine
		err = os.NewSyscallError("close", unix.Close(s.fd))
	})
	return err
}
