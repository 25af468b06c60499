package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// Descriptors of an engine: the socket to its supervisor, the count of connections that have ended, and the
// table of resets, if there is one.
const (
	socketFD = 3
	endedFD  = 4
	resetsFD = 5
)

// Serve is the life of an engine. It ends when the supervisor has ended, and all connections have.
func Serve() error {
	unix.CloseOnExec(socketFD)
	unix.CloseOnExec(endedFD)
	unix.CloseOnExec(resetsFD)
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	// The libraries of programs have asked for their names, and none of these is ours.
	os.Setenv(config.Variables[config.Program], "any")
	ended, err := proto.CountOf(os.NewFile(endedFD, "ended"))
	if err != nil {
		return err
	}
	h, err := host.New(host.Config{ShortAfter: -1})
	if err != nil {
		return err
	}
	unix.SetNonblock(socketFD, true)
	resets := proto.ResetsOf(os.NewFile(resetsFD, "resets"))
	e := &engine{host: h, resets: resets, ended: ended}
	return e.serve(os.NewFile(socketFD, "supervisor"))
}

type engine struct {
	host    *host.Host
	resets  *proto.Resets
	ended   *proto.Count // messages whose connections have ended: the supervisor counts the others
	working sync.WaitGroup
}

// serve takes connections from a supervisor until that has ended, and returns when they have.
func (e *engine) serve(socket *os.File) error {
	defer socket.Close()
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	for {
		m, fds, err := receive(raw)
		if err != nil {
			break
		}
		if len(fds) != 2 || m.Kind != proto.KindCarry && m.Kind != proto.KindCarried ||
			!proto.IsTCP(fds[0]) || !proto.IsStream(fds[1], unix.AF_UNIX) {
			dispose.Close(fds...) // an end has a mark: the program hears of a reset
			e.ended.Add(1)
			continue
		}
		e.working.Go(func() {
			e.carry(m, fds[0], fds[1])
			e.ended.Add(1)
		})
	}
	e.working.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), lastWait)
	defer cancel()
	return e.host.Shutdown(ctx)
}

// receive waits for a message. At the end it returns [io.EOF].
func receive(raw syscall.RawConn) (m proto.Message, fds []int, err error) {
	var b [proto.MessageLen + 1]byte
	var with [dispose.Room]byte
	n, control := 0, 0
	waitErr := raw.Read(func(fd uintptr) bool {
		n, control, _, _, err = unix.Recvmsg(int(fd), b[:], with[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	switch {
	case waitErr != nil:
		return m, nil, waitErr
	case err != nil:
		return m, nil, err
	case n == 0:
		return m, nil, io.EOF
	}
	fds = dispose.Descriptors(with[:control])
	if m, err = proto.ParseMessage(b[:n]); err != nil {
		dispose.Close(fds...)
		return proto.Message{}, nil, nil
	}
	return m, fds, nil
}

// carry carries a connection until it has ended.
func (e *engine) carry(m proto.Message, tcpFD, endFD int) {
	tcp, end := tcpConn(tcpFD), proto.UnixConn(endFD)
	if tcp == nil || end == nil {
		if tcp != nil {
			reset(tcp)
		}
		if end != nil {
			end.Close()
		}
		return
	}
	p := &pair{UnixConn: end, resets: e.resets}
	if err := p.init(); err != nil {
		reset(tcp)
		end.Close()
		return
	}
	role, why := core.RoleClient, clc.DiagNone
	if m.Kind == proto.KindCarried {
		role = core.RoleServer
		speaks, err := speaksCLC(tcp, p)
		if err != nil {
			reset(tcp)
			p.fail()
			return
		}
		if !speaks {
			why = clc.DiagPeerNoSMC
			p.declines = m.Speaks
		}
	}
	c, err := e.host.Carry(context.Background(), tcp, role, why)
	if err != nil {
		p.fail()
		return
	}
	move(c, p)
}

// tcpConn returns a TCP connection of a descriptor, which is its own; nil if it is none.
func tcpConn(fd int) *net.TCPConn {
	unix.SetNonblock(fd, true)
	f := os.NewFile(uintptr(fd), "tcp")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		c.Close()
		return nil
	}
	return tcp
}

func reset(tcp *net.TCPConn) {
	tcp.SetLinger(0)
	tcp.Close()
}

// firstBytes of a CLC message are the eyecatcher of SMC-R or of SMC-D, and the type.
const firstBytes = 5

const typeDecline = '\x04'

// isFirst reports whether the bytes of a connection so far are, or may become, the first CLC message of a
// client: a Proposal, or the Decline of one that has no device. sure: more need not come.
func isFirst(b []byte) (may, sure bool) {
	const smcr, smcd, typeProposal = "\xe2\xd4\xc3\xd9", "\xe2\xd4\xc3\xc4", '\x01'
	n := min(len(b), len(smcr))
	may = string(b[:n]) == smcr[:n] || string(b[:n]) == smcd[:n]
	if len(b) >= firstBytes {
		may = may && (b[n] == typeProposal || b[n] == typeDecline)
	}
	return may, !may || len(b) >= firstBytes
}

// speaksCLC reports whether a client begins with CLC. It waits for the client's first bytes, and takes
// none, as long as the program has nothing to say; a program that has is kept waiting until firstTime
// after it was accepted, as the Proposal of a client is on its way by then. The program gets bytes that
// may become a first message, and have not done so for firstTime.
func speaksCLC(tcp *net.TCPConn, p *pair) (speaks bool, err error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false, err
	}
	accepted := time.Now()
	var part *time.Timer // since a client has sent a part of what may become a first message
	over := make(chan struct{})
	said, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(said)
		if p.awaitWord() != nil {
			return // the client has spoken first
		}
		late := time.NewTimer(time.Until(accepted.Add(firstTime)))
		defer late.Stop()
		select {
		case <-late.C:
			tcp.SetReadDeadline(time.Unix(1, 0)) // the client waits for the program
		case <-stop:
		}
	}()
	waitErr := raw.Read(func(fd uintptr) bool {
		if failed(fd) {
			return true // by a reset, which is the program's to hear of
		}
		var b [firstBytes]byte
		n, _, peekErr := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if peekErr == unix.EAGAIN || peekErr == unix.EINTR {
			return false
		}
		if peekErr != nil || n == 0 {
			return true // an end, or a reset: TCP has it
		}
		may, sure := isFirst(b[:n])
		speaks = may && sure
		if !sure && part == nil {
			part = time.AfterFunc(firstTime, func() {
				tcp.SetReadDeadline(time.Unix(1, 0)) // it waits for the program
				close(over)
			})
		}
		return sure || ended(fd)
	})
	close(stop)
	if part != nil && !part.Stop() {
		<-over
	}
	p.SetReadDeadline(time.Unix(1, 0))
	<-said
	tcp.SetReadDeadline(time.Time{})
	p.SetReadDeadline(time.Time{})
	if waitErr != nil && !errors.Is(waitErr, os.ErrDeadlineExceeded) {
		return false, waitErr
	}
	return speaks, nil
}

// ended reports whether nothing more comes over a socket.
func ended(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1
}

// failed reports whether a socket has an error, with nothing to read before it. To read would take it away.
func failed(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	if n, err := unix.Poll(p, 0); err != nil || n != 1 || p[0].Revents&unix.POLLERR == 0 {
		return false
	}
	n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	return err == nil && n == 0
}
