package run

import (
	"encoding/binary"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
)

// A program plays the library.
type program struct {
	t  *testing.T
	s  *supervisor
	fd int
}

func (s *supervisor) program(t *testing.T) *program { return s.dial(t, s.path) }

func (s *supervisor) dial(t *testing.T, path string) *program {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	return &program{t, s, fd}
}

func (p *program) send(b []byte, fds ...int) {
	p.t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(p.fd, b, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		p.t.Fatalf("send: %v", err)
	}
}

// reply returns an answer and its descriptor, -1 if it has none. The status is 99 if the supervisor has hung up.
func (p *program) reply() (status, int) {
	p.t.Helper()
	b, control := make([]byte, 64), make([]byte, 64)
	n, with, _, _, err := unix.Recvmsg(p.fd, b, control, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR {
		n, with, _, _, err = unix.Recvmsg(p.fd, b, control, unix.MSG_CMSG_CLOEXEC)
	}
	if err == unix.ECONNRESET || err == nil && n == 0 {
		return 99, -1
	}
	if err != nil || n != replyLen {
		p.t.Fatalf("reply: %d bytes, %v", n, err)
	}
	return status(binary.NativeEndian.Uint32(b[4:])), append(dispose.Descriptors(control[:with]), -1)[0]
}

// TestIsTCP has a socket that proves a connection be one of TCP, or of MPTCP, which has the same
// ports: not one of another protocol that has stream sockets.
func TestIsTCP(t *testing.T) {
	for protocol, want := range map[int]bool{unix.IPPROTO_TCP: true, unix.IPPROTO_MPTCP: true, unix.IPPROTO_SCTP: false, 0: false} {
		if got := hasTCPPorts(protocol); got != want {
			t.Errorf("hasTCPPorts(%d) = %v, want %v", protocol, got, want)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			continue // the kernel has it not
		}
		if got := isTCP(fd); got != (want || protocol == 0) {
			t.Errorf("a stream socket made with protocol %d: isTCP = %v", protocol, got)
		}
		unix.Close(fd)
	}
	l := listenTCP(t, "127.0.0.1:0") // of MPTCP, if there is that
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	accepted, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	raw, err := accepted.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if !isTCP(int(fd)) {
			t.Error("what a listener of package net has accepted is not TCP")
		}
	})
}

// readFrom is unix.Read that goes on when it is interrupted, as the runtime interrupts threads; where there is a time limit the kernel does not.
func readFrom(fd int, b []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, b); err != unix.EINTR {
			return n, err
		}
	}
}
