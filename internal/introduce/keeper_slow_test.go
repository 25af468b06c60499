package introduce

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

// TestKeeperSlowClient has an agent die while a client reads nothing: the ends of others go back at once, and
// its own when it reads.
func TestKeeperSlowClient(t *testing.T) {
	pairOf := func(kind int) (fds [2]int) {
		t.Helper()
		fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fds
	}
	agent, keeper := keeperSockets(t)
	own, err := agent.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// The slow client's safe is the first one, and that of the other the second.
	var clients, safes, ends [2]int
	for i := range clients {
		talk, safe, pair := pairOf(unix.SOCK_SEQPACKET), pairOf(unix.SOCK_SEQPACKET), pairOf(unix.SOCK_STREAM)
		for i == 0 && unix.Send(talk[0], make([]byte, refusedLen), unix.MSG_DONTWAIT) == nil { // until it is full
		}
		id := binary.BigEndian.AppendUint64(nil, uint64(i+1))
		if err := unix.Sendmsg(safe[0], id, unix.UnixRights(pair[1], talk[0]), nil, 0); err != nil {
			t.Fatal(err)
		}
		own.Control(func(fd uintptr) { err = unix.Sendmsg(int(fd), []byte{0}, unix.UnixRights(safe[1]), nil, 0) })
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(talk[0])
		unix.Close(pair[1])
		unix.Close(safe[1])
		clients[i], safes[i], ends[i] = talk[1], safe[0], pair[0]
	}
	t.Cleanup(func() {
		for _, fd := range append(append(clients[:], safes[:]...), ends[:]...) {
			unix.Close(fd)
		}
	})
	kept := make(chan error, 1)
	go func() { kept <- keep(keeper, time.Hour) }()
	agent.Close()
	for _, i := range []int{1, 0} {
		smctest.Eventually(t, time.Minute, "a client's end", func() bool {
			var b [maxMessage]byte
			oob := make([]byte, unix.CmsgSpace(4))
			n, oobn, _, _, err := unix.Recvmsg(clients[i], b[:], oob, unix.MSG_CMSG_CLOEXEC)
			if err != nil || oobn == 0 {
				return false
			}
			m, err := Parse(b[:n])
			if err != nil || m.Kind != KindReturned || m.ID != uint64(i+1) {
				t.Fatalf("client %d reads %+v, %v", i, m, err)
			}
			closeRights(t, oob[:oobn])
			return true
		})
	}
	if err := <-kept; err != nil {
		t.Error(err)
	}
}

// closeRights closes the one descriptor that has come.
func closeRights(t *testing.T, oob []byte) {
	t.Helper()
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d control messages, %v", len(list), err)
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("descriptors %v, %v", fds, err)
	}
	unix.Close(fds[0])
}
