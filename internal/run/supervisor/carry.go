package supervisor

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// EngineVerb is the verb with which this program is started again as an engine. It gets a socket as
// descriptor 3, a [proto.Count] of the connections that have ended as 4, and the table of resets, if there is
// one, as 5: by the time that it runs the program may have ended, and the table with it.
const EngineVerb = "run-engine"

// A carrier hands connections with other hosts to an engine: a process of its own, which speaks CLC and
// moves the bytes between a pair of Unix sockets and SMC-R. It is started for the first connection, and
// outlives the supervisor by the connections that it has. The supervisor's lock guards it.
//
//	program             supervisor                  engine
//	 TCP is connected
//	 Carry(TCP) ------>  (pair)
//	  <---- end, OK
//	  <---- OK           our copies are closed
//	                     (TCP, other end) ------->  CLC over TCP, bytes of the pair
//
// The other end has a mark from the beginning: should it be closed by anything but an engine that takes
// the mark away, as by the end of that, the program is told of a reset.
//
// An engine that starts, or has no processor, does not take connections at once. Those wait: a server
// that was left to TCP would find the client's Proposal among its bytes.
type carrier struct {
	s       *supervisor
	engine  int // the socket to the engine; 0: none was started
	started time.Time
	resets  *proto.Resets
	given   uint32        // connections that were handed over
	ended   *proto.Count  // of these: those that have ended
	waiting chan handover // to the engine
	handed  chan struct{} // closed when waiting is, and is empty
}

// A handover is a connection on its way to an engine. Its descriptors are its own.
type handover struct {
	message  proto.Message
	tcp, end int
}

// startEngine starts this program again as an engine.
func startEngine(dir string, socket, ended, resets *os.File) (*os.Process, error) {
	return os.StartProcess("/proc/self/exe", []string{"gosmc", EngineVerb, dir}, &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, socket, ended, resets},
		Sys: &syscall.SysProcAttr{Setsid: true}, // a signal to our session is none to its connections
	})
}

// carry answers a program that has connected to another host, or has accepted a connection from there.
func (c *carrier) carry(t *broker.Talk, m proto.Message, tcp int) {
	server, client := m.Peer, m.Local
	if m.Kind == proto.KindCarried {
		server, client = client, server
	}
	reason := c.mayCarry(t, m, tcp)
	if reason == clc.DiagNone {
		reason = c.carryPair(t, m, tcp)
	}
	if reason != clc.DiagNone {
		t.Reply(m.Kind, proto.StatusNo, -1)
		c.s.record.stayed(server, client, reason)
	}
}

// mayCarry returns why a connection is left to TCP; DiagNone if it is not.
func (c *carrier) mayCarry(t *broker.Talk, m proto.Message, tcp int) clc.Diagnosis {
	switch {
	case !c.s.followed.carries() || m.Kind == proto.KindCarried && c.s.Policy().Listen.Refuses(m.Local) != "":
		return clc.DiagNotAllowed
	case t.Outside && !c.ofOurListener(m, tcp): // rule: TestCarriedOutside: t.Outside && !c.ofOurListener(m, tcp) -> false
		return clc.DiagOtherUser
	case !c.s.HasEnds(t.EndsOf(tcp), m.Local, m.Peer) || !broker.Spare(c.s.Socket, carryBrings):
		return clc.DiagBusy
	case !c.ready(filepath.Dir(c.s.Path)):
		return clc.DiagBusy
	}
	return clc.DiagNone
}

// ofOurListener reports whether a connection of a process of another user was accepted from a
// listener of our programs, as workers of a server do: only a process that such a program has given
// the listener can have done it.
func (c *carrier) ofOurListener(m proto.Message, tcp int) bool {
	netns, err := proto.NetNSOf(tcp)
	l := c.s.Listeners
	if err != nil || netns != l.NetNS { // rule: TestCarriedOutside: netns != l.NetNS -> netns == l.NetNS
		return false
	}
	return m.Kind == proto.KindCarried && l.Has(m.Local)
}

// carries reports whether the operator wants connections with other hosts to leave TCP.
func (f *followed) carries() bool {
	return f.settings.BetweenHosts && !f.settings.Off
}

