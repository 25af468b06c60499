package supervisor

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/procs"
)

// programs are the processes of one supervisor, which lives as long as they. Those that have spoken
// to it are watched; when none of these is left the others are looked for by their environment.
type programs struct {
	poll   *broker.Poller
	socket string
	pids   map[int]int // descriptors, by process ID
	byFD   map[int]int
	// descriptors have a lower number: so many programs there are at most, but for the first
	most   int
	search *procs.Search // for others, when none is left; otherwise nil
	over   bool          // it is sure that none is left
}

func newPrograms(poll *broker.Poller, socket string, most int) *programs {
	return &programs{poll: poll, socket: socket, most: most, pids: make(map[int]int), byFD: make(map[int]int)}
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
	if fd >= p.most && len(p.pids) > 0 { // rule: TestProgramsLeaveDescriptors
		unix.Close(fd)
		return errors.New("too many programs for so few descriptors")
	}
	if err := p.poll.Add(fd, unix.EPOLLIN); err != nil {
		unix.Close(fd)
		return err
	}
	p.pids[pid], p.byFD[fd] = fd, pid
	return nil
}

// lives reports whether a process is watched and has not ended.
func (p *programs) lives(pid int) bool {
	fd, ok := p.pids[pid]
	return ok && unix.PidfdSendSignal(fd, 0, nil, 0) != unix.ESRCH // rule: TestLives: unix.PidfdSendSignal(fd, 0, nil, 0) != unix.ESRCH -> fd >= 0
}

// ended takes the event of a process that has ended.
func (p *programs) ended(fd int) {
	pid, ok := p.byFD[fd]
	if !ok {
		return
	}
	delete(p.byFD, fd)
	delete(p.pids, pid)
	p.poll.Remove(fd)
	unix.Close(fd)
}

// gone reports whether no process is left. It looks for others when the last one that is known has
// ended, and, while it is not sure that there is none, again when the search is due.
func (p *programs) gone(now time.Time) bool {
	if len(p.pids) > 0 {
		p.search = nil
		return false
	}
	if p.search == nil {
		p.search = procs.NewSearch(p.socket)
	}
	if now.Before(p.search.Due()) {
		return false
	}
	pids, sure := p.search.Look()
	for _, pid := range pids {
		if p.add(pid) != nil {
			sure = false // it has ended meanwhile
		}
	}
	if len(p.pids) > 0 {
		p.search = nil
		return false
	}
	p.over = sure
	return sure || !p.search.Delay(now)
}

// due returns when [programs.gone] is to be asked again though no process has ended, the zero time
// if it is not.
func (p *programs) due() time.Time {
	if p == nil || p.search == nil {
		return time.Time{}
	}
	return p.search.Due()
}

func (p *programs) close() {
	for _, fd := range p.pids {
		unix.Close(fd)
	}
}
