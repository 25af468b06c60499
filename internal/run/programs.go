package run

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// EnvSocket is the variable by which the library finds its supervisor: the path of a socket.
const EnvSocket = "GOSMC_RUN"

// programs are the processes of one supervisor, which lives as long as they. Those that have spoken to it are watched; when
// none of these is left the others are looked for by what their environment says.
type programs struct {
	poll   *poller
	socket string
	pids   map[int]int // descriptors, by process ID
	byFD   map[int]int
}

func newPrograms(poll *poller, socket string) *programs {
	return &programs{poll: poll, socket: socket, pids: make(map[int]int), byFD: make(map[int]int)}
}

// add watches a process, unless it is watched already.
func (p *programs) add(pid int) error {
	if _, ok := p.pids[pid]; ok {
		return nil
	}
	if len(p.pids) >= maxPrograms {
		return errors.New("too many programs")
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	if err := p.poll.add(fd, unix.EPOLLIN); err != nil {
		unix.Close(fd)
		return err
	}
	p.pids[pid], p.byFD[fd] = fd, pid
	return nil
}

// ended takes the event of a process that has ended.
func (p *programs) ended(fd int) {
	pid, ok := p.byFD[fd]
	if !ok {
		return
	}
	delete(p.byFD, fd)
	delete(p.pids, pid)
	p.poll.remove(fd)
	unix.Close(fd)
}

// gone reports whether no process is left.
func (p *programs) gone() bool {
	if len(p.pids) == 0 {
		p.find()
	}
	return len(p.pids) == 0
}

// find looks for processes whose environment has our socket, again while there may be one that it could not see.
func (p *programs) find() {
	for range maxSearches {
		pids, sure := supervised(procDir, p.socket)
		for _, pid := range pids {
			if p.add(pid) != nil {
				sure = false // it has ended meanwhile
			}
		}
		if sure || len(p.pids) > 0 {
			return
		}
	}
}

func (p *programs) close() {
	for _, fd := range p.pids {
		unix.Close(fd)
	}
}

const procDir = "/proc"

// supervised returns the processes whose environment has a supervisor's socket. It is not sure that these are all if one has ended before it could be
// asked, which may have started others, or was about to become another program.
func supervised(proc, socket string) (pids []int, sure bool) {
	sure = true
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		switch {
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH): // rule: TestSupervised
			sure = false
		case err == nil && len(environ) == 0 && betweenPrograms(dir): // rule: TestSupervised
			sure = false
		case err == nil && lookup(strings.Split(string(environ), "\x00"), EnvSocket) == socket:
			pids = append(pids, pid)
		}
	}
	return pids, sure
}

// betweenPrograms reports whether a process without an environment is in the middle of exec. One that has none for good has arguments, and a thread of
// the kernel, or what is left of a process, no program.
func betweenPrograms(dir string) bool {
	_, err := os.Readlink(filepath.Join(dir, "exe"))
	arguments, err2 := os.ReadFile(filepath.Join(dir, "cmdline"))
	return err == nil && err2 == nil && len(arguments) == 0
}
