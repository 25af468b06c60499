package introduce

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
)

// An agent that is killed can give no end of a pair back. So it puts a copy of each end that it
// holds for a server into a safe, which is the queue of a socket, with a copy of the client's
// conversation. A keeper, which is another process, has all safes too, and looks into none as long
// as the agent lives. Then it gives the ends back that are in them.
//
// The server may have got its end by then, without the agent having emptied the safe. That is seen
// at the end itself: the server's supervisor gives it a name before its program gets it, the keeper
// gives it one before the client does, and a socket has one name, which it keeps.

// A safe holds the server's end of one pair, or nothing.
type safe struct {
	mu     sync.Mutex
	in     int
	out    int // the keeper has it, too
	closed bool

	shown bool // the keeper has been sent it; guarded by the strongroom's lock
}

// A strongroom has the safes of an agent. Any goroutine may use it.
type strongroom struct {
	mu     sync.Mutex
	keeper *os.File // nil: nothing is kept. Owned
	over   bool
	all    []*safe
	free   []*safe
}

// KeepWith has a keeper keep the ends of pairs that the server holds: the process that calls [Keep]
// with the other end of the socket conn, of the type SOCK_SEQPACKET, which does not block, and which
// belongs to the server from then on. It is called before the server serves, and again when a keeper
// has ended: the next one keeps all that is kept, as far as it reads, and all that comes. As long as
// there is none, clients that would need a safe that it has not get no pair.
func (s *Server) KeepWith(conn *os.File) {
	r := &s.strongroom
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		conn.Close()
		return
	}
	if r.keeper != nil {
		r.keeper.Close()
	}
	r.keeper = conn
	for _, b := range r.all {
		b.shown = r.show(b) == nil // rule: TestManySafes: r.show(b) == nil -> r.show(b) == nil || true
	}
}

// show gives the keeper a safe. The caller has the lock.
func (r *strongroom) show(b *safe) error {
	raw, err := r.keeper.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		const how = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
		_, err = unix.SendmsgN(int(fd), []byte{0}, unix.UnixRights(b.out), nil, how)
	})
	return errors.Join(cerr, err)
}

// take returns a safe that is empty; nil if nothing is kept.
func (r *strongroom) take() (*safe, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keeper == nil {
		return nil, nil
	}
	if n := len(r.free); n > 0 {
		b := r.free[n-1]
		if !b.shown { // there was no room for it when its keeper came
			if err := r.show(b); err != nil {
				return nil, err
			}
			b.shown = true
		}
		r.free = r.free[:n-1]
		return b, nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	b := &safe{in: fds[0], out: fds[1], shown: true}
	if err := r.show(b); err != nil {
		b.close()
		return nil, err
	}
	r.all = append(r.all, b)
	return b, nil
}

// put puts the end that a client's question holds into a safe.
func (r *strongroom) put(w *waiting) error {
	b, err := r.take()
	if b == nil {
		return err
	}
	id := binary.BigEndian.AppendUint64(nil, w.id)
	cerr := w.who.line.raw.Control(func(fd uintptr) {
		_, err = unix.SendmsgN(b.in, id, unix.UnixRights(w.held, int(fd)), nil, unix.MSG_DONTWAIT)
	})
	if err = errors.Join(cerr, err); err != nil {
		r.empty(b)
		return err
	}
	w.safe = b
	return nil
}

// empty empties a safe, unless that is nil. The end itself is closed afterwards: the close of the last copy
// may take time.
func (r *strongroom) empty(b *safe) {
	if b == nil {
		return
	}
	b.mu.Lock()
	if !b.closed {
		var id [8]byte
		dispose.Hurry(func() { // the conversation may have ended, with descriptors that nobody has read
			for again := true; again; {
				_, _, err := unix.Recvfrom(b.out, id[:], unix.MSG_DONTWAIT) // the kernel closes the copies
				again = err == unix.EINTR
			}
		})
	}
	b.mu.Unlock()
	r.mu.Lock()
	r.free = append(r.free, b)
	r.mu.Unlock()
}

// close ends the keeper, and closes the safes.
func (r *strongroom) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.keeper != nil {
		r.keeper.Close()
		r.keeper = nil
	}
	for _, b := range r.all {
		b.close()
	}
	r.all, r.free = nil, nil
}

