package run

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/user"
	"github.com/gosmc/smc/wire/clc"
)

// A talk is one socket on which a program asks.
type talk struct {
	fd      int
	pid     int  // of the program; 0 if it is in a PID namespace that we do not see
	outside bool // its user need not be ours
	watched bool
	offer   *offer // that it has made; it may have been claimed since
	claimed *offer // that it has claimed, from outside
	relays  bool   // it has a place among the relays, and is to send the bytes and ends to copy
}

// accept takes new talks, but not so many that others have to wait: it is called again for the
// rest. A message that is there already is answered at once.
func (s *supervisor) accept(from int) {
	for range maxAccepts {
		if from == s.door && s.outsiders.refused >= maxRefused { // rule: TestOutsideRefused
			s.poll.again(s.door, 0) // until one of these is closed
			return
		}
		fd, _, err := unix.Accept4(from, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err == unix.EMFILE || err == unix.ENFILE {
			time.Sleep(time.Millisecond) // the talk that waits will be here again at once
		}
		if err != nil {
			return // none is left, or no descriptors: a program that waits gives up by itself
		}
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		switch {
		case from == s.door && (err != nil || !s.outsiders.admit(cred.Uid)):
			s.refuse(fd)
		case err != nil:
			dispose.Close(fd)
		case from == s.door:
			go s.hearOutside(&talk{fd: fd, pid: int(cred.Pid), outside: true}, cred.Uid)
		case from == s.socket && user.Ours(int(cred.Uid)) && len(s.talks) < maxTalks && fd < s.lastTalk:
			t := &talk{fd: fd, pid: int(cred.Pid)}
			s.talks[fd] = t
			s.hear(t)
		default:
			dispose.Close(fd) // something may wait in it
		}
	}
}

// receive takes one message and the descriptors that its kind has. There is room for one from
// outside: more would take up descriptors of our own programs for as long as the first one takes to
// close. Only the goroutine of that talk waits for that.
func (t *talk) receive(flags int) (m message, fds []int, err error) {
	var b [messageLen + 1]byte
	var control [dispose.Room]byte
	room := control[:]
	if t.outside {
		room = control[:unix.CmsgLen(4)] // rule: TestOutsideMany: unix.CmsgLen(4) -> dispose.Room
	}
	n, with, got, _, err := unix.Recvmsg(t.fd, b[:], room, flags|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return m, nil, err
	}
	fds = dispose.Descriptors(control[:max(with, 0)])
	m, err = parseMessage(b[:max(n, 0)])
	wanted := 0
	switch m.kind {
	case kindOffer, kindConnected, kindClaim, kindReturn:
		wanted = 1
	case kindRelay:
		if t.relays {
			wanted = relayBrings
		}
	}
	if err == nil && (got&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) != wanted) {
		err = errMessage
	}
	return m, fds, err
}

// returns reports whether the next message is a Return.
func (t *talk) returns() bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(t.fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == nil && n == 1 && kind(b[0]) == kindReturn
}

// hear takes one message.
func (s *supervisor) hear(t *talk) {
	if t.returns() && !spare(s.socket, 1) { // rule: TestLetterReturned
		time.Sleep(returnPause) // it would be lost; other programs have to wait, too
		if !t.watched {
			t.watched = s.poll.add(t.fd, unix.EPOLLIN) == nil
		}
		return
	}
	m, fds, err := t.receive(unix.MSG_DONTWAIT)
	if err == unix.EAGAIN || err == unix.EINTR {
		if !t.watched {
			t.watched = s.poll.add(t.fd, unix.EPOLLIN) == nil
		}
		if !t.watched {
			s.hangUp(t)
		}
		return
	}
	if err != nil {
		dispose.Close(fds...)
		s.hangUp(t)
		return
	}
	if s.answer(t, m, fds) {
		if !t.watched {
			t.watched = s.poll.add(t.fd, unix.EPOLLIN) == nil
		}
		if t.watched {
			return
		}
	}
	s.hangUp(t)
}

