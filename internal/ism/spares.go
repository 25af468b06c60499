package ism

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxSpares is how many descriptors a device keeps for those that peers send. They are lent for
// the moment of receiving, so a few serve all peers.
const maxSpares = 4

// spares are descriptors that stand for nothing but their place in the process's table. The memory
// of a peer arrives as a descriptor, when the connection is agreed on and cannot become plain TCP
// any more; a program that has used up its descriptors by then would have to reset it.
type spares struct {
	mu   sync.Mutex
	fds  []int
	lent int // places that were given up and are to be taken again
	off  bool
}

// ensure reports whether there is a spare, and makes those that are missing if it can. The error is
// the kernel's: EMFILE or ENFILE.
func (s *spares) ensure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fill()
}

// fill is ensure with s.mu held.
func (s *spares) fill() error {
	for len(s.fds)+s.lent < maxSpares && !s.off {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			if len(s.fds) > 0 {
				return nil
			}
			return os.NewSyscallError("open", err)
		}
		s.fds = append(s.fds, fd)
	}
	return nil
}

// lend makes room in the table for one descriptor. The caller calls back when that was received, and
// closed or not.
func (s *spares) lend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent++
	if n := len(s.fds); n > 0 {
		unix.Close(s.fds[n-1])
		s.fds = s.fds[:n-1]
	}
}

// back takes the place again, if it is still free.
func (s *spares) back() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent--
	s.fill()
}

// close gives all up.
func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = true
	for _, fd := range s.fds {
		unix.Close(fd)
	}
	s.fds = nil
}