// carryPair gives a program one end of a pair, and the engine the other one with the TCP socket.
func (c *carrier) carryPair(t *broker.Talk, m proto.Message, tcp int) clc.Diagnosis {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return clc.DiagBusy
	}
	own := proto.Name{Role: proto.RoleClient, IPv6: m.IPv6, Local: m.Local, Peer: m.Peer,
		Unique: cookieOf(ends[0])}
	if m.Kind == proto.KindCarried {
		own.Role = proto.RoleServer
	}
	other := own
	other.Role = proto.RoleEngine
	for i, n := range []proto.Name{own, other} {
		if err := unix.Bind(ends[i], &unix.SockaddrUnix{Name: n.String()}); err != nil {
			proto.CloseAll(ends[:])
			return clc.DiagBusy
		}
	}
	c.resets.Set(other.String(), true)
	kept, err := unix.FcntlInt(uintptr(tcp), unix.F_DUPFD_CLOEXEC, 0) // tcp is the caller's
	if err == nil && t.Reply(m.Kind, proto.StatusOK, ends[0]) {
		unix.Close(ends[0])
		t.Reply(m.Kind, proto.StatusOK, -1)
		c.given++
		c.waiting <- handover{m, kept, ends[1]} // ready has seen that there is room
		return clc.DiagNone
	}
	c.resets.Set(other.String(), false)
	proto.CloseAll(ends[:])
	if err != nil {
		return clc.DiagBusy
	}
	unix.Close(kept)
	return clc.DiagNone // the program is gone
}

// ready reports whether an engine takes connections, and starts one if none was.
func (c *carrier) ready(dir string) bool {
	if c.engine != 0 {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(c.engine)}}, 0); err != nil || n == 0 {
			return err == nil && len(c.waiting) < cap(c.waiting) && int(c.given-c.ended.Load()) < carryRoom()
		}
		c.close() // it has ended
	}
	if time.Since(c.started) < enginePause {
		return false
	}
	c.started = time.Now()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	socket := os.NewFile(uintptr(ends[1]), "engine")
	defer socket.Close()
	resets := proto.OpenResets(dir)
	ended, err := proto.NewCount()
	if err == nil {
		var process *os.Process
		if process, err = startEngine(dir, socket, ended.File(), resets.File()); err == nil {
			go process.Wait() // so that it is no zombie when it has ended
		}
	}
	if err != nil {
		unix.Close(ends[0])
		resets.Close()
		ended.Close()
		return false
	}
	c.engine, c.resets, c.given, c.ended = ends[0], resets, 0, ended
	c.waiting, c.handed = make(chan handover, maxHandovers), make(chan struct{})
	go deliver(c.engine, c.ended, c.waiting, c.handed)
	return carryRoom() > 0
}

// carryRoom is how many connections an engine can have with the limit of open files that it gets
// from us. One that is joined to TCP needs its two descriptors, and a pipe for each direction.
func carryRoom() int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0
	}
	return int(min((max(files.Max, engineFiles)-engineFiles)/6, maxCarried))
}

// deliver sends an engine the connections that wait, and ends when no more come. If the engine has ended
// they have, too.
func deliver(engine int, ended *proto.Count, waiting <-chan handover, handed chan<- struct{}) {
	defer close(handed)
	for h := range waiting {
		again, err := h.send(engine)
		for ; again; again, err = h.send(engine) {
			unix.Poll([]unix.PollFd{{Fd: int32(engine), Events: unix.POLLOUT}}, -1)
		}
		if err != nil {
			ended.Add(1)
		}
		dispose.Close(h.tcp, h.end)
	}
}

// send sends an engine a connection, and reports whether that is to be tried again, or why it cannot be sent.
func (h handover) send(engine int) (again bool, err error) {
	rights := unix.UnixRights(h.tcp, h.end)
	err = unix.Sendmsg(engine, h.message.Append(nil), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	switch err {
	case unix.EAGAIN, unix.EINTR:
		return true, nil
	case unix.ETOOMANYREFS, unix.ENOBUFS, unix.ENOMEM: // the user has too many descriptors on their way
		time.Sleep(time.Millisecond)
		return true, nil
	}
	return false, err
}

// close lets the engine go, which ends when its connections have.
func (c *carrier) close() {
	if c.engine == 0 {
		return
	}
	close(c.waiting)
	select {
	case <-c.handed:
	case <-time.After(handOverTime): // it is stopped, and its connections end with us
		unix.Shutdown(c.engine, unix.SHUT_RDWR)
		<-c.handed
	}
	dispose.Close(c.engine)
	c.resets.Close()
	c.ended.Close()
	c.engine, c.resets, c.ended, c.waiting = 0, nil, nil, nil
}
