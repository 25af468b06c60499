package supervisor

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// A supervisor has the offers, listeners and programs of one 'gosmc run', or of a [Desk]. Only
// [supervisor.serve] touches it, which has the lock but while it waits, and that [Desk].
type supervisor struct {
	mu        sync.Mutex
	path      string // of the socket
	socket    int
	door      int     // -1 at a desk; as socket, for programs that have another user than we: their requests prove themselves
	letters   letters // none at a desk
	poll      *poller
	board     *board // nil at a desk
	listeners *listeners
	programs  *programs          // nil at a desk
	first     int                // process ID of the program that 'gosmc run' has become; older than the door
	talks     map[int]*talk      // by descriptor
	outsiders outsiders          // that came by the door
	offers    map[pairKey]*offer // that nobody has claimed
	lastTalk  int                // talks have descriptors below this
	asked     int                // how many of them did not come by letter
	held      map[int]*offer     // by the descriptor of their TCP socket
	policy    *config.Policy     // only its part about servers counts here: clients know theirs
	relays    chan struct{}      // has an entry for each relay
	handing   int                // relays of connections that were handed over, which end with us
	patience  time.Duration      // until the first look whether somebody else has accepted
	record    record             // any goroutine may use it
	control   *control.Server    // nil if it could not be opened: then nobody is told of events here
	quit      int                // an eventfd: readable when serve has to return
}

// A pairKey is a TCP connection, as the client sees it.
type pairKey struct{ client, server netip.AddrPort }

