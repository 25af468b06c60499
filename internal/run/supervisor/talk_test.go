package supervisor

import (
	"encoding/binary"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/proto"
)

// A program plays the library.
type program struct {
	t  *testing.T
	s  *supervisor
	fd int
}

func (s *supervisor) program(t *testing.T) *program { return s.dial(t, s.Path) }

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
func (p *program) reply() (proto.Status, int) {
	p.t.Helper()
	b, control := make([]byte, 64), make([]byte, 64)
	n, with, _, _, err := unix.Recvmsg(p.fd, b, control, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR {
		n, with, _, _, err = unix.Recvmsg(p.fd, b, control, unix.MSG_CMSG_CLOEXEC)
	}
	if err == unix.ECONNRESET || err == nil && n == 0 {
		return 99, -1
	}
	if err != nil || n != proto.ReplyLen {
		p.t.Fatalf("reply: %d bytes, %v", n, err)
	}
	return proto.Status(binary.NativeEndian.Uint32(b[4:])), append(dispose.Descriptors(control[:with]), -1)[0]
}

// testMessage is an encoded message.
func testMessage(m proto.Message) []byte { return m.Append(nil) }

// readFrom is unix.Read that goes on when it is interrupted, as the runtime interrupts threads; where there is a time limit the kernel does not.
func readFrom(fd int, b []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, b); err != unix.EINTR {
			return n, err
		}
	}
}

// listenTCP returns a listener that is one of TCP in the kernel, too, and not of multipath TCP. It is closed when the test ends.
func listenTCP(t *testing.T, address string) *net.TCPListener {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}
