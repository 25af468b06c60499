package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// A supervisor serves the programs of one 'gosmc run'. Only [supervisor.serve] touches it, which has
// the lock but while it waits.
type supervisor struct {
	*broker.Broker
	followed *followed
	// -1: none; as socket, for programs that have another user than we: their requests prove themselves
	door      int
	letters   letters
	board     *board
	programs  *programs
	first     int             // process ID of the program that 'gosmc run' has become; older than the door
	outsiders outsiders       // that came by the door
	alone     bool            // all programs have ended; relays have not
	record    record          // any goroutine may use it
	control   *control.Server // nil if it could not be opened: then nobody is told of events here

	introduced *introduced // connections with pairing tokens
	carrier    carrier     // of connections between hosts
}

// newSupervisor opens a supervisor in a run directory, for a process and all that it starts.
func newSupervisor(dir string, pid int) (*supervisor, error) {
	if err := rundir.Prepare(dir); err != nil {
		return nil, err
	}
	tidy(rundir.Supervisors(dir), logWarning)
	f, err := newFollowed()
	if err != nil {
		return nil, err
	}
	s := emptySupervisor(f)
	name := proto.NewSocketName()
	// First: /proc/net/unix shows everybody the path of the socket, and a process that had this
	// name before us would keep us from starting.
	s.door, err = newDoor(name) // rule: TestDoorSquatted: newDoor(name) -> -1, nil
	if err == nil {
		err = s.Listen(rundir.Supervisors(dir), name, s.ours)
	}
	if err == nil {
		s.record.tally, _ = newTally() // it can be done without, as the next two
		makeMark(s.Path, s.record.tally.mark())
		rundir.MakeTables(rundir.Supervisors(dir), tables...)
		err = s.openDoor()
	}
	var limit uint64
	if err == nil {
		limit, err = ownLimit()
	}
	if err == nil {
		share := sharesOf(limit)
		s.Limit(share.offers, share.relays, share.talks)
		s.introduced.limit(share.introduced)
		s.programs = newPrograms(s.Poll, s.Path, share.programs)
		s.first, err = pid, s.programs.add(pid)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	s.control, _ = control.Serve(dir, filepath.Base(s.Path), view{&s.record, s.Path, s.followed.status})
	s.Mu.Lock() // for questions
	defer s.Mu.Unlock()
	s.followed.watch(rundir.Supervisors(dir), limit, unix.InotifyInit1) // last: it can be done without
	return s, nil
}

// emptySupervisor returns a supervisor that has opened nothing.
func emptySupervisor(f *followed) *supervisor {
	s := &supervisor{
		followed: f,
		door:     -1, letters: letters{notes: -1, poll: -1},
		outsiders: outsiders{users: make(map[uint32]int)}, record: record{started: time.Now()},
	}
	s.introduced = newIntroduced(s, f.users())
	s.carrier.s = s
	s.Broker = broker.New(func() *config.Policy { return f.policy }, s)
	f.broker = s.Broker
	return s
}

// ours returns the processes of this supervisor.
func (s *supervisor) ours() []int {
	pids, _ := procs.Supervised(s.Path) // rule: TestListenersAtOnce: s.Path -> "none"
	return pids
}

// openDoor makes the parts that only a supervisor with a door has.
func (s *supervisor) openDoor() (err error) {
	if s.board, err = newBoard(); err != nil {
		return err
	}
	if err := s.openLetters(); err != nil {
		return err
	}
	s.Listeners.OpenLetters(s.followed.policy)
	if err := unix.Listen(s.door, unix.SOMAXCONN); err != nil {
		return os.NewSyscallError("listen", err)
	}
	return s.Poll.Add(s.door, unix.EPOLLIN)
}

// newDoor returns a door that has its name. Nobody gets in before [supervisor.openDoor]. It is -1 with an
// error.
func newDoor(socketName string) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: proto.DoorName(socketName)}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// serve answers programs until none is left, and no relay, or stop is called.
func (s *supervisor) serve() error {
	events := make([]unix.EpollEvent, broker.MaxEvents)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for !s.over(time.Now()) {
		n, err := s.Wait(events, s.next())
		if err != nil {
			return err
		}
		knocked := false
		for _, e := range events[:n] {
			switch {
			case !s.Poll.Current(e): // of a descriptor that the events before have closed
			case int(e.Fd) == s.Quit:
				return nil
			case int(e.Fd) == s.door:
				knocked = true
			case int(e.Fd) == s.followed.notify:
				s.followed.event(time.Now())
			case int(e.Fd) == s.letters.poll:
				s.lettersCame(time.Now())
			case s.Handle(int(e.Fd)), s.introduced.spoke(int(e.Fd)):
			default:
				s.programs.ended(int(e.Fd))
			}
		}
		if knocked { // other users come last
			s.acceptOutside()
		}
		now := time.Now()
		s.followed.turn(now)
		s.readLetters(now)
		s.Look(now)
	}
	return nil
}

