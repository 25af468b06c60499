package supervisor

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/proto"
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
func (t *talk) receive(flags int) (m proto.Message, fds []int, err error) {
	var b [proto.MessageLen + 1]byte
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
	m, err = proto.ParseMessage(b[:max(n, 0)])
	wanted := 0
	switch m.Kind {
	case proto.KindOffer, proto.KindConnected, proto.KindClaim, proto.KindReturn:
		wanted = 1
	case proto.KindRelay:
		if t.relays {
			wanted = relayBrings
		}
	}
	if err == nil && (got&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) != wanted) {
		err = proto.ErrMessage
	}
	return m, fds, err
}

// returns reports whether the next message is a Return.
func (t *talk) returns() bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(t.fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == nil && n == 1 && proto.Kind(b[0]) == proto.KindReturn
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
func (s *supervisor) answer(t *talk, m proto.Message, fds []int) (more bool) {
	if t.relays != (m.Kind == proto.KindRelay && len(fds) > 0) { // rule: TestHandedHostile
		dispose.Close(fds...)
		return false
	}
	if t.offer == nil && (m.Kind == proto.KindConnected || m.Kind == proto.KindCancel) || t.offer != nil && m.Kind != proto.KindConnected && m.Kind != proto.KindCancel {
		dispose.Close(fds...)
		return false
	}
	if s.programs == nil && m.Kind != proto.KindOffer && m.Kind != proto.KindConnected && m.Kind != proto.KindCancel { // rule: TestDeskHostile
		dispose.Close(fds...)
		return false
	}
	switch m.Kind {
	case proto.KindAnnounce, proto.KindBoard, proto.KindClaim, proto.KindRelay:
		// It is one of ours: we are there as long as it is. A program that offers has another
		// supervisor, and a process that says nothing may be one. A program that cannot be watched
		// is served as long as others are there.
		if t.pid > 0 && !t.outside {
			s.programs.add(t.pid)
		}
	}
	switch m.Kind {
	case proto.KindAnnounce:
		if m.Unique == 0 {
			s.listeners.look(m.Local.Port())
			t.reply(m.Kind, proto.StatusNo, -1)
			break
		}
		t.reply(m.Kind, okOr(s.listeners.add(m), proto.StatusNo), -1)
	case proto.KindBoard:
		t.reply(m.Kind, proto.StatusOK, s.board.fd)
	case proto.KindOffer:
		var reason clc.Diagnosis
		if t.offer, reason = s.take(m, fds[0], t.pid); t.offer == nil {
			t.send(proto.Reply{Kind: m.Kind, Status: proto.StatusNo, Reason: reason}, -1)
			return false
		}
		return t.reply(m.Kind, proto.StatusOK, -1)
	case proto.KindConnected:
		s.connected(t.offer, fds[0])
		t.offer = nil
	case proto.KindCancel:
		o := t.offer
		t.offer = nil
		t.reply(m.Kind, okOr(s.cancel(o), proto.StatusClaimed), -1)
	case proto.KindClaim:
		s.readUntil(keyOf(m.Peer, m.Local)) // rule: TestLetterFirst
		o := s.claim(t, m, fds[0])
		switch {
		case t.outside:
			t.claimed = o
		case o != nil:
			o.release(fds[0])
		default:
			dispose.Close(fds[0])
		}
	case proto.KindReturn:
		s.read(unsent{fds[0], time.Now().Add(letterPatience)})
	case proto.KindTaken:
		s.record.taken(m)
	case proto.KindRelay:
		if !t.relays {
			return s.mayHand(t)
		}
		t.relays = false
		t.reply(m.Kind, okOr(s.handed(m, fds), proto.StatusNo), -1)
	}
	return false
}

func okOr(ok bool, otherwise proto.Status) proto.Status {
	if ok {
		return proto.StatusOK
	}
	return otherwise
}

// reply sends an answer, with a descriptor unless fd is negative. It reports whether it was sent.
func (t *talk) reply(k proto.Kind, s proto.Status, fd int) bool {
	return t.send(proto.Reply{Kind: k, Status: s}, fd)
}

func (t *talk) send(r proto.Reply, fd int) bool {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	return unix.Sendmsg(t.fd, r.Append(nil), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) == nil
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
