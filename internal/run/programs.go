package run

import (
	"errors"
	"os"

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

// find looks for processes whose environment has our socket.
func (p *programs) find() {
	for _, pid := range supervised(p.socket) {
		p.add(pid)
	}
}

func (p *programs) close() {
	for _, fd := range p.pids {
		unix.Close(fd)
	}
}
