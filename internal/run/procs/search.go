package procs

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// A Search looks for the processes of a supervisor: their environment has its socket, or they have
// mapped its mark. It looks again and again while it may have missed one: a process that was listed
// and has ended before it could be asked may have started others, and one in the middle of exec has
// no environment yet. The pauses between its looks grow, and a look asks no process that was asked
// before, so that a machine on which processes come and go all the time does not keep a supervisor
// busy.
type Search struct {
	proc, socket string
	// settled has the processes that the last look listed and that no look needs to ask again. A
	// process that is not listed any more leaves it, so that another process with the same ID is
	// asked.
	settled map[int]bool
	looks   int
	pause   time.Duration // before the next look
	next    time.Time     // when that is due
}

// An Answer is the kind of a process, as far as a look can tell.
type Answer int

// Kinds of processes.
const (
	Other Answer = iota // it is none of ours, a thread of the kernel, or one that we may not ask
	Ours
	Exec  // it is about to become another program
	Dead  // a zombie: it may have started others since it was listed, but will not start more
	Ended // it has left
)

// NewSearch returns a search for the processes of the supervisor with this socket.
func NewSearch(socket string) *Search { return &Search{proc: Dir, socket: socket} }

// Due returns when the next look is due; the zero time is at once.
func (s *Search) Due() time.Time { return s.next }

// Look returns the processes that it finds. It is not sure that these are all if one could not be asked.
func (s *Search) Look() (pids []int, sure bool) {
	before := s.settled
	s.settled = make(map[int]bool, len(before))
	sure = true
	own := os.Getpid()
	for _, pid := range List(s.proc) {
		if pid == own {
			continue
		}
		if before[pid] { // rule: TestSearchAgain
			s.settled[pid] = true
			continue
		}
		switch askProcess(filepath.Join(s.proc, strconv.Itoa(pid)), s.socket) {
		case Other:
			s.settled[pid] = true
		case Ours:
			pids = append(pids, pid)
		case Dead:
			s.settled[pid] = true
			sure = false // rule: TestSupervised: false -> sure
		case Exec, Ended:
			sure = false // rule: TestSupervised: false -> sure
		}
	}
	return pids, sure
}

// Delay sets when the next look is due, and reports whether there is to be one.
func (s *Search) Delay(now time.Time) bool {
	s.looks++
	s.pause = min(max(2*s.pause, firstPause), lastPause)
	s.next = now.Add(s.pause)
	return s.looks < maxLooks
}

// Supervised returns the processes of a supervisor, and whether it is sure that these are all.
func Supervised(socket string) (pids []int, sure bool) { return NewSearch(socket).Look() }

// askProcess finds out the kind of a process. Kernels differ: where a process has no memory, as
// threads of the kernel, and zombies, have none, the environment is empty, or there is ESRCH.
func askProcess(dir, socket string) Answer {
	return Ask(dir, func(dir string, environ []byte) bool {
		return Lookup(strings.Split(string(environ), "\x00"), proto.EnvSocket) == socket || marked(dir, socket) // rule: TestSupervised: marked(dir, socket) -> false
	})
}

// Ask is [askProcess] for processes that ours reports, of which it is given the environment.
func Ask(dir string, ours func(dir string, environ []byte) bool) Answer {
	environ, err := ReadFile(dir, "environ")
	if err == nil && len(environ) == 0 {
		if betweenPrograms(dir) { // rule: TestSupervised
			return Exec
		}
		environ, err = ReadFile(dir, "environ") // it may have been a moment ago
	}
	switch {
	case err == nil && len(environ) > 0:
		if ours(dir, environ) {
			return Ours
		}
		return Other
	case errors.Is(err, unix.ENOENT): // rule: TestSupervised
		return Ended
	case err != nil && !errors.Is(err, unix.ESRCH):
		return Other
	}
	stat, err := ReadFile(dir, "stat")
	if err != nil {
		if _, err := os.Lstat(dir); err != nil {
			return Ended
		}
		return Other
	}
	// The state stands behind the name, which may have anything in it.
	if _, after, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]),
		" "); after != "" && strings.ContainsRune("ZXx", rune(after[0])) {
		return Dead
	}
	return Other
}

// betweenPrograms reports whether a process without an environment is in the middle of exec. A
// process that has none for good has arguments. A thread of the kernel, or the rest of a process
// that has ended, has no program.
func betweenPrograms(dir string) bool {
	if _, err := os.Readlink(filepath.Join(dir, "exe")); err != nil {
		return false
	}
	arguments, err := ReadFile(dir, "cmdline")
	return err == nil && len(arguments) == 0
}
