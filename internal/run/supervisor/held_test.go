package supervisor

import (
	"net"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/smctest"
)

// heldSocket returns a connected TCP socket on which a system call waits until the test ends: each other
// call that needs the socket waits for that one. Its memory is filled by nobody; another user's would be
// a file of its own file system.
func heldSocket(t *testing.T) (fd int, m proto.Message) {
	t.Helper()
	uffd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skipf("needs root and userfaultfd: %v", errno)
	}
	const size = 1 << 16
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	api := [3]uint64{0xaa} // struct uffdio_api
	if _, _, errno = unix.Syscall(unix.SYS_IOCTL, uffd, 0xc018aa3f, uintptr(unsafe.Pointer(&api))); errno != 0 {
		t.Fatal(errno)
	}
	start := uint64(uintptr(unsafe.Pointer(&memory[0])))
	register := [4]uint64{start, size, 1} // struct uffdio_register, of pages that are missing
	if _, _, errno = unix.Syscall(unix.SYS_IOCTL, uffd, 0xc020aa00, uintptr(unsafe.Pointer(&register))); errno != 0 {
		t.Fatal(errno)
	}
	l := listenTCP(t, "127.0.0.1:0")
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	m.Local, m.Peer = c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	sent := make(chan struct{})
	go func() {
		unix.Syscall(unix.SYS_WRITE, f.Fd(), uintptr(start), size)
		close(sent)
	}()
	var fault [32]byte // struct uffd_msg: it waits
	if n, err := unix.Read(int(uffd), fault[:]); n != len(fault) || err != nil {
		t.Fatal(n, err)
	}
	t.Cleanup(func() {
		unix.Close(int(uffd)) // the memory is zeros then
		<-sent
		f.Close()
		c.Close()
		unix.Munmap(memory)
	})
	return int(f.Fd()), m
}

// TestOutsideHeld has another user show sockets on which a call of its own waits for as long as it likes: our own programs
// are served meanwhile.
func TestOutsideHeld(t *testing.T) {
	s := newTestSupervisor(t)
	fd, m := heldSocket(t)
	for _, kind := range []proto.Kind{proto.KindMeet, proto.KindClaim} {
		m.Kind = kind
		s.dial(t, "@gosmc-run/"+filepath.Base(s.Path)).send(testMessage(m), fd)
	}
	smctest.Eventually(t, time.Minute, "both talks", func() bool {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		return s.outsiders.count == 2
	})
	p := s.dial(t, s.Path)
	p.send(testMessage(proto.Message{Kind: proto.KindBoard}))
	got, board := p.reply()
	if got != proto.StatusOK {
		t.Errorf("one of our own: status %d", got)
	}
	unix.Close(board)
}
