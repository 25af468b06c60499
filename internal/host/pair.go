package host

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/run"
)

// A pairEnd is our end of a connection with a program of 'gosmc run', a pair of Unix sockets: docs/run.md.
//
// A peer may send descriptors along with its bytes, as programs do that offer a ring, which we do not use. Where the kernel throws one away, in a Read that has no room
// for it or a Close of what was not read, that takes as long as who has sent it wishes: no deadline ends it, and each call has a thread. So they are received, and
// closed by others.
type pairEnd struct {
	*net.UnixConn

	reading sync.Mutex
	control []byte // room for what comes with bytes; nil before the first Read
}

// finishPair makes p a connection over a pair of Unix sockets. pid is the process at the other end, 0 if it is not known.
func (h *Host) finishPair(p *conn.Pending, end *net.UnixConn, pid int) (conn.Conn, error) {
	c := conn.NewUnix(p, &pairEnd{UnixConn: end}, pid)
	if err := h.add(c); err != nil {
		end.Close()
		c.TraceFailed(err)
		return nil, c.SetupError(err)
	}
	return c, nil
}

// programs is where a listener is announced to programs of 'gosmc run'.
type programs struct {
	desk *run.Desk
	spot run.Spot
}

// announceToPrograms lets programs of 'gosmc run' know of a listener that was announced to those of package smc.
func (l *Listener) announceToPrograms() {
	h := l.host
	if h.cfg.Disabled || !l.opts.Require.met(conn.ModeUnix) {
		return
	}
	f, _, err := h.open()
	if err != nil {
		return
	}
	desk, err := f.openDesk(&h.cfg)
	if err != nil {
		h.cfg.Logger.Warn("programs of 'gosmc run' will use TCP", "addr", l.addr, "err", err)
		return
	}
	if spot, ok := desk.Announce(l.tcp); ok {
		l.programs.Store(&programs{desk, spot})
	}
}

func (l *Listener) withdrawFromPrograms() {
	if p := l.programs.Load(); p != nil { // what was accepted just now is claimed still
		p.desk.Withdraw(p.spot)
	}
}

// claimPair reports whether an accepted connection is one that a program of 'gosmc run' has offered a pair for. Then it has been seen to.
func (l *Listener) claimPair(tcp *net.TCPConn) bool {
	p := l.programs.Load()
	if p == nil {
		return false
	}
	end, pid := p.desk.Claim(tcp)
	if end == nil {
		return false
	}
	if c, err := l.host.finishPair(l.newConn(tcp), end, pid); err == nil {
		l.deliver(accepted{conn: c})
	} else {
		l.settled()
	}
	return true
}

// Read implements [net.Conn].
func (p *pairEnd) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return p.UnixConn.Read(b)
	}
	p.reading.Lock()
	if p.control == nil {
		p.control = make([]byte, run.ControlLen)
	}
	n, with, _, _, err := p.ReadMsgUnix(b, p.control) // rule: TestPairDescriptors: p.control -> nil
	if with > 0 {
		run.DisposeControl(p.control[:with])
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

// Close has somebody else close what may wait in the socket.
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
		run.Dispose(kept)
	}
	return err
}
