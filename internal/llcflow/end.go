package llcflow

import (
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has the end of a link group: DELETE LINK for all links, and for the last one.

// End ends a group in order: an idle one (EndIdle), or one that has connections, which are ended too.
// "Operator command" and the end of the host are EndOperator and EndShutdown. Before the first
// contact is over it is Drop.
func (lc *LinkControl) End(now time.Time, kind EndKind, out []Output) []Output {
	switch lc.state {
	case StateInit, StateConfirming, StateReplied, StateAdding:
		return lc.Drop(now, out)
	case StateActive:
		reason := llc.DeleteProgram
		if kind == EndOperator {
			reason = llc.DeleteOperator
		}
		out = lc.ending(now, GroupEnd{Kind: kind}, true, out)
		return lc.arm(lc.say(lc.deleteAll(reason, true), out))
	case StateEnding, StateEnded:
		return out
	}
	panic("core: impossible link group state " + lc.state.String())
}

// Drop ends a group after its first contact came to nothing: the peer falls back too, or its TCP
// connection has ended, and it drops its own. A group that is in use ends as with End.
func (lc *LinkControl) Drop(now time.Time, out []Output) []Output {
	switch lc.state {
	case StateInit, StateConfirming, StateReplied, StateAdding:
		out = lc.ending(now, GroupEnd{Kind: EndFallBack}, false, out)
		return lc.finish(out)
	case StateActive:
		return lc.End(now, EndIdle, out)
	case StateEnding, StateEnded:
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
	if lc.role == core.RoleServer || reason == llc.DeleteViolation {
		m.Tag = tagEnd
	}
	return m
}

// fail ends the group at once, without a word to the peer. A first contact is told why.
func (lc *LinkControl) fail(now time.Time, end GroupEnd, why clc.Diagnosis, out []Output) []Output {
	if lc.state < StateActive {
		out = append(out, LinkStep{core.StepFailed, why})
	}
	if lc.state != StateEnding {
		out = lc.ending(now, end, false, out)
	}
	return lc.finish(out)
}

// ending takes the group out of use.
func (lc *LinkControl) ending(now time.Time, end GroupEnd, alive bool, out []Output) []Output {
	lc.setState(now, StateEnding)
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
	lc.setState(time.Time{}, StateEnded)
	if !lc.timer.IsZero() {
		lc.timer = time.Time{}
		out = append(out, ClearTimer{})
	}
	return append(out, GroupEnded{})
}

// answerDelete returns the reply to a DELETE LINK: the request's link, and the fault of the
// request.
func answerDelete(m llc.DeleteLink, reason llc.DeleteReason) llc.DeleteLink {
	return llc.DeleteLink{Header: llc.Header{Form: m.Form, Reply: true}, Orderly: m.Orderly, Link: m.Link,
		Reason: reason}
}

// handleDeleteAll takes the end of the group from the peer.
func (lc *LinkControl) handleDeleteAll(now time.Time, m llc.DeleteLink, out []Output) []Output {
	if lc.state == StateEnding {
		if lc.role == core.RoleServer {
			return out // ours is on its way
		}
		return lc.finish(out) // rule: TestControlTable: lc.finish(out) -> out
	}
	end := GroupEnd{Kind: EndPeer, Reason: m.Reason}
	if lc.role == core.RoleClient {
		return lc.fail(now, end, clc.DiagLink, out) // "must immediately comply" (RFC 7609 p.44)
	}
	if lc.state < StateActive {
		out = append(out, LinkStep{core.StepFailed, clc.DiagLink})
	}
	out = lc.ending(now, end, false, out)
	return lc.say(lc.deleteAll(m.Reason, true), out) // rule: TestControlTable: lc.say(lc.deleteAll(m.Reason, true), out) -> out
}

// say sends the last message of the group. If its link fails there may be another one.
func (lc *LinkControl) say(m SendLLC, out []Output) []Output {
	lc.last = m
	return append(out, m)
}
