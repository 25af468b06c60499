package core

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has the end of a link group: DELETE LINK for all links, and for the last one; and TEST
// LINK, which finds out that the other side is gone.

// End ends a group in order: an idle one (EndIdle), or one that has connections, which are ended too.
// "Operator command" and the end of the host are EndOperator and EndShutdown. Before the first
// contact is over it is Drop.
func (lc *LinkControl) End(now time.Time, kind EndKind, out []Output) []Output {
	switch lc.state {
	case ControlInit, ControlConfirming, ControlReplied, ControlAdding:
		return lc.Drop(now, out)
	case ControlActive:
		reason := llc.DeleteProgram
		if kind == EndOperator {
			reason = llc.DeleteOperator
		}
		out = lc.ending(now, GroupEnd{Kind: kind}, true, out)
		return lc.arm(lc.say(lc.deleteAll(reason, true), out))
	case ControlEnding, ControlEnded:
		return out
	}
	panic("core: impossible link group state " + lc.state.String())
}

// Drop ends a group after its first contact came to nothing: the peer falls back too, or its TCP
// connection has ended, and it drops its own. A group that is in use ends as with End.
func (lc *LinkControl) Drop(now time.Time, out []Output) []Output {
	switch lc.state {
	case ControlInit, ControlConfirming, ControlReplied, ControlAdding:
		out = lc.ending(now, GroupEnd{Kind: EndFallBack}, false, out)
		return lc.finish(out)
	case ControlActive:
		return lc.End(now, EndIdle, out)
	case ControlEnding, ControlEnded:
		return out
	}
	panic("core: impossible link group state " + lc.state.String())
}

// deleteAll returns the DELETE LINK for the whole group. A server is done when it is sent; a
// client's is a wish, and the server's own DELETE LINK the answer.
func (lc *LinkControl) deleteAll(reason llc.DeleteReason, orderly bool) SendLLC {
	m := SendLLC{Link: lc.main().num, Message: llc.DeleteLink{
		Header: llc.Header{Form: lc.form}, All: true, Orderly: orderly, Reason: reason,
	}}
	if lc.role == RoleServer || reason == llc.DeleteViolation {
		m.Tag = tagEnd
	}
	return m
}

// fail ends the group at once, without a word to the peer. A first contact is told why.
func (lc *LinkControl) fail(now time.Time, end GroupEnd, why clc.Diagnosis, out []Output) []Output {
	if lc.state < ControlActive {
		out = append(out, LinkStep{StepFailed, why})
	}
	if lc.state != ControlEnding {
		out = lc.ending(now, end, false, out)
	}
	return lc.finish(out)
}

// ending takes the group out of use.
func (lc *LinkControl) ending(now time.Time, end GroupEnd, alive bool, out []Output) []Output {
	lc.setState(now, ControlEnding)
	lc.end = end
	lc.add, lc.deletes, lc.retry.at, lc.again.at = linkAdd{}, nil, time.Time{}, time.Time{}
	for _, l := range lc.links {
		l.test, l.leave = linkTest{}, linkLeave{}
	}
	out = lc.refuseAll(clc.DiagNoActiveLink, out)
	return append(out, GroupEnding{Why: end, LinkAlive: alive})
}

// finish ends the life of the group.
func (lc *LinkControl) finish(out []Output) []Output {
	lc.setState(time.Time{}, ControlEnded)
	if !lc.timer.IsZero() {
		lc.timer = time.Time{}
		out = append(out, ClearTimer{})
	}
	return append(out, GroupEnded{})
}

// answerDelete returns the reply to a DELETE LINK: the request's link, and the fault of the
// request.
func answerDelete(m llc.DeleteLink, reason llc.DeleteReason) llc.DeleteLink {
	return llc.DeleteLink{Header: llc.Header{Form: m.Form, Reply: true}, Orderly: m.Orderly, Link: m.Link, Reason: reason}
}

// handleDeleteAll takes the end of the group from the peer.
func (lc *LinkControl) handleDeleteAll(now time.Time, m llc.DeleteLink, out []Output) []Output {
	if lc.state == ControlEnding {
		if lc.role == RoleServer {
			return out // ours is on its way
		}
		return lc.finish(out) // rule: TestControlTable: lc.finish(out) -> out
	}
	end := GroupEnd{Kind: EndPeer, Reason: m.Reason}
	if lc.role == RoleClient {
		return lc.fail(now, end, clc.DiagLink, out) // "must immediately comply" (RFC 7609 p.44)
	}
	if lc.state < ControlActive {
		out = append(out, LinkStep{StepFailed, clc.DiagLink})
	}
	out = lc.ending(now, end, false, out)
	return lc.say(lc.deleteAll(m.Reason, true), out) // rule: TestControlTable: lc.say(lc.deleteAll(m.Reason, true), out) -> out
}

// say sends the last message of the group. If its link fails there may be another one.
func (lc *LinkControl) say(m SendLLC, out []Output) []Output {
	lc.last = m
	return append(out, m)
}

// A linkTest is a TEST LINK under way.
type linkTest struct {
	due  time.Time // when the answer has to be there; zero: none is awaited
	sent time.Time
	n    uint64 // which it is: the user data
}

