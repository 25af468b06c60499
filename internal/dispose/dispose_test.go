package dispose

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lingering returns a connected TCP socket whose close waits, until the test ends: it has bytes to send that nobody takes.
func lingering(t *testing.T) (fd int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	to := l.Addr().(*net.TCPAddr).AddrPort()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() }) // with bytes unread, which resets it
	b := make([]byte, 1<<20)
	for err == nil {
		err = unix.Sendto(fd, b, unix.MSG_DONTWAIT, nil)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1000}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestCloseMany has nobody wait who closes a descriptor while as many closes as may be do; in time it is closed.
func TestCloseMany(t *testing.T) {
	fd := lingering(t)
	other, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other[0])
	unix.SetsockoptTimeval(other[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	busy := func(n int) {
		pending.mu.Lock()
		pending.closing += n
		pending.mu.Unlock()
	}
	atRest := func() bool {
		pending.mu.Lock()
		defer pending.mu.Unlock()
		return pending.closing == 0
	}
	for start := time.Now(); !atRest(); time.Sleep(time.Millisecond) { // a goroutine of an earlier test would take what is to wait
		if time.Since(start) > 20*time.Second {
			t.Fatal("an earlier test's descriptor is still being closed")
		}
	}
	busy(maxClosing)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Close(fd)
		Close(other[1])
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("Close waits for a close")
	}
	time.Sleep(100 * time.Millisecond) // a close that should not be
	if n, _, err := unix.Recvfrom(other[0], make([]byte, 1), unix.MSG_DONTWAIT); err != unix.EAGAIN {
		t.Errorf("one goroutine too many closes: Recvfrom = %d, %v", n, err)
	}
	busy(-maxClosing)
	Close(-1) // whose goroutine takes those that wait
	n, _, err := unix.Recvfrom(other[0], make([]byte, 1), 0)
	for err == unix.EINTR {
		n, _, err = unix.Recvfrom(other[0], make([]byte, 1), 0)
	}
	if n != 0 || err != nil {
		t.Errorf("what waited is not closed: Recvfrom = %d, %v", n, err)
	}
}

// TestHurry closes sockets that linger, by themselves and in a message that nobody has read.
func TestHurry(t *testing.T) {
	alone, sent := lingering(t), lingering(t)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(ends[0], []byte{1}, unix.UnixRights(sent), nil, 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(sent)
	f := os.NewFile(uintptr(ends[1]), "socket")
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	closed := make(chan bool)
	CloseThen(func() { closed <- true }, alone)
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Error("a socket lingers")
	}
	Conn(c.(*net.UnixConn))
	// Its end is seen when it is closed at last.
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		pending.mu.Lock()
		n := pending.closing
		pending.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Since(start) > 20*time.Second {
			t.Fatal("a socket in a message lingers")
		}
	}
	unix.Close(ends[0])
}
