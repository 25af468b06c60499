package supervisor

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// notes is where programs tell which letters they have taken: messages that wake nobody, and are
// read before anybody is told of them. Only numbers depend on these messages, and for how long
// letters are left to programs. Any goroutine may use it.
type notes struct {
	mu    sync.Mutex
	fd    int                     // to read from, if there is one
	taken map[uint16]int          // since claims was called, by the server's port
	boxes [proto.Letterboxes]bool // that something was taken out of, since from was called
}

// open returns the descriptor that programs get, which is the caller's.
func (n *notes) open() (int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socketpair", err)
	}
	// its maximum; a program that finds it full wakes the supervisor
	unix.SetsockoptInt(pair[1], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fd, n.taken = pair[0], make(map[uint16]int)
	return pair[1], nil
}

// claims returns how many connections were taken, by the server's port, since it was called last.
func (n *notes) claims() map[uint16]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.taken) == 0 {
		return nil
	}
	taken := n.taken
	n.taken = make(map[uint16]int)
	return taken
}

// from reports whether something was taken out of a letterbox since it was called last for that.
func (n *notes) from(number int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.boxes[number]
	n.boxes[number] = false
	return was
}

func (n *notes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken != nil {
		unix.Close(n.fd)
		n.taken = nil
	}
}

// readNotes counts and traces the letters that programs have taken.
func (r *record) readNotes() {
	var b [proto.MessageLen + 1]byte
	r.notes.mu.Lock()
	defer r.notes.mu.Unlock()
	for r.notes.taken != nil {
		n, err := unix.Read(r.notes.fd, b[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if m, err := proto.ParseMessage(b[:n]); err == nil && m.Kind == proto.KindTaken {
			r.takenLetter(m)
		}
	}
}

// taken notes the message of a program that found the notes full.
func (r *record) taken(m proto.Message) {
	r.notes.mu.Lock()
	defer r.notes.mu.Unlock()
	if r.notes.taken != nil {
		r.takenLetter(m)
	}
}

// takenLetter notes an offer that was claimed without us, and when. The caller has the lock of the notes.
func (r *record) takenLetter(m proto.Message) {
	r.notes.taken[m.Local.Port()]++
	r.notes.boxes[proto.BoxOf(m.Peer.Port())] = true
	server, client := int(int32(m.NetNS>>32)), int(int32(m.NetNS))
	r.offered(proto.Message{Local: m.Peer, Peer: m.Local}, client, clc.DiagNone)
	r.claimed(m.Local, m.Peer, server)
}