// over reports whether all programs have ended, and all relays. Another program may have a listener
// that ours have made: a connection that a client has offered us for it is joined to TCP when it was
// accepted there. Nothing is lost if we wait for that.
func (s *supervisor) over(now time.Time) bool {
	if !s.programs.gone(now) {
		s.alone = false
		return false
	}
	if !s.alone {
		s.alone = true
		s.Listeners.Close()
		s.readUnsent()
		for number := range proto.Letterboxes {
			s.readBox(number)
		}
	}
	// rule: TestIntroducedOutlives
	if s.introduced.busy > 0 {
		return false
	}
	return len(s.Relays) == 0 && len(s.Held) == 0 // rule: TestRelayOutlives: len(s.Relays) == 0 && len(s.Held) == 0 -> true
}

// Relayed implements [broker.Broker.Owner].
func (s *supervisor) Relayed() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.alone && s.over(time.Now()) {
		s.Stop()
	}
}

// next is when there is something to do though no event comes; the zero time: never.
func (s *supervisor) next() time.Time {
	return broker.Earliest(s.letters.next, s.programs.due(), s.Due(), s.followed.due())
}

// close ends the supervisor's own part. Connections that both programs have go on.
func (s *supervisor) close() {
	if s.control != nil {
		s.control.Close() // without the lock, for which a question may wait
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.outsiders.over, s.followed.over = true, true
	s.introduced.stop()
	s.carrier.close()
	path := s.Path
	s.Broker.End()
	s.closeLetters()
	if path != "" {
		os.Remove(path + proto.MarkSuffix)
		inspect.ForgetBare(path) // rule: TestBareClients
		rundir.RemoveTables(filepath.Dir(path), tables...)
	}
	if s.programs != nil {
		s.programs.close()
	}
	if s.board != nil {
		s.board.close()
	}
	s.record.tally.close()
	proto.CloseAll([]int{s.followed.notify})
	dispose.Close(s.door) // something may wait in talks that were not accepted
}

// tidy removes the files that killed supervisors have left. It tells the log of the supervisors that
// have programs which still run: their new connections are TCP. A nil warn tells nobody, and looks
// for none.
func tidy(dir string, warn func(string)) {
	broker.Tidy(dir, func(socket string) {
		if warn == nil {
			return
		}
		if pids, _ := procs.Supervised(socket); len(pids) > 0 { // rule: TestTidy
			warn(fmt.Sprintf("the supervisor of %s (pid %d) has ended, as if it was killed: new connections to it are TCP until it is started again",
				procs.Command(pids[0]), pids[0]))
		}
	})
}

// makeMark makes the mark of a supervisor, with the place of its tally. Its programs are found by
// their environment if it cannot be made, and count nothing.
func makeMark(socket, tally string) error {
	f, err := os.OpenFile(socket+proto.MarkSuffix, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(tally)
	return errors.Join(err, f.Close())
}