func (b *safe) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	unix.Close(b.in)
	unix.Close(b.out)
}

// Keep is the life of a keeper, which takes a process of its own, of the agent's user. conn is the
// other end of the socket of [Server.KeepWith]. When the agent has ended, Keep gives the ends back
// that are in its safes, and returns. A client that does not read for a second gets none, and no other
// one waits for it.
func Keep(conn *os.File) error { return keep(conn, returnTime) }

// keep is Keep with the time for clients that do not read.
func keep(conn *os.File, patience time.Duration) error {
	c, err := net.FileConn(conn)
	conn.Close()
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	defer c.Close()
	agent, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("keeper: no Unix socket")
	}
	var safes []int
	for {
		var b [1]byte
		oob := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := agent.ReadMsgUnix(b[:], oob)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			break
		}
		if err != nil {
			for _, fd := range safes {
				unix.Close(fd)
			}
			return fmt.Errorf("keeper: %w", err)
		}
		safes = append(safes, dispose.Descriptors(oob[:n])...)
	}
	var late []returning
	for _, fd := range safes {
		for r, more := openSafe(fd); more; r, more = openSafe(fd) {
			if !r.give() { // rule: TestKeeperSlowClient: !r.give() -> giveLate([]returning{r}, patience); false
				late = append(late, r)
			}
		}
		unix.Close(fd)
	}
	giveLate(late, patience)
	return nil
}

// giveLate gives ends to clients whose sockets had no room for them, all within patience: any user can
// have many conversations that it does not read, and as long as the keeper has a copy of one its client
// takes the agent for stopped.
func giveLate(late []returning, patience time.Duration) {
	for last := time.Now().Add(patience); len(late) > 0 && time.Now().Before(last); {
		time.Sleep(roomPause)
		late = slices.DeleteFunc(late, returning.give)
	}
	for _, r := range late {
		dispose.Close(r.fds...)
	}
}

// A returning is the server's end of a pair that is to go back to its client.
type returning struct {
	fds []int // the end and the client's conversation; none: it is not to go back. Owned
	id  uint64
}

// openSafe takes the end out that is in a safe. more is false if there is none.
func openSafe(fd int) (r returning, more bool) {
	var id [8]byte
	oob := make([]byte, unix.CmsgSpace(2*4))
	n, oobn, _, _, err := unix.Recvmsg(fd, id[:], oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil || n != len(id) {
		return r, false
	}
	r = returning{dispose.Descriptors(oob[:oobn]), binary.BigEndian.Uint64(id[:])}
	if len(r.fds) != 2 || !claimName(r.fds[0]) {
		dispose.Close(r.fds...)
		r.fds = nil
	}
	return r, true
}

// claimName gives the server's end of a pair a name, so that the server does not get it. It reports
// false if the server's supervisor has.
func claimName(end int) bool {
	var random [16]byte
	rand.Read(random[:])
	name := "@gosmc-returned-" + hex.EncodeToString(random[:]) // which nobody else can have taken
	return unix.Bind(end, &unix.SockaddrUnix{Name: name}) == nil
}

// give gives a client the server's end, and closes the descriptors. It reports false, and has closed
// none, if the client's socket has no room.
func (r returning) give() bool {
	if len(r.fds) == 0 {
		return true
	}
	m := Message{Kind: KindReturned, ID: r.id, Reason: RefusedBusy}
	const how = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	_, err := unix.SendmsgN(r.fds[1], m.Append(nil), unix.UnixRights(r.fds[0]), nil, how)
	if err == unix.EAGAIN || err == unix.EINTR || err == unix.ETOOMANYREFS || err == unix.ENOBUFS {
		return false
	}
	dispose.Close(r.fds...)
	return true
}

// unkeep throws the copy of the end away that a question holds.
func (s *Server) unkeep(w *waiting) {
	s.strongroom.empty(w.safe)
	w.safe = nil
}
