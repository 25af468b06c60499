package llcflow

import (
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/llc"
)

// This file has the steps that precede the end of a link in order: its connections leave it, while
// it still works, so that nothing that is on its way has to be sent again. RFC 7609 §2.3 leaves
// open how that is done.
//
//	role    event                                     output
//	server  a link is to end in order                 LinkLeaving
//	server  LinkLeft, or LinkLeaveTimeout             LinkDown, SendLLC DELETE LINK
//	server  all other links are lost                  (the link stays)
//	client  DELETE LINK in order                      LinkLeaving
//	client  LinkLeft, or LinkLeaveTimeout             SendLLC reply, LinkDown, CloseLink
//	client  the link fails, or all that do not leave  SendLLC reply, LinkDown, CloseLink
//	client  the same, not in order                    SendLLC reply, LinkDown, CloseLink
//
// Each side moves its own traffic, and the server does before the client hears of it. An end that
// an operator or a program wants is in order, and so is the end of an asymmetric link. The end of a
// lost path is not in order, even if the flag says so, nor is the end of the last link, nor of one
// that a first contact has.

// A linkLeave is a link that is about to end in order.
type linkLeave struct {
	until time.Time // when it ends at the latest; zero: it does not
	over  bool      // connections have had their time
	order llc.DeleteLink
	via   llc.LinkNum // over which a client was ordered
}

// begun reports whether connections are to use other links.
func (l *linkLeave) begun() bool { return l.over || !l.until.IsZero() }

// gentle reports whether connections have the time to leave a link.
func gentle(orderly bool, reason llc.DeleteReason) bool {
	switch reason {
	case llc.DeleteOperator, llc.DeleteProgram, llc.DeleteAsymmetric: // rule: TestLinkLeavingReasons: llc.DeleteOperator, llc.DeleteProgram, llc.DeleteAsymmetric -> 0
		return orderly // rule: TestLinkLeavingReasons: orderly -> true
	}
	return false
}

// staying returns the first link in use that is not the one given, and is not about to end; nil if
// there is none.
func (lc *LinkControl) staying(but *controlLink) *controlLink {
	for _, l := range lc.links {
		if l.state == linkActive && l != but && !l.leave.begun() {
			return l
		}
	}
	return nil
}

// leave has connections leave a link.
func (lc *LinkControl) leave(now time.Time, link *controlLink, out []Output) []Output {
	link.leave.until = now.Add(LinkLeaveTimeout)
	return append(out, LinkLeaving{link.num})
}

// LinkLeft says that no connection of ours writes over a link any more, of which [LinkLeaving] was said.
func (lc *LinkControl) LinkLeft(now time.Time, num llc.LinkNum, out []Output) []Output {
	link := lc.link(num)
	if link == nil || num != link.num || link.leave.until.IsZero() { // rule: TestLinkLeavingUnasked
		return out
	}
	return lc.arm(lc.next(now, lc.left(now, link, out)))
}

// left ends a link that connections have left, or have had the time to: a server does when its turn comes.
func (lc *LinkControl) left(now time.Time, link *controlLink, out []Output) []Output {
	if link.leave.until, link.leave.over = (time.Time{}), true; lc.role == core.RoleClient {
		out = lc.obeyNow(now, link, GroupEnd{Kind: EndPeer, Reason: link.leave.order.Reason}, out)
	}
	return out
}

// leaveOthers ends those that are about to end anyway, where a client has no other link beside the
// given one, which ends too: the last one ends with the group.
func (lc *LinkControl) leaveOthers(now time.Time, link *controlLink, out []Output) []Output {
	if lc.staying(link) != nil {
		return out
	}
	for _, l := range slices.Clone(lc.links) {
		if l != link && l.leave.begun() { // rule: TestLinkLeavingLast
			out = lc.left(now, l, out)
		}
	}
	return out
}

// spare has a link stay that was to end.
func (lc *LinkControl) spare(link *controlLink) {
	link.leave = linkLeave{} // rule: TestLinkLeavingSpared
	lc.dropDelete(link.num)
}

// obeys reports whether a client has been ordered to end a link, and has not answered yet: nothing
// of its own begins meanwhile.
func (lc *LinkControl) obeys() bool {
	return lc.role == core.RoleClient && !lc.leavesDue().IsZero()
}

// leavesDue returns when advanceLeaves is due.
func (lc *LinkControl) leavesDue() (next time.Time) {
	for _, l := range lc.links {
		next = earliest(next, l.leave.until)
	}
	return next
}

// advanceLeaves ends links that connections have had the time to leave. Advance goes on with next.
func (lc *LinkControl) advanceLeaves(now time.Time, out []Output) []Output {
	for _, l := range slices.Clone(lc.links) {
		if !l.leave.until.IsZero() && !now.Before(l.leave.until) { // rule: TestLinkLeaving
			out = lc.left(now, l, out)
		}
	}
	return out
}
