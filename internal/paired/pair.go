package paired

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/ring"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// A program of 'gosmc run' has no device. Its supervisor asks the agent for a pair of Unix stream sockets
// that takes the place of the connection. A host that may use such a pair says so when it asks, and
// gets an end of one where the other side offers nothing else ([introduce.Client.AskEither]).
//
// The host is the program: it has its end when this package has it. Its connection begins once the
// program at the other end has the other one. So it is never in a pair that the other side has left for
// TCP, and no byte has to be joined to TCP.

// A lent is a client's end of a pair whose server has not got the other one yet.
type lent struct {
	question *introduce.Question
	end      *net.UnixConn // owned
	memory   int           // of rings; owned. -1: none
}

// lend takes the end that the agent has lent for a connection. It returns nil if that is not possible: the
// server gets nothing then, as the agent does not hear that we are ready.
func lend(q *introduce.Question, a *introduce.Answer, tcp *net.TCPConn) *lent {
	if !nameEnd(a.Socket, proto.RoleClient, tcp) {
		a.Discard()
		return nil
	}
	end := proto.UnixConn(a.Socket)
	a.Socket = -1
	if end == nil {
		a.Discard()
		return nil
	}
	if !q.Ready() { // rule: TestPairAgentGone
		dispose.Conn(end)
		a.Discard()
		return nil
	}
	return &lent{q, end, a.Memory}
}

// fate waits until the server's program has the other end. It returns our end, which the caller owns, or
// the reason why the connection is to be plain TCP. An error means that nobody tells which of the two it
// is: the connection cannot be used.
//
//	event                            outcome
//	Taken                            our end
//	Returned                         TCP: the server has not got its end, or could not use it
//	the agent ends                   our end: the server has the other one, or its keeper would return that
//	the time wait has passed         the end is asked back
//	the time last has passed then    an error: the agent, or the server's supervisor, is stopped
func (l *lent) fate(
	ctx context.Context, wait, last time.Duration,
) (end *ring.End, why clc.Diagnosis, err error) {
	defer func() {
		if end == nil {
			dispose.Conn(l.end) // with descriptors in it, perhaps
			dispose.Close(l.memory)
		}
	}()
	late := time.NewTimer(wait)
	defer late.Stop()
	for recalled := false; ; {
		select {
		case a := <-l.question.Answer():
			switch {
			case a.Wanted:
			case a.Returned: // rule: TestPairReturned
				a.Discard()
				return nil, bureau.Reason(a.Reason), nil
			default:
				return ring.New(l.end, l.memory, true), clc.DiagNone, nil
			}
		case <-late.C:
			if recalled { // rule: TestPairSilence
				l.question.Withdraw()
				return nil, clc.DiagNone, os.NewSyscallError("connect", syscall.ETIMEDOUT)
			}
			recalled = true
			l.question.Recall()
			late.Reset(last)
		case <-ctx.Done():
			l.question.Withdraw()
			return nil, clc.DiagNone, ctx.Err()
		}
	}
}

// takePair takes the end of a pair with which the agent has answered a server. The agent gets an
// end back that cannot be used: then the connection is plain TCP, for the reason that is returned.
func (c *Candidate) takePair(q *introduce.Question, a *introduce.Answer) clc.Diagnosis {
	// The keeper of an agent that was killed gives no end back that has a name.
	if nameEnd(a.Socket, proto.RoleServer, c.tcp) { // rule: TestPairNamed: nameEnd(a.Socket, proto.RoleServer, c.tcp) -> nameEnd(a.Socket, proto.RoleServer, c.tcp) || true
		if copied, err := unix.FcntlInt(uintptr(a.Socket), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			if end := proto.UnixConn(copied); end != nil {
				c.end = ring.New(end, a.Memory, false)
				a.Memory = -1
			}
		}
	}
	if c.end == nil {
		q.GiveBack(a.Socket)
		a.Discard()
		return clc.DiagBusy
	}
	unix.Close(a.Socket) // not the last copy
	a.Socket = -1
	q.Took()
	return clc.DiagNone
}

// nameEnd gives an end the name of its connection, as each end of a pair has one. It reports false if it
// has one: the agent's keeper has given it back. Any user can have taken a name that could be foreseen;
// then another one will do.
func nameEnd(end int, role byte, tcp *net.TCPConn) bool {
	n := proto.Name{
		Role: role, Local: proto.AddrPortOf(tcp.LocalAddr()), Peer: proto.AddrPortOf(tcp.RemoteAddr()),
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			domain, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
			n.IPv6 = domain == unix.AF_INET6
		})
	}
	n.Unique, _ = unix.GetsockoptUint64(end, unix.SOL_SOCKET, unix.SO_COOKIE)
	for range maxNames {
		err := unix.Bind(end, &unix.SockaddrUnix{Name: n.String()})
		if err != unix.EADDRINUSE { // rule: TestPairNamed
			return err == nil
		}
		n.Unique = rand.Uint64()
	}
	return false
}