// newSupervisor opens a supervisor in a run directory, for a process and all that it starts.
func newSupervisor(dir string, pid int) (*supervisor, error) {
	if err := rundir.Prepare(dir); err != nil {
		return nil, err
	}
	tidy(rundir.Supervisors(dir), logWarning)
	settings, _ := config.Load() // its errors are told to the user that starts a program
	policy, err := config.NewPolicy(settings.Listen, settings.Connect, nil, "")
	if err != nil {
		return nil, err
	}
	s := emptySupervisor(policy)
	name := proto.NewSocketName()
	// First: /proc/net/unix shows everybody the path of the socket, and a process that had this
	// name before us would keep us from starting.
	err = s.bindDoor(name) // rule: TestDoorSquatted
	if err == nil {
		err = s.open(rundir.Supervisors(dir), name)
	}
	if err == nil {
		makeMark(s.path)
		rundir.MakeTables(rundir.Supervisors(dir), tables...) // both can be done without
		err = s.openDoor()
	}
	var limit uint64
	if err == nil {
		limit, err = ownLimit()
	}
	if err == nil {
		share := sharesOf(limit)
		s.letters.room, s.relays, s.lastTalk = share.offers, make(chan struct{}, share.relays), share.talks
		s.programs = newPrograms(s.poll, s.path, share.programs)
		s.first, err = pid, s.programs.add(pid)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	s.control, _ = control.Serve(dir, filepath.Base(s.path), view{&s.record, s.path})
	return s, nil
}

func emptySupervisor(policy *config.Policy) *supervisor {
	return &supervisor{
		socket: -1, door: -1, quit: -1, letters: letters{notes: -1, poll: -1, room: maxOffers},
		outsiders: outsiders{users: make(map[uint32]int)},
		talks:     make(map[int]*talk), offers: make(map[pairKey]*offer), held: make(map[int]*offer),
		relays: make(chan struct{}, maxRelays), lastTalk: math.MaxInt, patience: firstLook, policy: policy, record: record{started: time.Now()},
	}
}

// open makes the parts that every supervisor has.
func (s *supervisor) open(dir, socketName string) error {
	path := filepath.Join(dir, socketName)
	early := filepath.Join(dir, ".new-"+socketName)
	if len(path) >= len(unix.RawSockaddrUnix{}.Path) || len(early) >= len(unix.RawSockaddrUnix{}.Path) {
		return fmt.Errorf("the name of the run directory is too long for sockets: %s", dir)
	}
	var err error
	if s.poll, err = newPoller(); err != nil {
		return err
	}
	if s.socket, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(s.socket, &unix.SockaddrUnix{Name: early}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	s.path = early
	if err := rundir.Chmod(unix.AT_FDCWD, early, unix.S_IFSOCK, unix.S_ISVTX|0o600); err != nil {
		return err
	}
	if err := unix.Listen(s.socket, unix.SOMAXCONN); err != nil {
		return os.NewSyscallError("listen", err)
	}
	if err := os.Rename(early, path); err != nil {
		return err
	}
	s.path = path
	if s.quit, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if err := s.poll.add(s.quit, unix.EPOLLIN); err != nil {
		return err
	}
	netns, err := proto.OwnNetNS()
	if err != nil {
		return err
	}
	s.listeners = newListeners(dir, socketName, netns)
	s.listeners.desk = true
	return s.poll.add(s.socket, unix.EPOLLIN)
}

// openDoor makes the parts that only a supervisor with a door has.
func (s *supervisor) openDoor() (err error) {
	if s.board, err = newBoard(); err != nil {
		return err
	}
	if err := s.openLetters(); err != nil {
		return err
	}
	s.listeners.policy, s.listeners.desk = s.policy, false
	if err := unix.Listen(s.door, unix.SOMAXCONN); err != nil {
		return os.NewSyscallError("listen", err)
	}
	return s.poll.add(s.door, unix.EPOLLIN)
}

// bindDoor gives the door its name. Nobody gets in before [supervisor.openDoor].
func (s *supervisor) bindDoor(socketName string) (err error) {
	if s.door, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	return os.NewSyscallError("bind", unix.Bind(s.door, &unix.SockaddrUnix{Name: proto.DoorName(socketName)}))
}

// serve answers programs until none is left, or stop is called.
func (s *supervisor) serve() error {
	events := make([]unix.EpollEvent, 256)
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.programs == nil || s.handing > 0 || !s.programs.gone(time.Now()) {
		timeout := s.timeout()
		s.mu.Unlock()
		n, err := s.poll.wait(events, timeout)
		s.mu.Lock()
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		knocked := false
		for _, e := range events[:n] {
			switch {
			case !s.poll.current(e): // of a descriptor that the events before have closed
			case int(e.Fd) == s.quit:
				return nil
			case int(e.Fd) == s.door:
				knocked = true
			default:
				s.handle(int(e.Fd))
			}
		}
		if knocked { // other users come last
			s.accept(s.door)
		}
		now := time.Now()
		s.readLetters(now)
		s.look(now)
	}
	return nil
}

// stop lets serve return. Any goroutine may call it.
func (s *supervisor) stop() error {
	_, err := unix.Write(s.quit, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return err
}

// handle takes an event.
func (s *supervisor) handle(fd int) {
	switch {
	case fd == s.letters.poll:
		s.lettersCame(time.Now())
	case fd == s.socket:
		s.accept(fd)
	case s.talks[fd] != nil:
		s.hear(s.talks[fd])
	case s.held[fd] != nil:
		s.relay(s.held[fd]) // the server speaks, or ends the connection: it is not one of ours
	case s.programs != nil:
		s.programs.ended(fd)
	}
}

// close ends the supervisor's own part. Connections that both programs have go on.
func (s *supervisor) close() {
	if s.door >= 0 { // the caller has the lock of a desk
		s.mu.Lock()
		defer s.mu.Unlock()
		s.outsiders.over = true
	}
	if s.control != nil {
		s.control.Close()
	}
	for _, t := range s.talks {
		s.hangUp(t)
	}
	for _, o := range s.offers {
		s.drop(o)
	}
	if s.listeners != nil {
		s.listeners.close()
	}
	s.closeLetters()
	if s.path != "" {
		os.Remove(s.path)
		os.Remove(s.path + proto.MarkSuffix)
		rundir.RemoveTables(filepath.Dir(s.path), tables...)
	}
	if s.programs != nil {
		s.programs.close()
	}
	if s.board != nil {
		s.board.close()
	}
	dispose.Close(s.socket) // something may wait in talks that were not accepted
	dispose.Close(s.door)
	proto.CloseAll([]int{s.quit})
	if s.poll != nil {
		s.poll.close()
	}
}

// makeMark makes the mark of a supervisor. Its programs are found by their environment if it cannot be made.
func makeMark(socket string) error {
	f, err := os.OpenFile(socket+proto.MarkSuffix, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}
