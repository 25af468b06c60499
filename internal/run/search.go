package run

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const procDir = "/proc"

// A search looks for the processes of a supervisor: their environment has its socket, or they have
// mapped its mark. It looks again and again while it may have missed one: a process that was listed
// and has ended before it could be asked may have started others, and one in the middle of exec has
// no environment yet. The pauses between its looks grow, and a look asks no process that was asked
// before, so that a machine on which processes come and go all the time does not keep a supervisor
// busy.
type search struct {
	proc, socket string
	// settled has the processes that the last look listed and that no look needs to ask again. A
	// process that is not listed any more leaves it, so that another process with the same ID is
	// asked.
	settled map[int]bool
	looks   int
	pause   time.Duration // before the next look
	next    time.Time     // when that is due
}

// An answer is the kind of a process, as far as the search can tell.
type answer int

const (
	answerOther answer = iota // it is none of ours, a thread of the kernel, or one that we may not ask
	answerOurs
	answerExec  // it is about to become another program
	answerDead  // a zombie: it may have started others since it was listed, but will not start more
	answerEnded // it has left
)

// look returns the processes that it finds. It is not sure that these are all if one could not be asked.
func (s *search) look() (pids []int, sure bool) {
	before := s.settled
	s.settled = make(map[int]bool, len(before))
	sure = true
	own := os.Getpid()
	for _, pid := range processes(s.proc) {
		if pid == own {
			continue
		}
		if before[pid] { // rule: TestSearchAgain
			s.settled[pid] = true
			continue
		}
		switch askProcess(filepath.Join(s.proc, strconv.Itoa(pid)), s.socket) {
		case answerOther:
			s.settled[pid] = true
		case answerOurs:
			pids = append(pids, pid)
		case answerDead:
			s.settled[pid] = true
			sure = false // rule: TestSupervised: false -> sure
		case answerExec, answerEnded:
			sure = false // rule: TestSupervised: false -> sure
		}
	}
	return pids, sure
}

// delay sets when the next look is due, and reports whether there is to be one.
func (s *search) delay(now time.Time) bool {
	s.looks++
	s.pause = min(max(2*s.pause, firstPause), lastPause)
	s.next = now.Add(s.pause)
	return s.looks < maxLooks
}

// supervised returns the processes of a supervisor, and whether it is sure that these are all.
func supervised(proc, socket string) (pids []int, sure bool) {
	return (&search{proc: proc, socket: socket}).look()
}

// processes returns the process IDs that are listed.
func processes(proc string) (pids []int) {
	d, err := os.Open(proc)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// askProcess finds out the kind of a process. Kernels differ: where a process has no memory, as
// threads of the kernel, and zombies, have none, the environment is empty, or there is ESRCH.
func askProcess(dir, socket string) answer {
	return askFor(dir, func(dir string, environ []byte) bool {
		return lookup(strings.Split(string(environ), "\x00"), EnvSocket) == socket || marked(dir, socket) // rule: TestSupervised: marked(dir, socket) -> false
	})
}

// askFor is [askProcess] for processes that ours reports, of which it is given the environment.
func askFor(dir string, ours func(dir string, environ []byte) bool) answer {
	environ, err := readProc(dir, "environ")
	if err == nil && len(environ) == 0 {
		if betweenPrograms(dir) { // rule: TestSupervised
			return answerExec
		}
		environ, err = readProc(dir, "environ") // it may have been a moment ago
	}
	switch {
	case err == nil && len(environ) > 0:
		if ours(dir, environ) {
			return answerOurs
		}
		return answerOther
	case errors.Is(err, unix.ENOENT): // rule: TestSupervised
		return answerEnded
	case err != nil && !errors.Is(err, unix.ESRCH):
		return answerOther
	}
	stat, err := readProc(dir, "stat")
	if err != nil {
		if _, err := os.Lstat(dir); err != nil {
			return answerEnded
		}
		return answerOther
	}
	// The state stands behind the name, which may have anything in it.
	if _, after, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " "); after != "" && strings.ContainsRune("ZXx", rune(after[0])) {
		return answerDead
	}
	return answerOther
}

// betweenPrograms reports whether a process without an environment is in the middle of exec. A
// process that has none for good has arguments. A thread of the kernel, or the rest of a process
// that has ended, has no program.
func betweenPrograms(dir string) bool {
	if _, err := os.Readlink(filepath.Join(dir, "exe")); err != nil {
		return false
	}
	arguments, err := readProc(dir, "cmdline")
	return err == nil && len(arguments) == 0
}

// readProc reads a file of a process, with fewer system calls than [os.ReadFile] takes.
func readProc(dir, name string) (text []byte, err error) {
	fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text = make([]byte, 0, 4096)
	for {
		if len(text) == cap(text) {
			text = append(text, make([]byte, len(text))...)[:len(text)]
		}
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return text, err
		}
		text = text[:len(text)+n]
	}
}
