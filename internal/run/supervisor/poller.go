package supervisor

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A poller is an epoll. Its events say for which use of a descriptor's number they are. A number is
// used again as soon as it is closed, and events that were fetched before are still to be handled.
type poller struct {
	fd    int
	file  *os.File // which has fd
	raw   syscall.RawConn
	use   int32
	inUse map[int]int32
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{fd: fd, file: os.NewFile(uintptr(fd), "epoll"), inUse: make(map[int]int32)}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *poller) close() { p.file.Close() }

// wait returns how many events there are, when there are some or the timeout has passed; there is
// none if that is negative. It waits where the runtime waits for the network. A thread that is in
// epoll_wait itself makes the runtime look after it, some 60 times for each time that it waits, and
// that takes a processor from the programs.
func (p *poller) wait(events []unix.EpollEvent, timeout time.Duration) (n int, err error) {
	look := func(fd uintptr) bool {
		n, err = unix.EpollWait(int(fd), events, 0)
		n = max(n, 0)
		return n > 0 || err != nil
	}
	if look(uintptr(p.fd)) || timeout == 0 {
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

// add watches a descriptor until remove, which comes before it is closed.
func (p *poller) add(fd int, events uint32) error {
	p.use++
	err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: p.use})
	if err == nil {
		p.inUse[fd] = p.use
	}
	return os.NewSyscallError("epoll_ctl", err)
}

// again watches a descriptor once more that was to be told of once.
func (p *poller) again(fd int, events uint32) {
	unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: p.inUse[fd]})
}

// remove watches a descriptor no more. It need not be watched.
func (p *poller) remove(fd int) {
	if _, ok := p.inUse[fd]; ok {
		delete(p.inUse, fd)
		unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// current reports whether an event is one of a descriptor that is still watched.
func (p *poller) current(e unix.EpollEvent) bool {
	use, ok := p.inUse[int(e.Fd)]
	return ok && use == e.Pad
}
