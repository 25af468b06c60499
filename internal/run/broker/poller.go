package broker

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Poller is an epoll. Its events say for which use of a descriptor's number they are. A number is
// used again as soon as it is closed, and events that were fetched before are still to be handled.
type Poller struct {
	FD    int
	file  *os.File // which has fd
	raw   syscall.RawConn
	use   int32
	inUse map[int]int32
}

// NewPoller returns a poller that watches nothing.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &Poller{FD: fd, file: os.NewFile(uintptr(fd), "epoll"), inUse: make(map[int]int32)}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close closes the epoll.
func (p *Poller) Close() { p.file.Close() }

// wait returns how many events there are, when there are some or the timeout has passed; there is
// none if that is negative. It waits where the runtime waits for the network. A thread that is in
// epoll_wait itself makes the runtime look after it, some 60 times for each time that it waits, and
// that takes a processor from the programs.
func (p *Poller) wait(events []unix.EpollEvent, timeout time.Duration) (n int, err error) {
	look := func(fd uintptr) bool {
		n, err = unix.EpollWait(int(fd), events, 0)
		n = max(n, 0)
		return n > 0 || err != nil
	}
	if look(uintptr(p.FD)) || timeout == 0 {
		return n, os.NewSyscallError("epoll_wait", err)
	}
	var deadline time.Time
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	if err := p.file.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	if waitErr := p.raw.Read(look); err == nil && !errors.Is(waitErr, os.ErrDeadlineExceeded) {
		err = waitErr
	}
	return n, err
}

// Add watches a descriptor until remove, which comes before it is closed.
func (p *Poller) Add(fd int, events uint32) error {
	p.use++
	err := unix.EpollCtl(p.FD, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: events, Fd: int32(fd), Pad: p.use})
	if err == nil {
		p.inUse[fd] = p.use
	}
	return os.NewSyscallError("epoll_ctl", err)
}

// Again watches a descriptor once more that was to be told of once.
func (p *Poller) Again(fd int, events uint32) {
	unix.EpollCtl(p.FD, unix.EPOLL_CTL_MOD, fd,
		&unix.EpollEvent{Events: events, Fd: int32(fd), Pad: p.inUse[fd]})
}

// Remove watches a descriptor no more. It need not be watched.
func (p *Poller) Remove(fd int) {
	if _, ok := p.inUse[fd]; ok {
		delete(p.inUse, fd)
		unix.EpollCtl(p.FD, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// Current reports whether an event is one of a descriptor that is still watched.
func (p *Poller) Current(e unix.EpollEvent) bool {
	use, ok := p.inUse[int(e.Fd)]
	return ok && use == e.Pad
}
