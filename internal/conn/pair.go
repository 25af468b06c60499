package conn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
)

// A pairEnd is our end of a connection with a program of 'gosmc run', a pair of Unix sockets: docs/run.md.
//
// A peer may send descriptors along with its bytes, as programs do that offer a ring, which we do
// not use. The kernel throws one away in a Read that has no room for it or a Close of unread bytes.
// That takes as long as the sender wishes: no deadline ends it, and each call has a thread. So they
// are received, and closed by others.
type pairEnd struct {
	*net.UnixConn

	reading sync.Mutex
	control []byte // room for descriptors that come with bytes; nil before the first Read
}

// Read implements [net.Conn].
func (p *pairEnd) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return p.UnixConn.Read(b)
	}
	p.reading.Lock()
	if p.control == nil {
		p.control = make([]byte, dispose.Room)
	}
	n, with, _, _, err := p.ReadMsgUnix(b, p.control) // rule: internal/host TestPairDescriptors: p.control -> nil
	if with > 0 {
		dispose.Control(p.control[:with])
	}
	p.reading.Unlock()
	if err == nil {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		return 0, io.EOF
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		call.Syscall = "read" // as with TCP
	}
	return 0, err
}

// Close has another goroutine close the descriptors that may wait in the socket.
func (p *pairEnd) Close() error {
	kept := -1
	if raw, err := p.UnixConn.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			if copied, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				kept = copied
			}
		})
	}
	err := p.UnixConn.Close()
	if kept >= 0 {
		dispose.Close(kept)
	}
	return err
}
