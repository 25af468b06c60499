package run

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rundir"
)

// netnsCookie is SO_NETNS_COOKIE, Linux 5.14.
const netnsCookie = 71

// A supervisor has the offers, listeners and programs of one 'gosmc run'. Only [supervisor.serve] touches it.
type supervisor struct {
	path      string // of the socket
	socket    int
	door      int // as socket, for programs that have another user than we: what they may ask proves itself
	letters   letters
	poll      *poller
	board     *board
	listeners *listeners
	programs  *programs
	talks     map[int]*talk      // by descriptor
	outside   int                // how many of them came by the door
	offers    map[pairKey]*offer // that nobody has claimed
	asked     int                // how many of them did not come by letter
	held      map[int]*offer     // by the descriptor of their TCP socket
	policy    *config.Policy     // of which only what it says of servers counts here: clients know theirs
	relays    chan struct{}      // has an entry for each relay
	record    record             // any goroutine may use it
	control   *control.Server    // nil if it could not be opened: then nobody is told what happens here
	quit      int                // an eventfd: readable when serve has to return
}

// A pairKey is a TCP connection, as the client sees it.
type pairKey struct{ client, server string }

// newSupervisor opens a supervisor in a run directory, for a process and all that it starts.
func newSupervisor(dir string, pid int) (*supervisor, error) {
	if err := rundir.Prepare(dir); err != nil {
		return nil, err
	}
	runDir := dir
	dir = rundir.Path(dir, rundir.Run)
	tidy(dir)
	s := &supervisor{
		socket: -1, door: -1, quit: -1, letters: letters{notes: -1, poll: -1},
		talks: make(map[int]*talk), offers: make(map[pairKey]*offer), held: make(map[int]*offer),
		relays: make(chan struct{}, maxRelays),
	}
	settings, _ := config.Load() // what is wrong with it is told to who starts a program
	var err error
	if s.policy, err = config.NewPolicy(settings.Listen, settings.Connect, nil, ""); err != nil {
		return nil, err
	}
	s.record.started = time.Now()
	if err := s.open(dir, pid); err != nil {
		s.close()
		return nil, err
	}
	s.control, _ = control.Serve(runDir, filepath.Base(s.path), view{&s.record, s.path})
	return s, nil
}

func (s *supervisor) open(dir string, pid int) error {
	var random [8]byte
	rand.Read(random[:])
	socketName := hex.EncodeToString(random[:])
	path := filepath.Join(dir, socketName)
	early := filepath.Join(dir, ".new-"+socketName)
	if len(path) >= len(unix.RawSockaddrUnix{}.Path) || len(early) >= len(unix.RawSockaddrUnix{}.Path) {
		return fmt.Errorf("the name of the run directory is too long for sockets: %s", dir)
	}
	var err error
	if s.poll, err = newPoller(); err != nil {
		return err
	}
	if s.board, err = newBoard(); err != nil {
		return err
	}
	if s.socket, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(s.socket, &unix.SockaddrUnix{Name: early}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	s.path = early
	if err := os.Chmod(early, 0o600|os.ModeSticky); err != nil {
		return err
	}
	if err := unix.Listen(s.socket, unix.SOMAXCONN); err != nil {
		return os.NewSyscallError("listen", err)
	}
	if err := os.Rename(early, path); err != nil {
		return err
	}
	s.path = path
	if err := s.openLetters(); err != nil {
		return err
	}
	if s.door, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(s.door, &unix.SockaddrUnix{Name: "@gosmc-run/" + socketName}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(s.door, unix.SOMAXCONN); err != nil {
		return os.NewSyscallError("listen", err)
	}
	if err := s.poll.add(s.door, unix.EPOLLIN); err != nil {
		return err
	}
	if s.quit, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	if err := s.poll.add(s.quit, unix.EPOLLIN); err != nil {
		return err
	}
	netns, err := ownNetns()
	if err != nil {
		return err
	}
	s.listeners = newListeners(dir, socketName, netns)
	s.listeners.policy = s.policy
	s.programs = newPrograms(s.poll, path)
	if err := s.programs.add(pid); err != nil {
		return err
	}
	return s.poll.add(s.socket, unix.EPOLLIN)
}

// ownNetns is the cookie of this process's network namespace.
func ownNetns() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, netnsCookie)
	if err != nil {
		return 0, fmt.Errorf("SO_NETNS_COOKIE (Linux 5.14): %w", err)
	}
	return cookie, nil
}

// serve answers programs until none is left, or stop is called.
func (s *supervisor) serve() error {
	events := make([]unix.EpollEvent, 256)
	for !s.programs.gone() {
		n, err := unix.EpollWait(s.poll.fd, events, s.timeout())
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, e := range events[:max(n, 0)] {
			switch {
			case !s.poll.current(e): // of a descriptor that the events before have closed
			case int(e.Fd) == s.quit:
				return nil
			default:
				s.handle(int(e.Fd))
			}
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
	case fd == s.socket || fd == s.door:
		s.accept(fd)
	case s.talks[fd] != nil:
		s.hear(s.talks[fd])
	case s.held[fd] != nil:
		s.relay(s.held[fd]) // the server speaks, or ends the connection: it is not one of ours
	default:
		s.programs.ended(fd)
	}
}

// close ends what there is. Connections that both programs have go on.
func (s *supervisor) close() {
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
	}
	if s.programs != nil {
		s.programs.close()
	}
	if s.board != nil {
		s.board.close()
	}
	closeAll([]int{s.socket, s.door, s.quit})
	if s.poll != nil {
		unix.Close(s.poll.fd)
	}
}