// hear notes that something arrived.
func (l *controlLink) hear(now time.Time) {
	if now.After(l.lastHeard) {
		l.lastHeard = now
	}
}

// Heard says that something else than an LLC message has arrived on a link at the given time. It need not
// be told each time: when Advance is due is early enough.
func (lc *LinkControl) Heard(num llc.LinkNum, at time.Time) {
	if link := lc.link(num); link != nil {
		link.hear(at)
	}
}

// Suspect asks the peer with TEST LINK at once, since something says that it may be gone: the TCP
// connection of one that has not closed has ended, as the kernel does it for a process that was
// killed. A link of SMC-R notices nothing of that while it has nothing to send.
func (lc *LinkControl) Suspect(now time.Time, num llc.LinkNum, out []Output) []Output {
	link := lc.link(num)
	if lc.state != ControlActive || link == nil { // rule: TestControlSuspect
		return out
	}
	return lc.arm(lc.probe(now, link, out))
}

// SetTestInterval changes how long a link may be silent, see [ControlConfig].
func (lc *LinkControl) SetTestInterval(d time.Duration, out []Output) []Output {
	lc.cfg.TestInterval = d
	return lc.arm(out)
}

// TestInterval returns how long a link may be silent, 0 for ever.
func (lc *LinkControl) TestInterval() time.Duration {
	switch {
	case lc.cfg.TestInterval < 0:
		return 0
	case lc.cfg.TestInterval == 0:
		return TestLinkInterval
	}
	return lc.cfg.TestInterval
}

// testsDue returns when advanceTests is due.
func (lc *LinkControl) testsDue() (next time.Time) {
	if lc.state != ControlActive {
		return next
	}
	for _, l := range lc.links {
		switch {
		case l.state != linkActive:
		case !l.test.due.IsZero():
			next = earliest(next, l.test.due)
		case lc.TestInterval() > 0:
			next = earliest(next, l.lastHeard.Add(lc.TestInterval()))
		}
	}
	return next
}

// advanceTests asks on links that have been silent, and ends those that stay so. Another message in
// place of the answer shows as well that the peer is there.
func (lc *LinkControl) advanceTests(now time.Time, out []Output) []Output {
	if due := lc.testsDue(); due.IsZero() || now.Before(due) {
		return out
	}
	for _, l := range slices.Clone(lc.links) {
		switch {
		case l.state != linkActive || lc.state != ControlActive:
		case l.test.due.IsZero():
			if lc.TestInterval() > 0 && !now.Before(l.lastHeard.Add(lc.TestInterval())) { // rule: TestControlKeepalive
				out = lc.probe(now, l, out)
			}
		case now.Before(l.test.due):
		case l.lastHeard.After(l.test.sent): // rule: TestControlKeepalive
			l.test.due = time.Time{}
		default:
			out = lc.lose(now, l, GroupEnd{Kind: EndSilent}, clc.DiagNone, out) // rule: TestControlMutePeer
		}
	}
	return out
}

// probe sends TEST LINK, unless one is under way.
func (lc *LinkControl) probe(now time.Time, l *controlLink, out []Output) []Output {
	if !l.test.due.IsZero() || l.state != linkActive {
		return out
	}
	l.test = linkTest{due: now.Add(TestLinkTimeout), sent: now, n: l.test.n + 1}
	return append(out, SendLLC{Link: l.num, Message: llc.TestLink{Header: llc.Header{Form: lc.form}, UserData: l.test.data()}})
}

// data returns the bytes that the answer has to repeat.
func (t linkTest) data() (d [16]byte) {
	binary.LittleEndian.PutUint64(d[:], t.n)
	return d
}

// before reports whether data belongs to a test before this one.
func (t linkTest) before(data [16]byte) bool {
	n := binary.LittleEndian.Uint64(data[:])
	return n != 0 && n < t.n && linkTest{n: n}.data() == data // rule: TestControlLateAnswer: linkTest{n: n}.data() == data -> true
}

// handleTestLink answers TEST LINK, at once even if an exchange is under way, and takes the answer
// to ours. A wrong one is "as if detected that the link has gone down" (RFC 7609 C.7.1).
func (lc *LinkControl) handleTestLink(now time.Time, link *controlLink, m llc.TestLink, out []Output) []Output {
	switch {
	case !m.Reply:
		return append(out, SendLLC{Link: link.num, Message: llc.TestLink{Header: llc.Header{Form: m.Form, Reply: true}, UserData: m.UserData}})
	case link.test.due.IsZero():
		return out // nobody has asked, or the answer is late
	case link.test.before(m.UserData): // rule: TestControlLateAnswer
		return out // to one that was given up, as something else has arrived in place of the answer
	case m.UserData != link.test.data(): // rule: TestControlKeepalive
		return lc.outOfSync(now, link, m.Type().String(), errTestData, out)
	}
	link.test.due = time.Time{}
	return out
}

// errTestData is the cause of a wrong answer to TEST LINK.
var errTestData = errors.New("not the data that was sent")