// answer carries out a message. Descriptors that came with it are ours, but for those from outside,
// which are the caller's. It reports whether another message may follow.
func (s *supervisor) answer(t *talk, m message, fds []int) (more bool) {
	if t.relays != (m.kind == kindRelay && len(fds) > 0) { // rule: TestHandedHostile
		dispose.Close(fds...)
		return false
	}
	if t.offer == nil && (m.kind == kindConnected || m.kind == kindCancel) || t.offer != nil && m.kind != kindConnected && m.kind != kindCancel {
		dispose.Close(fds...)
		return false
	}
	if s.programs == nil && m.kind != kindOffer && m.kind != kindConnected && m.kind != kindCancel { // rule: TestDeskHostile
		dispose.Close(fds...)
		return false
	}
	switch m.kind {
	case kindAnnounce, kindBoard, kindClaim, kindRelay:
		// It is one of ours: we are there as long as it is. A program that offers has another
		// supervisor, and a process that says nothing may be one. A program that cannot be watched
		// is served as long as others are there.
		if t.pid > 0 && !t.outside {
			s.programs.add(t.pid)
		}
	}
	switch m.kind {
	case kindAnnounce:
		if m.unique == 0 {
			s.listeners.look(m.local.Port())
			t.reply(m.kind, statusNo, -1)
			break
		}
		t.reply(m.kind, okOr(s.listeners.add(m), statusNo), -1)
	case kindBoard:
		t.reply(m.kind, statusOK, s.board.fd)
	case kindOffer:
		var reason clc.Diagnosis
		if t.offer, reason = s.take(m, fds[0], t.pid); t.offer == nil {
			t.send(reply{m.kind, statusNo, reason}, -1)
			return false
		}
		return t.reply(m.kind, statusOK, -1)
	case kindConnected:
		s.connected(t.offer, fds[0])
		t.offer = nil
	case kindCancel:
		o := t.offer
		t.offer = nil
		t.reply(m.kind, okOr(s.cancel(o), statusClaimed), -1)
	case kindClaim:
		s.readUntil(keyOf(m.peer, m.local)) // rule: TestLetterFirst
		o := s.claim(t, m, fds[0])
		switch {
		case t.outside:
			t.claimed = o
		case o != nil:
			o.release(fds[0])
		default:
			dispose.Close(fds[0])
		}
	case kindReturn:
		s.read(unsent{fds[0], time.Now().Add(letterPatience)})
	case kindTaken:
		s.record.taken(m)
	case kindRelay:
		if !t.relays {
			return s.mayHand(t)
		}
		t.relays = false
		t.reply(m.kind, okOr(s.handed(m, fds), statusNo), -1)
	}
	return false
}

func okOr(ok bool, otherwise status) status {
	if ok {
		return statusOK
	}
	return otherwise
}

// reply sends an answer, with a descriptor unless fd is negative. It reports whether it was sent.
func (t *talk) reply(k kind, s status, fd int) bool { return t.send(reply{kind: k, status: s}, fd) }

func (t *talk) send(r reply, fd int) bool {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	return unix.Sendmsg(t.fd, r.append(nil), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) == nil
}

// hangUp ends a talk. An offer that was neither connected nor cancelled ends with it: its program has died.
func (s *supervisor) hangUp(t *talk) {
	delete(s.talks, t.fd)
	s.poll.remove(t.fd)
	dispose.Close(t.fd) // more may have come than was read
	if t.relays {
		<-s.relays
		t.relays = false
	}
	if t.offer != nil {
		s.cancel(t.offer)
		t.offer = nil
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// isTCP reports whether a descriptor that a program has sent is a TCP socket. Other protocols have
// stream sockets as well, with ports of their own: one of SCTP can have the addresses of any TCP
// connection. A listener of MPTCP accepts sockets of TCP, or of MPTCP; both have ports of TCP.
func isTCP(fd int) bool {
	if !isSocket(fd, unix.AF_INET, unix.AF_INET6) {
		return false
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err == nil && hasTCPPorts(protocol)
}

func hasTCPPorts(protocol int) bool {
	return protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_MPTCP
}

// isSocket reports whether a descriptor that a program has sent is a stream socket of a family.
func isSocket(fd int, families ...int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return false
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return false
	}
	for _, f := range families {
		if domain == f {
			return true
		}
	}
	return false
}

// file makes an [os.File] of a descriptor, with which the poller of the runtime can wait.
func file(fd int) *os.File {
	unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "socket")
}
