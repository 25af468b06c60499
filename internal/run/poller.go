package run

import (
	"os"

	"golang.org/x/sys/unix"
)

// A poller is an epoll whose events say for which use of a descriptor's number they are. A number is used again as soon as it is
// closed, and events that were fetched before are still to be handled.
type poller struct {
	fd    int
	use   int32
	inUse map[int]int32
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return &poller{fd: fd, inUse: make(map[int]int32)}, os.NewSyscallError("epoll_create1", err)
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
