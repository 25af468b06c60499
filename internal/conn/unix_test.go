package conn

import (
	"bytes"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/ring"
	"github.com/gosmc/smc/internal/smctest"
)

// newUnixConns returns two connections over a pair, whose first direction is in a ring.
func newUnixConns(t *testing.T) (from, to *Unix) {
	t.Helper()
	a, b := newUnixPair(t)
	lentA, lentB := newTCPPair(t)
	from = NewUnix(newPending(lentA), ring.New(a, -1, true), 0)
	to = NewUnix(newPending(lentB), ring.New(b, -1, false), 0)
	t.Cleanup(func() { from.Close(); to.Close() })
	from.SetDeadline(time.Now().Add(time.Minute))
	to.SetDeadline(time.Now().Add(time.Minute))
	for b := make([]byte, 16<<10); ; {
		if in, _ := to.Rings(); in {
			return from, to
		}
		if _, err := from.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(to, b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnixUrgent sends urgent data behind bytes in a ring: the mark is where it was sent, and the byte comes
// at once.
func TestUnixUrgent(t *testing.T) {
	from, to := newUnixConns(t)
	if _, err := from.Write([]byte("before")); err != nil {
		t.Fatal(err)
	}
	if n, err := from.WriteUrgent([]byte("and!")); n != 4 || err != nil {
		t.Fatalf("WriteUrgent = %d, %v", n, err)
	}
	if _, err := from.Write([]byte("behind")); err != nil {
		t.Fatal(err)
	}
	if c, err := to.ReadUrgent(); c != '!' || err != nil {
		t.Errorf("ReadUrgent = %q, %v", c, err)
	}
	for _, want := range []string{"before", "and"} {
		if at, err := to.AtUrgentMark(); at || err != nil {
			t.Errorf("before %q: AtUrgentMark = %v, %v", want, at, err)
		}
		b := make([]byte, len(want))
		if _, err := io.ReadFull(to, b); err != nil || string(b) != want {
			t.Fatalf("Read = %q, %v; want %q", b, err, want)
		}
	}
	if at, err := to.AtUrgentMark(); !at || err != nil {
		t.Errorf("behind the bytes before it: AtUrgentMark = %v, %v", at, err)
	}
	b := make([]byte, 10)
	if n, err := to.Read(b); err != nil || string(b[:n]) != "behind" {
		t.Errorf("Read = %q, %v", b[:n], err)
	}
	if _, out := from.Rings(); out {
		t.Error("the direction has a ring after urgent data")
	}
}

// TestUnixAlive has a program look at the socket of an idle connection, as pools do before they use one: no
// token tells of bytes that were read.
func TestUnixAlive(t *testing.T) {
	from, to := newUnixConns(t)
	to.SetReadDeadline(time.Now().Add(time.Millisecond))
	to.Read(make([]byte, 1)) // sleeps: the next bytes come with a token
	to.SetReadDeadline(time.Now().Add(time.Minute))
	look := func() (n int, err error) {
		raw, rerr := to.SyscallConn()
		if rerr != nil {
			t.Fatal(rerr)
		}
		if rerr := raw.Read(func(fd uintptr) bool {
			n, _, err = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return true
		}); rerr != nil {
			t.Fatal(rerr)
		}
		return n, err
	}
	if _, err := from.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	if n, err := look(); n != 1 || err != nil {
		t.Errorf("with bytes unread, the socket has %d bytes, %v; want 1", n, err)
	}
	if _, err := io.ReadFull(to, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if n, err := look(); err != unix.EAGAIN {
		t.Errorf("with all bytes read, the socket has %d bytes, %v; want %v", n, err, unix.EAGAIN)
	}
	if s := to.Status(); s.RecvQ != 0 {
		t.Errorf("with all bytes read, %d are in the queue", s.RecvQ)
	}
	if err := from.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := look(); n != 0 || err != nil {
		t.Errorf("at the end, the socket has %d bytes, %v", n, err)
	}
}

// TestUnixBuffers writes several buffers into a ring, and counts them.
func TestUnixBuffers(t *testing.T) {
	from, to := newUnixConns(t)
	_, before := from.Totals()
	sent := make([]byte, 100<<10)
	smctest.Pattern(sent, 1)
	bufs := net.Buffers{sent[:10], nil, sent[10:5000], sent[5000:]}
	if n, err := from.WriteBuffers(&bufs); n != int64(len(sent)) || err != nil || len(bufs) != 0 {
		t.Errorf("WriteBuffers = %d, %v, and leaves %d buffers", n, err, len(bufs))
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("other bytes have come than were sent, %v", err)
	}
	if _, out := from.Totals(); out-before != uint64(len(sent)) {
		t.Errorf("%d bytes are counted, want %d", out-before, len(sent))
	}
}

// newUnixPair returns the two ends of a pair of Unix sockets.
func newUnixPair(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}
