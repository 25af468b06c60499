package ring

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) {
	smctest.ClearEnvironment()
	os.Exit(m.Run())
}

// waitMost bounds each wait of a test.
const waitMost = 20 * time.Second

// newPair returns the two ends of a pair of Unix sockets.
func newPair(t testing.TB) (a, b *net.UnixConn) {
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
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

// newGift returns a file of rings from the beginning, as the agent makes it.
func newGift(t testing.TB) int {
	t.Helper()
	fd, err := unix.MemfdCreate("gift", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 2*(headerLen+giftBytes)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// A form is how the two ends of a test get their rings.
type form string

const (
	marks form = "marks"
	gifts form = "gifts"
)

// newEnds returns two of our ends, of one connection.
func newEnds(t testing.TB, how form) (client, server *End) {
	t.Helper()
	a, b := newPair(t)
	ofA, ofB := -1, -1
	if how == gifts {
		deny(t, a)
		deny(t, b)
		ofA = newGift(t)
		var err error
		if ofB, err = unix.FcntlInt(uintptr(ofA), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	client, server = New(a, ofA, true), New(b, ofB, false)
	t.Cleanup(func() { client.Close(); server.Close() })
	deadline := time.Now().Add(waitMost)
	client.SetDeadline(deadline)
	server.SetDeadline(deadline)
	return client, server
}

// deny has a socket take no descriptors.
func deny(t testing.TB, c *net.UnixConn) {
	t.Helper()
	raw, _ := c.SyscallConn()
	raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, soPassRights, 0); err != nil {
			t.Skipf("needs SO_PASSRIGHTS, Linux 6.16: %v", err)
		}
	})
}

// forms runs f with both.
func forms(t *testing.T, f func(t *testing.T, how form)) {
	for _, how := range []form{marks, gifts} {
		t.Run(string(how), func(t *testing.T) { f(t, how) })
	}
}

// joins sends from one end to the other until the direction is in its ring. It returns how many bytes.
func joins(t testing.TB, from, to *End) {
	t.Helper()
	b := make([]byte, large)
	for range 2*bulkAfter/large + 100 {
		if from.out.state == stateJoined {
			if to.in.state != stateJoined { // it has not read the mark, or not seen the switch
				t.Fatal("only the writer has joined")
			}
			return
		}
		if _, err := from.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(to, b); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("no ring joins: the writer is in state %d, the reader in %d", from.out.state, to.in.state)
}
