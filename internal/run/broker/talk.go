package broker

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/user"
	"github.com/gosmc/smc/wire/clc"
)

// A Talk is one socket on which a program asks.
type Talk struct {
	FD      int
	PID     int    // of the program; 0 if it is in a PID namespace that we do not see
	Outside bool   // its user need not be ours
	UID     uint32 // of one from outside
	Ends    Ends   // of the socket that has come from outside
	watched bool
	offer   *Offer // that it has made; it may have been claimed since
	Claimed *Offer // that it has claimed, from outside
	Relays  bool   // it has a place among the relays, and is to send the bytes and ends to copy
}

// accept takes new talks, but not so many that others have to wait: it is called again for the
// rest. A message that is there already is answered at once.
func (b *Broker) accept() {
	for range MaxAccepts {
		fd, err := AcceptFrom(b.Socket)
		if err != nil {
			return // none is left, or no descriptors: a program that waits gives up by itself
		}
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || !user.Ours(int(cred.Uid)) || len(b.Talks) >= maxTalks || fd >= b.lastTalk {
			dispose.Close(fd) // something may wait in it
			continue
		}
		t := &Talk{FD: fd, PID: int(cred.Pid)}
		b.Talks[fd] = t
		b.hear(t)
	}
}

// AcceptFrom accepts a connection to a socket that does not wait.
func AcceptFrom(socket int) (int, error) {
	fd, _, err := unix.Accept4(socket, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err == unix.EMFILE || err == unix.ENFILE {
		time.Sleep(time.Millisecond) // the talk that waits will be here again at once
	}
	return fd, err
}

// Receive takes one message and the descriptors that its kind has. There is room for one from
// outside: more would take up descriptors of our own programs for as long as the first one takes to
// close. Only the goroutine of that talk waits for that.
func (t *Talk) Receive(flags int) (m proto.Message, fds []int, err error) {
	var b [proto.MessageLen + 1]byte
	var control [dispose.Room]byte
	room := control[:]
	if t.Outside {
		room = control[:unix.CmsgLen(4)] // rule: internal/run/supervisor TestOutsideMany: unix.CmsgLen(4) -> dispose.Room
	}
	n, with, got, _, err := unix.Recvmsg(t.FD, b[:], room, flags|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return m, nil, err
	}
	fds = dispose.Descriptors(control[:max(with, 0)])
	m, err = proto.ParseMessage(b[:max(n, 0)])
	wanted := 0
	switch m.Kind {
	case proto.KindOffer, proto.KindConnected, proto.KindClaim, proto.KindReturn,
		proto.KindReach, proto.KindMeet, proto.KindCarry, proto.KindCarried:
		wanted = 1
	case proto.KindRelay:
		if t.Relays {
			wanted = RelayBrings
		}
	}
	if err == nil && (got&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) != wanted) {
		err = proto.ErrMessage
	}
	return m, fds, err
}

// returns reports whether the next message is a Return.
func (t *Talk) returns() bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(t.FD, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == nil && n == 1 && proto.Kind(b[0]) == proto.KindReturn
}

// hear takes one message.
func (b *Broker) hear(t *Talk) {
	if t.returns() && !Spare(b.Socket, 1) { // rule: internal/run/supervisor TestLetterReturned
		time.Sleep(returnPause) // it would be lost; other programs have to wait, too
		if !t.watched {
			t.watched = b.Poll.Add(t.FD, unix.EPOLLIN) == nil
		}
		return
	}
	m, fds, err := t.Receive(unix.MSG_DONTWAIT)
	if err == unix.EAGAIN || err == unix.EINTR {
		if !t.watched {
			t.watched = b.Poll.Add(t.FD, unix.EPOLLIN) == nil
		}
		if !t.watched {
			b.hangUp(t)
		}
		return
	}
	if err != nil {
		dispose.Close(fds...)
		b.hangUp(t)
		return
	}
	if b.answer(t, m, fds) {
		if !t.watched {
			t.watched = b.Poll.Add(t.FD, unix.EPOLLIN) == nil
		}
		if t.watched {
			return
		}
	}
	b.hangUp(t)
}

// answer carries out a message. Descriptors that came with it are ours. It reports whether another
// message may follow.
func (b *Broker) answer(t *Talk, m proto.Message, fds []int) (more bool) {
	if t.Relays != (m.Kind == proto.KindRelay && len(fds) > 0) { // rule: internal/run/supervisor TestHandedHostile
		dispose.Close(fds...)
		return false
	}
	if ends := m.Kind == proto.KindConnected || m.Kind == proto.KindCancel; ends != (t.offer != nil) {
		dispose.Close(fds...)
		return false
	}
	switch m.Kind {
	case proto.KindOffer:
		var reason clc.Diagnosis
		if t.offer, reason = b.take(m, fds[0], t.PID); t.offer == nil {
			t.send(proto.Reply{Kind: m.Kind, Status: proto.StatusNo, Reason: reason}, -1)
			return false
		}
		return t.Reply(m.Kind, proto.StatusOK, -1)
	case proto.KindConnected:
		b.connected(t.offer, fds[0])
		t.offer = nil
	case proto.KindCancel:
		o := t.offer
		t.offer = nil
		t.Reply(m.Kind, OkOr(b.cancel(o), proto.StatusClaimed), -1)
	default:
		if b.owner == nil { // rule: internal/run/supervisor TestDeskHostile
			dispose.Close(fds...)
			return false
		}
		return b.owner.Answer(t, m, fds)
	}
	return false
}

// Reply sends an answer, with the descriptors that are not negative. It reports whether it was
// sent.
func (t *Talk) Reply(k proto.Kind, s proto.Status, fds ...int) bool {
	return t.send(proto.Reply{Kind: k, Status: s}, fds...)
}

func (t *Talk) send(r proto.Reply, fds ...int) bool {
	var rights []byte
	if fds = slices.DeleteFunc(fds, func(fd int) bool { return fd < 0 }); len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	return unix.Sendmsg(t.FD, r.Append(nil), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) == nil
}

// hangUp ends a talk. An offer that was neither connected nor cancelled ends with it: its program has died.
func (b *Broker) hangUp(t *Talk) {
	delete(b.Talks, t.FD)
	b.Poll.Remove(t.FD)
	dispose.Close(t.FD) // more may have come than was read
	if t.Relays {
		<-b.Relays
		t.Relays = false
	}
	if t.offer != nil {
		b.cancel(t.offer)
		t.offer = nil
	}
}

// Spare reports whether n descriptors can be had. fd is any.
func Spare(fd, n int) bool {
	var have [8]int
	got := 0
	for ; got < min(n, len(have)); got++ {
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			break
		}
		have[got] = copied
	}
	proto.CloseAll(have[:got])
	return got == n
}

// okOr is StatusOK, or another status.
func OkOr(ok bool, otherwise proto.Status) proto.Status {
	if ok {
		return proto.StatusOK
	}
	return otherwise
}
