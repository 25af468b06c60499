package supervisor

import (
	"time"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// claim hands an end to the program that has accepted its connection. The connection's TCP socket
// proves that: a program that has the socket could read and write in it. claim returns the offer,
// or nil; the caller calls release of the offer. The program is told once more when we have the end
// no more: until then the client would not see that it is closed.
func (s *supervisor) claim(t *broker.Talk, m proto.Message, tcp int) *broker.Offer {
	o := s.ByKey[broker.KeyOf(m.Peer, m.Local)]
	if o == nil || !s.HasEnds(t.EndsOf(tcp), m.Local, m.Peer) || !o.Right() || !o.Bind(m.IPv6) ||
		!t.Reply(proto.KindClaim, proto.StatusOK, o.End) {
		t.Reply(proto.KindClaim, proto.StatusNo, -1)
		return nil
	}
	o.Claimed = true
	s.letters.claims = true
	s.Listeners.Claimed(o.Server.Port(), 1)
	s.record.claimed(o.Server, o.Client, t.PID)
	s.Drop(o)
	t.Reply(proto.KindClaim, proto.StatusOK, -1) // our copy is closed now
	return o
}

// Answer implements [broker.Broker.Owner]. Descriptors that come from outside are the caller's.
func (s *supervisor) Answer(t *broker.Talk, m proto.Message, fds []int) (more bool) {
	switch m.Kind {
	case proto.KindAnnounce, proto.KindBoard, proto.KindClaim, proto.KindRelay,
		proto.KindReach, proto.KindMeet, proto.KindCarry, proto.KindCarried:
		// It is one of ours: we are there as long as it is. A program that offers has another
		// supervisor, and a process that says nothing may be one. A program that cannot be watched
		// is served as long as others are there.
		if t.PID > 0 && !t.Outside {
			s.programs.add(t.PID)
		}
	}
	switch m.Kind {
	case proto.KindAnnounce:
		if m.Unique == 0 {
			s.Listeners.Look(m.Local.Port())
			t.Reply(m.Kind, proto.StatusNo, -1)
			break
		}
		t.Reply(m.Kind, broker.OkOr(s.Listeners.Add(m), proto.StatusNo), -1)
	case proto.KindBoard:
		t.Reply(m.Kind, proto.StatusOK, s.board.fd)
	case proto.KindClaim:
		s.readUntil(broker.KeyOf(m.Peer, m.Local)) // rule: TestLetterFirst
		o := s.claim(t, m, fds[0])
		switch {
		case t.Outside:
			t.Claimed = o
		case o != nil:
			o.Release(fds[0])
		default:
			dispose.Close(fds[0])
		}
	case proto.KindReturn:
		s.read(unsent{fds[0], time.Now().Add(letterPatience)})
	case proto.KindReach:
		s.introduced.reach(t, m, fds[0])
		dispose.Close(fds[0])
	case proto.KindMeet:
		s.introduced.meet(t, m, fds[0])
		if !t.Outside {
			dispose.Close(fds[0])
		}
	case proto.KindCarry, proto.KindCarried:
		s.carrier.carry(t, m, fds[0])
		if !t.Outside {
			dispose.Close(fds[0])
		}
	case proto.KindTaken:
		s.record.taken(m)
	case proto.KindRelay:
		if !t.Relays {
			return s.mayHand(t)
		}
		t.Relays = false
		t.Reply(m.Kind, broker.OkOr(s.handed(m, fds), proto.StatusNo), -1)
	}
	return false
}

// Offered implements [broker.Broker.Owner].
func (s *supervisor) Offered(m proto.Message, pid int, reason clc.Diagnosis) {
	s.record.offered(m, pid, reason)
	if reason != clc.DiagNone {
		s.record.refusedHere()
	}
}

// Waiting implements [broker.Broker.Owner].
func (s *supervisor) Waiting(n int) { s.board.setWaiting(n) }

// Relaying implements [broker.Broker.Owner].
func (s *supervisor) Relaying(o *broker.Offer) {
	s.readNotes()
	s.letters.joined = time.Now() // rule: TestLettersJoined
	s.record.stayed(o.Server, o.Client, clc.DiagNotAccepted)
}
