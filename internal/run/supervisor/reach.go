package supervisor

import (
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// A reach is a connection with tokens that one of our programs has made. Its goroutine alone uses
// it.
//
//	event                         action
//	Lent                          the client gets its end, at once if its server has taken ends before
//	Wanted                        the client gets its end
//	the client has its end        the agent is told: the server may have the other one
//	the client has gone           the end is asked back
//	Taken                         the TCP connection is closed
//	Refused                       TCP
//	Returned                      TCP if the client has not got its end, else it is joined to TCP
//	bytes, or an end, over TCP    the end is asked back: the server uses TCP
//	no answer to the question     TCP; the end is asked back when it comes
//	the agent ends                TCP if the client has not got its end, else its server has the other one
type reach struct {
	n     *introduced
	talk  *broker.Talk
	tcp   int // the client's TCP socket
	m     proto.Message
	end   introduce.Answer // of the client, with memory of rings, until it has got these
	given bool             // the client has got it
	stays bool             // the client is with TCP, or has gone
	relay func()           // joins the client's end to TCP; nil: it is not to be
}

// reach answers a program that has made a connection with tokens.
func (n *introduced) reach(t *broker.Talk, m proto.Message, tcp int) {
	now := time.Now()
	server := n.servers.of(m.Peer)
	known, shunned := now.Sub(server.known) < knownAge, now.Before(server.shunned)
	begun := n.begin(t, m, tcp, n.reaching, func(talk *broker.Talk, tcp int) func() {
		r := &reach{n: n, talk: talk, tcp: tcp, m: m, end: introduce.Answer{Socket: -1, Memory: -1}}
		defer func() {
			unix.Close(talk.FD)
			r.drop()
			if r.tcp >= 0 {
				dispose.Close(r.tcp)
			}
		}()
		if shunned {
			n.decline(introduce.RoleClient, tcp)
			r.refuse(clc.DiagRefused)
			return nil
		}
		r.run(known)
		return r.relay
	})
	if !begun {
		t.Reply(m.Kind, proto.StatusNo, -1)
	}
}

// refuse has the client stay with TCP.
func (r *reach) refuse(why clc.Diagnosis) {
	if r.stays {
		return
	}
	r.stays = true
	send(r.talk.FD, proto.Reply{Kind: r.m.Kind, Status: proto.StatusNo, Reason: why})
	r.n.s.record.offered(r.m, r.talk.PID, why)
}

func send(fd int, r proto.Reply) {
	unix.Sendmsg(fd, r.Append(nil), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// give gives the client its end, and tells the agent.
func (r *reach) give(q *introduce.Question) {
	if r.given || r.stays {
		return
	}
	r.given = r.talk.Reply(r.m.Kind, proto.StatusOK, r.end.Socket, r.end.Memory)
	r.drop()
	if !r.given { // rule: TestReachGone
		r.stays = true // or it has died
		q.Recall()
		return
	}
	q.Ready()
	r.talk.Reply(r.m.Kind, proto.StatusOK, -1) // our copy is closed now
	r.n.s.record.offered(r.m, r.talk.PID, clc.DiagNone)
}

// drop closes our copy of the client's end, at once: its program waits for that.
func (r *reach) drop() {
	closeMemory(&r.end)
	if r.end.Socket >= 0 {
		dispose.Now(r.end.Socket)
		r.end.Socket = -1
	}
}

// name gives the client's end the name of its connection.
func (r *reach) name() bool {
	n := proto.Name{
		Role: proto.RoleClient, IPv6: r.m.IPv6, Local: r.m.Local, Peer: r.m.Peer,
		Unique: cookieOf(r.end.Socket),
	}
	return unix.Bind(r.end.Socket, &unix.SockaddrUnix{Name: n.String()}) == nil
}

// run deals with the connection until both ends of the pair have found their programs, or it is
// TCP. known: the server has taken ends before.
func (r *reach) run(known bool) {
	client, why := r.n.agent()
	if client == nil {
		r.refuse(why)
		return
	}
	q, err := client.AskPair(introduce.RoleClient, uintptr(r.tcp), reachTime, r.m.Rings)
	if err != nil {
		r.refuse(clc.DiagNoAgent)
		return
	}
	late, last := time.NewTimer(answerTime), time.NewTimer(r.n.fate)
	defer late.Stop()
	defer last.Stop()
	var a introduce.Answer
	select {
	case a = <-q.Answer(): // at once
	case <-late.C:
		r.n.bureau.Slow()
		r.refuse(clc.DiagNoAgent)
		q.Recall()
		select {
		case a = <-q.Answer():
		case <-last.C: // rule: TestAgentHangs: last.C -> (chan time.Time)(nil)
			q.Withdraw()
			return
		}
	}
	if a.Socket < 0 || a.Returned { // by the keeper of an agent that has died
		a.Discard()
		r.refuse(bureau.Reason(a.Reason))
		r.n.shun(r.m, a.Reason)
		return
	}
	r.end = a
	if !r.stays && !r.name() {
		r.refuse(clc.DiagBusy)
		q.Recall()
	}
	if known {
		r.give(q)
	}
	r.settle(q, last.C)
}

// settle waits for the fate of the end that the agent has, but not longer than until last.
func (r *reach) settle(q *introduce.Question, last <-chan time.Time) {
	var speaks, ended <-chan struct{}
	defer r.n.unwatch(r.tcp)
	first := time.NewTimer(firstTime)
	defer first.Stop()
	for {
		select {
		case a := <-q.Answer():
			if a.Wanted {
				r.give(q)
				continue
			}
			switch {
			case a.Taken:
				r.taken(ended)
			case a.Returned:
				r.returned(&a)
			default: // the agent has ended
				if !r.given {
					r.refuse(clc.DiagNoAgent)
				}
			}
			return
		case <-speaks:
			speaks = nil
			q.Recall()
		case <-last:
			q.Withdraw()
			return
		case <-first.C:
			r.give(q) // connect does not wait for accept
			if r.given {
				ended = r.n.watch(r.tcp)
				speaks = ended
			}
		}
	}
}

// taken ends the TCP connection when the server has: else the client's port would be another
// connection's while the server's socket is there.
func (r *reach) taken(ended <-chan struct{}) {
	n := r.n
	n.s.Mu.Lock()
	n.servers.took(r.m.Peer, time.Now())
	n.s.Mu.Unlock()
	if ended == nil {
		ended = n.watch(r.tcp)
	}
	part := time.NewTimer(partTime)
	defer part.Stop()
	select {
	case <-ended:
	case <-part.C:
	}
	broker.LingerNot(r.tcp)
}

// returned has both ends of the pair: the connection is TCP.
func (r *reach) returned(a *introduce.Answer) {
	why := bureau.Reason(a.Reason)
	r.n.shun(r.m, a.Reason)
	if !r.given {
		dispose.Close(a.Socket)
		r.refuse(why)
		return
	}
	r.n.s.record.stayed(r.m.Peer, r.m.Local, why)
	// A server's supervisor may have a copy, also of an end that the agent's keeper gives back.
	shared := a.Reason == introduce.RefusedGivenBack || a.Reason == introduce.RefusedBusy
	end, tcp := a.Socket, r.tcp
	r.n.unwatch(tcp)
	r.tcp = -1
	r.relay = func() { join(end, tcp, shared) }
}

// join joins an end to a TCP connection for as long as these last. The descriptors are its own.
// Another user may have a copy of an end that is shared.
func join(end, tcp int, shared bool) {
	a, b := broker.Stream(end), broker.Stream(tcp)
	if a != nil && shared {
		a = carefully(a)
	}
	if a != nil && b != nil {
		broker.Join(a, b)
	} else {
		broker.CloseStreams(a, b)
	}
}

// A careful half does not wait in calls: somebody else may take O_NONBLOCK from its socket.
type careful struct {
	broker.Half
	raw syscall.RawConn
}

// carefully makes a half careful, or closes it and returns nil.
func carefully(h broker.Half) broker.Half {
	if c, ok := h.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			return careful{h, raw}
		}
	}
	h.Close()
	return nil
}

// Read implements [net.Conn].
func (c careful) Read(b []byte) (n int, err error) {
	done := c.raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
		return err != unix.EAGAIN
	})
	switch {
	case done != nil:
		return 0, done
	case err == nil && n == 0:
		return 0, io.EOF
	}
	return max(n, 0), err
}

// Write implements [net.Conn].
func (c careful) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		sent := 0
		done := c.raw.Write(func(fd uintptr) bool {
			sent, err = unix.SendmsgN(int(fd), b[n:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			return err != unix.EAGAIN
		})
		if done != nil {
			return n, done
		}
		n += max(sent, 0)
	}
	return n, err
}

// shun remembers a server that does not take connections, so that the next ones are TCP at once.
// One for which a quota, or the agent's end, was the reason is asked again.
func (n *introduced) shun(m proto.Message, why introduce.Refusal) {
	if why == introduce.RefusedBusy {
		return
	}
	n.s.Mu.Lock()
	defer n.s.Mu.Unlock()
	n.servers.refused(m.Peer, time.Now())
}
