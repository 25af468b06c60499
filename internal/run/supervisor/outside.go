package supervisor

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
)

// outsiders are talks that came by the door, by user; the users need not be ours. A descriptor that
// they send can make its receiver wait, in the receive or the close. A socket with SO_LINGER does
// so, or a file of a file system in user space. So each talk has a goroutine, which has the lock
// only for its answer.
type outsiders struct {
	users   map[uint32]int
	count   int
	refused int  // talks of which there were too many, and that are not closed yet
	over    bool // the supervisor has ended
}

// admit takes one more of a user. It reports false if there are too many.
func (o *outsiders) admit(uid uint32) bool {
	if o.count >= maxOutside || o.users[uid] >= maxOutsideUser {
		return false
	}
	o.count++
	o.users[uid]++
	return true
}

func (o *outsiders) leave(uid uint32) {
	o.count--
	if o.users[uid]--; o.users[uid] == 0 {
		delete(o.users, uid)
	}
}

// acceptOutside takes new talks that come by the door, as [broker.Broker.accept] takes others.
func (s *supervisor) acceptOutside() {
	for range broker.MaxAccepts {
		if s.outsiders.refused >= maxRefused { // rule: TestOutsideRefused
			s.Poll.Again(s.door, 0) // until one of these is closed
			return
		}
		fd, err := broker.AcceptFrom(s.door)
		if err != nil {
			return
		}
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || !s.outsiders.admit(cred.Uid) {
			s.refuse(fd)
			continue
		}
		go s.hearOutside(&broker.Talk{FD: fd, PID: int(cred.Pid), Outside: true, UID: cred.Uid}, cred.Uid)
	}
}

// refuse closes a talk that came by the door and is one too many. A descriptor may wait in it, and
// its close takes as long as its program wants. Others must not wait for that, nor may there be any
// number of them: where too many are being closed, a talk that comes by the door is left
// unaccepted.
func (s *supervisor) refuse(fd int) {
	s.outsiders.refused++
	go func() {
		unix.Close(fd)
		s.Mu.Lock()
		defer s.Mu.Unlock()
		s.outsiders.refused--
		if !s.outsiders.over {
			s.Poll.Again(s.door, unix.EPOLLIN)
		}
	}()
}

// hearOutside takes the one message that a program may send by the door. The caller has not the lock.
func (s *supervisor) hearOutside(t *broker.Talk, uid uint32) {
	defer func() {
		unix.Close(t.FD)
		s.Mu.Lock()
		defer s.Mu.Unlock()
		s.outsiders.leave(uid)
	}()
	unix.SetNonblock(t.FD, false)
	timeout := unix.NsecToTimeval(int64(proto.TalkTimeout))
	unix.SetsockoptTimeval(t.FD, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
	m, fds, err := t.Receive(0)
	for err == unix.EINTR {
		m, fds, err = t.Receive(0)
	}
	if err == nil {
		if len(fds) > 0 {
			t.Ends = broker.EndsOf(fds[0])
		}
		s.Mu.Lock()
		if !s.outsiders.over && hears(s, t, m.Kind) { // rule: TestClaimOutside: hears(s, t, m.Kind) -> true
			s.Answer(t, m, fds)
		}
		s.Mu.Unlock()
	}
	if t.Claimed != nil {
		releaseOutside(t.Claimed, fds[0])
		return
	}
	proto.CloseAll(fds)
}

// hears reports whether a message may come by the door.
func hears(s *supervisor, t *broker.Talk, kind proto.Kind) bool {
	switch kind {
	case proto.KindBoard, proto.KindClaim, proto.KindMeet, proto.KindCarried:
		return true
	case proto.KindAnnounce:
		return s.isFirst(t)
	}
	return false
}

// isFirst reports whether a talk is of the process that 'gosmc run' has become. That process may
// have another user by now. It is older than the door, so as long as it lives nobody else can have
// knocked with its process ID.
func (s *supervisor) isFirst(t *broker.Talk) bool {
	return s.programs != nil && t.PID == s.first && s.programs.lives(s.first) // rule: TestAnnounceOutside: s.programs.lives(s.first) -> true
}

// releaseOutside is the release of an offer for a goroutine that may wait: for the client, but not long, as
// others may come, and for whatever the socket's program has its close wait for.
func releaseOutside(o *broker.Offer, accepted int) {
	if o.Back != nil {
		select {
		case <-o.Back:
		case <-time.After(outsideWait):
			unix.Close(accepted) // in good order
			return
		}
	}
	broker.LingerNot(accepted)
	unix.Close(accepted)
}
