package llcflow

import (
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has which links a group has, and the end of one of them: the RNICs that links use,
// failures, and DELETE LINK.
//
// A link that is lost (failed, silent, out of sync) is taken out of use at once, and its
// connections go on over the others. One that ends in order is left by them before, see
// leave.go. Then the peer is told with DELETE LINK: by the server as an exchange, by the
// client as a notice, which the server answers with such an exchange. Both keep the resources of
// the link until then. The collisions with that exchange (RFC 7609 §3.5.5.3.2):
//
//	message from the client          server
//	TEST LINK                        answered
//	ADD LINK, REQUEST ADD LINK       answered by an attempt afterwards
//	DELETE LINK of one link          queued, or the exchange under way is the answer
//	DELETE LINK all                  the group ends at once
//	CONFIRM RKEY                     refused, with the flag that asks to try again
//	DELETE RKEY                      answered
//
// Where each side loses another one of two links, at the same time, nothing is left to say ADD LINK
// over: all LLC messages go over links that both have. So the group ends (RFC 7609 §2.3), though an
// asymmetric link between the two RNICs that are left would work. Connections are lost then; the
// next one makes a group of its own, over TCP and CLC.
//
// An answer that does not come in time is asked for once more, as Linux net/smc drops a request
// that crosses an exchange of its own. A client asks some more times, as its server may be busy
// with another exchange; then "the link over which the server sent the DELETE LINK is no longer
// usable either" (RFC 7609 C.7.1).

// A linkDelete is a link that ends, and of which the peer is to be told so.
type linkDelete struct {
	num     llc.LinkNum
	reason  llc.DeleteReason
	orderly bool
	last    bool        // the peer's wish for the group's last link, and so for the group's end
	surplus bool        // ours, as the link is asymmetric and there were symmetric ones
	via     llc.LinkNum // over which it was sent; 0: it was not, or has to be again
	tries   int
	asked   time.Time // when the first of them was sent
	until   time.Time
}

// sameRNIC reports whether two ends are on one RNIC. One with several addresses fails with all of them.
func sameRNIC(a, b core.LinkEnd) bool {
	return a.GID.Addr() == b.GID.Addr() || a.MAC == b.MAC && a.MAC != wire.MAC{} // rule: TestSameRNIC: a.MAC != wire.MAC{} -> (a.MAC != wire.MAC{} || true)
}

// endOf is an RNIC as an end of a link.
func endOf(r core.RNIC) core.LinkEnd { return core.LinkEnd{GID: r.GID, MAC: r.MAC} }

// split returns the links in use: the symmetric ones, and the asymmetric one, nil if there is none.
// Which it is follows from the RNICs of the others, so that the last link of a group is never
// asymmetric.
func (lc *LinkControl) split() (symmetric []*controlLink, asymmetric *controlLink) {
	for _, l := range lc.links {
		if l.state != linkActive {
			continue
		}
		if usesLocal(symmetric, l.local) || usesPeer(symmetric, l.peer) {
			asymmetric = l
		} else {
			symmetric = append(symmetric, l)
		}
	}
	return symmetric, asymmetric
}

func usesLocal(links []*controlLink, e core.LinkEnd) bool {
	return slices.ContainsFunc(links, func(l *controlLink) bool { return sameRNIC(l.local, e) })
}

func usesPeer(links []*controlLink, e core.LinkEnd) bool {
	return slices.ContainsFunc(links, func(l *controlLink) bool { return sameRNIC(l.peer, e) })
}

// Redundancy returns how redundant the links of the group are.
func (lc *LinkControl) Redundancy() Redundancy {
	if lc.state != StateAdding && lc.state != StateActive { // rule: TestDeleteLinkGuards
		return RedundancyNone
	}
	switch symmetric, asymmetric := lc.split(); {
	case len(symmetric) > 1:
		return RedundancySymmetric
	case asymmetric != nil:
		return RedundancyAsymmetric
	}
	return RedundancySingle
}

// usable returns the first link in use that is not the one given, nil if there is none.
func (lc *LinkControl) usable(but *controlLink) *controlLink {
	for _, l := range lc.links {
		if l.state == linkActive && l != but {
			return l
		}
	}
	return nil
}

// main returns the link that requests of ours go over.
func (lc *LinkControl) main() *controlLink {
	if l := lc.usable(nil); l != nil {
		return l
	}
	return lc.links[0]
}

// lose takes a link out of use that is of no more use, and has the peer told. The group ends with
// its last one.
func (lc *LinkControl) lose(now time.Time, link *controlLink, end GroupEnd, why clc.Diagnosis,
	out []Output) []Output {
	if lc.role == core.RoleClient && lc.state == StateActive && link.state == linkActive {
		if !link.leave.until.IsZero() && lc.usable(link) != nil { // rule: TestLinkLeavingFails
			return lc.next(now, lc.obeyNow(now, link, end, out))
		}
		out = lc.leaveOthers(now, link, out)
	}
	other := lc.usable(link)
	switch {
	case lc.state == StateEnding:
		link.state = linkFailed // rule: TestEndOverFailingLinks
		if other == nil {
			return lc.finish(out)
		}
		if lc.last.Link == link.num { // rule: TestC7DeleteAll, TestEndOverFailingLinks
			// "try resending on other links" (RFC 7609 C.7.1)
			lc.last.Link = other.num
			out = append(out, lc.last)
		}
		return out
	case link.state == linkAdding:
		reason := llc.DeleteLostPath
		if end.Kind == EndViolation {
			reason = llc.DeleteViolation
		} else {
			lc.failed.note(now, link) // rule: TestAddLinkRotate
		}
		return lc.next(now, lc.abortAdd(now, reason, true, out))
	case link.state == linkFailed:
		return out
	case other == nil && lc.isLastStep(): // rule: TestLastLinkLostInConfirm
		lc.add.lost, lc.add.end = link, end
		link.test.due = time.Time{} // rule: TestLastLinkLostInConfirm
		return out
	case other == nil:
		return lc.fail(now, end, why, out)
	}
	d := linkDelete{num: link.num, reason: llc.DeleteLostPath}
	if end.Kind == EndViolation {
		d.reason = llc.DeleteViolation
	}
	lc.enqueue(d)
	out = lc.down(now, link, end, false, out)
	lc.spareLast()
	lc.retrySoon(now, link)
	return lc.next(now, out)
}

// spareLast has a client wish no more for the end of a link that was one of several then, and is
// the last one now: the operator did not want the group to end. A server looks when its turn comes,
// see sendDeletes.
func (lc *LinkControl) spareLast() {
	if link := lc.usable(nil); lc.role == core.RoleClient && link != nil && lc.usable(link) == nil {
		lc.dropDelete(link.num) // rule: TestDeleteLinkSpared
	}
}

// down takes a link out of use. An exchange that was under way on it begins anew on another one:
// "the initiator of an LLC message exchange that fails will be responsible for retrying" (RFC 7609
// p.25).
func (lc *LinkControl) down(now time.Time, link *controlLink, end GroupEnd, orderly bool,
	out []Output) []Output {
	link.state = linkFailed
	link.leave = linkLeave{}
	out = append(out, LinkDown{link.num, end, orderly})
	if lc.exchange.via == link.num {
		lc.restartExchange()
	}
	if lc.add.via == link && lc.add.phase < addConfirming { // rule: TestLinkLostUnderExchange
		out = lc.abortAdd(now, llc.DeleteLostPath, lc.role == core.RoleServer, out)
	}
	for i := range lc.deletes {
		if d := &lc.deletes[i]; d.via == link.num { // rule: TestLinkLostUnderExchange
			d.via, d.tries = 0, 0
		}
	}
	return out
}

// enqueue has the peer told of a link's end, once: again only where that is not in order any more.
func (lc *LinkControl) enqueue(d linkDelete) {
	switch old := lc.deleteOf(d.num); {
	case old == nil: // rule: TestDeleteLinkCrossing
		lc.deletes = append(lc.deletes, d)
	case gentle(old.orderly, old.reason) && !gentle(d.orderly, d.reason): // rule: TestLinkLeavingFails, TestLinkLeavingReasons
		*old = d
	}
}

func (lc *LinkControl) deleteOf(num llc.LinkNum) *linkDelete {
	for i := range lc.deletes {
		if lc.deletes[i].num == num {
			return &lc.deletes[i]
		}
	}
	return nil
}

func (lc *LinkControl) dropDelete(num llc.LinkNum) {
	lc.deletes = slices.DeleteFunc(lc.deletes, func(d linkDelete) bool { return d.num == num })
}

// remove forgets a link, which is not the last one.
func (lc *LinkControl) remove(link *controlLink, out []Output) []Output {
	lc.links = slices.DeleteFunc(lc.links, func(l *controlLink) bool { return l == link })
	if link.peer.QPN != 0 {
		lc.peer.remember(link.slot, link.peer)
	}
	for _, owner := range lc.peer.forget(link.slot) {
		out = append(out, ElementLost{owner})
	}
	for _, b := range lc.own {
		delete(b.tokens, link.num) // rule: TestAddLinkNumbers
		delete(b.told, link.num)   // rule: TestAddLinkNumbers
	}
	return append(out, CloseLink{link.num})
}

// DeleteLink ends a link in order, for an operator: connections move away before it ends. The last
// link ends with the group only ([LinkControl.End]): a link that becomes the last one before the
// peer was told stays.
func (lc *LinkControl) DeleteLink(now time.Time, num llc.LinkNum, out []Output) []Output {
	link := lc.link(num)
	if lc.state != StateActive || link == nil || link.state != linkActive || link.leave.begun() || lc.usable(link) == nil { // rule: TestDeleteLinkGuards
		return out
	}
	lc.enqueue(linkDelete{num: link.num, reason: llc.DeleteOperator, orderly: true})
	return lc.arm(lc.next(now, out))
}

// sendDeletes tells the peer of the links that end: the server one at a time and while nothing else
// is under way, in order when connections have left them, and the client at once.
func (lc *LinkControl) sendDeletes(now time.Time, out []Output) []Output {
	if lc.role == core.RoleServer && slices.ContainsFunc(lc.deletes, func(d linkDelete) bool { return d.via != 0 }) { // rule: TestDeleteLinkQueue
		return out
	}
	for i := 0; i < len(lc.deletes); i++ {
		d := &lc.deletes[i]
		switch {
		case d.via != 0:
			continue
		case lc.role == core.RoleServer && (lc.add.phase != addNone || lc.exchange.kind != exchangeNone): // rule: TestDeleteLinkUnasked, TestCollisions
			return out
		}
		link := lc.link(d.num)
		if lc.role == core.RoleServer && link.state == linkActive { // rule: TestDeleteLinkReasons
			if lc.state != StateActive {
				continue // when the first contact is over
			}
			if symmetric, asymmetric := lc.split(); d.surplus && (link != asymmetric || len(symmetric) < 2) { // rule: TestDeleteLinkNeeded
				lc.spare(link) // a symmetric one was lost meanwhile
				i--
				continue
			}
			end := GroupEnd{Kind: EndPeer, Reason: d.reason}
			switch {
			case d.reason == llc.DeleteAsymmetric: // rule: TestDeleteLinkReasons
				end = GroupEnd{Kind: EndAsymmetric}
			case d.reason == llc.DeleteOperator && d.orderly: // rule: TestDeleteLinkReasons
				end = GroupEnd{Kind: EndOperator}
			}
			if lc.usable(link) == nil { // rule: TestDeleteLinkUnasked, TestControlTable
				if d.orderly && !d.last { // rule: TestDeleteLinkSpared
					lc.spare(link)
					i--
					continue
				}
				return lc.deleteLast(now, *d, out)
			}
			if gentle(d.orderly, d.reason) && !link.leave.over {
				if !link.leave.begun() && lc.staying(link) != nil {
					out = lc.leave(now, link, out) // rule: TestLinkLeaving
				}
				continue
			}
			inOrder := link.leave.over
			out = lc.down(now, link, end, inOrder, out)
			if last := lc.usable(nil); inOrder && lc.usable(last) == nil {
				// A TEST LINK that was to tell a peer that is busy from a path that has failed has
				// nothing to tell any more. DELETE LINK is asked twice.
				last.test.due = time.Time{} // rule: TestLinkLeavingPatience
			}
		}
		via := lc.usable(link)
		if via == nil { // no wish is left then, and a group without any link has ended
			via = lc.main()
		}
		d.via, d.until = via.num, now.Add(LLCTimeout<<min(max(d.tries-wishTries+1, 0), wishBackoff)) // rule: TestDeleteLinkUnanswered: LLCTimeout<<min(max(d.tries-wishTries+1, 0), wishBackoff) -> LLCTimeout
		if d.tries++; d.tries == 1 {
			d.asked = now
		}
		out = append(out, SendLLC{Link: via.num, Message: llc.DeleteLink{
			Header: llc.Header{Form: lc.form}, Orderly: d.orderly, Link: d.num, Reason: d.reason,
		}})
		if lc.role == core.RoleServer { // rule: TestDeleteLinkQueue
			return out
		}
	}
	return out
}

// deleteLast ends the last link, as the client wishes, and with it the group.
func (lc *LinkControl) deleteLast(now time.Time, d linkDelete, out []Output) []Output {
	out = lc.ending(now, GroupEnd{Kind: EndPeer, Reason: d.reason}, false, out)
	return lc.say(SendLLC{Link: d.num, Message: llc.DeleteLink{
		Header: llc.Header{Form: lc.form}, Orderly: d.orderly, Link: d.num, Reason: d.reason,
	}}, out)
}

// deletesDue returns when advanceDeletes is due.
func (lc *LinkControl) deletesDue() (next time.Time) {
	for i := range lc.deletes {
		if lc.deletes[i].via != 0 {
			next = earliest(next, lc.deletes[i].until)
		}
	}
	return next
}

// advanceDeletes asks again, less and less often where a server does not answer, or gives up the
// link over which was asked.
func (lc *LinkControl) advanceDeletes(now time.Time, out []Output) []Output {
	for _, d := range slices.Clone(lc.deletes) {
		p := lc.deleteOf(d.num)
		if p == nil || p.via == 0 || now.Before(p.until) { // rule: TestDeleteLinkTimes
			continue
		}
		via := lc.link(p.via)
		p.via = 0 // next sends it
		switch {
		case p.tries < deleteTries:
		case lc.role == core.RoleClient && lc.state == StateActive: // rule: TestDeleteLinkPatience
			if via != nil {
				out = lc.probe(now, via, out) // rule: TestDeleteLinkPatience
			}
		case lc.state == StateActive && p.tries < wishTries && lc.usable(via) == nil && via != nil && via.lastHeard.After(p.asked): // rule: TestDeleteLinkBusy
			// The group would end with a link over which the client says other things: one that
			// takes down a link may be busy with that for seconds.
		default:
			p.tries = 0 // rule: TestDeleteLinkTimes
			if via != nil && via.state == linkActive {
				out = lc.lose(now, via, GroupEnd{Kind: EndSilent}, clc.DiagTimeoutAddLink, out) // rule: TestC7
			}
		}
	}
	return out
}

// handleDeleteLink takes DELETE LINK: a server's order to a client, a client's wish to a server, or the
// answer to ours.
//
//	state                role    message                  next    output
//	Replied..Active      client  request, the last link   Ending  (failed,) SendLLC reply, GroupEnding
//	Confirming..Ending   client  request, unknown link    same    SendLLC reply "unknown link"
//	Adding, Active       client  request, a further link  same    (LinkDown,) SendLLC reply, CloseLink
//	Active               client  request, in order        same    LinkLeaving, and then the same
//	Confirming..Active   client  request, all             Ended   (failed,) end
//	Ending               client  request, our link        same    SendLLC reply
//	Ending               client  request, all             Ended   GroupEnded
//	Adding               server  request, the first link  same    (when the first contact is over)
//	Active               server  request, the last link   Ending  GroupEnding, SendLLC DELETE LINK for it
//	Adding, Active       server  request, a further link  same    (LinkDown,) SendLLC DELETE LINK for it
//	Active               server  request, in order        same    LinkLeaving, and then the same
//	Active, in exchange  server  request                  same    (queued; LinkDown if it is not orderly)
//	Confirming..Active   server  request, unknown link    same    SendLLC reply "unknown link"
//	Adding, Active       server  request, one that ends   same    (ours is the answer)
//	Confirming..Active   server  request, all             Ending  (failed,) GroupEnding, SendLLC DELETE LINK all
//	Adding, Active       both    reply, one that ends     same    CloseLink
//	Ending               server  reply                    Ended   GroupEnded
//	any other combination                                 same
//
// Connections of the last link have none to move to, and end with it. RFC 7609 §3.5.4, §3.5.5.1, C.7.1.
func (lc *LinkControl) handleDeleteLink(now time.Time, via *controlLink, m llc.DeleteLink,
	out []Output) []Output {
	switch {
	case m.Reply:
		return lc.handleDeleteLinkReply(now, m, out)
	case m.All:
		return lc.handleDeleteAll(now, m, out)
	}
	link := lc.link(m.Link)
	if m.Link == 0 { // rule: TestDeleteLinkUnasked
		link = nil
	}
	switch {
	case lc.role == core.RoleClient:
		return lc.obeyDelete(now, via, link, m, out)
	case lc.state == StateEnding:
		return out // "assume timing window and ignore message" (RFC 7609 C.7.1)
	case link == nil: // rule: TestC71
		return append(out, SendLLC{Link: via.num, Message: answerDelete(m, llc.DeleteUnknownLink)})
	// rule: TestDeleteLinkUnasked
	case lc.state == StateConfirming, link.state == linkFailed:
		return out
	// rule: TestDeleteLinkUnasked
	case link.state == linkAdding: // the client has waited in vain for CONFIRM LINK
		lc.failed.note(now, link) // rule: TestAddLinkRotate
		return lc.next(now, lc.abortAdd(now, m.Reason, true, out))
	}
	last := lc.usable(link) == nil
	if gentle(m.Orderly, m.Reason) &&
		slices.ContainsFunc(lc.links, func(l *controlLink) bool { return l.state == linkFailed }) {
		last = false // rule: TestLinkLeavingCrossing
		// The client had another one when it said that, as it has not answered yet that we have
		// taken it away: it does not want the group to end.
	}
	lc.enqueue(linkDelete{num: link.num, reason: m.Reason, orderly: m.Orderly, last: last})
	// "The server must delete the link right away" (RFC 7609 §3.5.5.1.4), and with it any exchange
	// that is under way on it.
	// rule: TestDeleteLinkRightAway
	if !m.Orderly && lc.state == StateActive && lc.usable(link) != nil {
		out = lc.down(now, link, GroupEnd{Kind: EndPeer, Reason: m.Reason}, false, out)
		lc.retrySoon(now, link)
	}
	return lc.next(now, out)
}

// obeyDelete ends a link as the server says: a client "cannot decline".
func (lc *LinkControl) obeyDelete(now time.Time, via, link *controlLink, m llc.DeleteLink,
	out []Output) []Output {
	lc.dropDelete(m.Link) // rule: TestDeleteLinkQueue
	if link == nil {      // rule: TestC71
		out = append(out, SendLLC{Link: via.num, Message: answerDelete(m, llc.DeleteUnknownLink)})
		return lc.next(now, out)
	}
	if lc.state == StateActive && link.state == linkActive {
		if gentle(m.Orderly, m.Reason) && lc.staying(link) != nil { // rule: TestLinkLeaving
			link.leave.order, link.leave.via = m, via.num
			if link.leave.begun() { // rule: TestLinkLeavingRepeated
				return out
			}
			return lc.leave(now, link, out)
		}
		out = lc.leaveOthers(now, link, out)
	}
	link.leave = linkLeave{order: m, via: via.num}
	return lc.next(now, lc.obeyNow(now, link, GroupEnd{Kind: EndPeer, Reason: m.Reason}, out))
}

// obeyNow answers the order that link.leave has, and ends the link.
func (lc *LinkControl) obeyNow(now time.Time, link *controlLink, end GroupEnd, out []Output) []Output {
	m, via := link.leave.order, lc.link(link.leave.via)
	other := lc.usable(link)
	reply := SendLLC{Link: link.leave.via, Message: answerDelete(m, 0)}
	switch {
	case lc.state == StateEnding:
		return append(out, reply)
	case other == nil: // rule: TestControlTable
		if lc.state < StateActive {
			out = append(out, LinkStep{core.StepFailed, clc.DiagLink})
		}
		reply.Tag = tagEnd
		out = lc.say(reply, out)
		return lc.ending(now, end, false, out)
	case via == link, via == nil || via.state == linkFailed: // rule: TestDeleteLinkAnswers
		// An answer "flows on the same link"; but this one is given up at once, and the answer
		// could be lost with it.
		reply.Link = other.num
	}
	out = append(out, reply)
	switch link.state {
	case linkAdding:
		if m.Reason == llc.DeleteLostPath {
			lc.failed.note(now, link) // rule: TestAddLinkAcceptRotate
		}
		out = lc.abortAdd(now, m.Reason, false, out)
	case linkActive:
		out = lc.down(now, link, end, link.leave.over, out)
		out = lc.remove(link, out)
		lc.spareLast()
		if m.Reason == llc.DeleteLostPath { // rule: TestAddLinkAskAfterLoss
			lc.retrySoon(now, link)
		}
	case linkFailed:
		out = lc.remove(link, out)
	}
	return out
}

// handleDeleteLinkReply takes the answer to our DELETE LINK. Whether the peer knew the link does not matter.
func (lc *LinkControl) handleDeleteLinkReply(now time.Time, m llc.DeleteLink, out []Output) []Output {
	if lc.state == StateEnding && lc.role == core.RoleServer { // rule: TestControlTable
		return lc.finish(out)
	}
	d := lc.deleteOf(m.Link)
	if d == nil || d.via == 0 { // rule: TestDeleteLinkUnasked
		return out // nobody has asked
	}
	lc.dropDelete(m.Link)
	if link := lc.link(m.Link); link != nil && lc.usable(link) != nil { // rule: TestDeleteLinkWish
		if link.state == linkActive { // ours was a wish; the server does not have the link
			out = lc.down(now, link, GroupEnd{Kind: EndPeer, Reason: m.Reason}, false, out) // rule: TestDeleteLinkWish
		}
		out = lc.remove(link, out)
		lc.spareLast() // rule: TestDeleteLinkWish
		if lc.retry.at.IsZero() {
			lc.retryLater(now) // rule: TestDeleteLinkThenMore
		}
	}
	return lc.next(now, out)
}

// ignores reports whether a message on a link is void as we have asked to delete that: "ignore the
// LLC message. Worst case: the server will time out" (RFC 7609 C.7.1).
func (lc *LinkControl) ignores(m llc.Message) bool {
	if lc.role != core.RoleClient { // rule: TestDeleteLinkIgnores
		return false
	}
	switch m.(type) {
	case llc.DeleteLink, llc.TestLink:
		return false
	}
	return true
}
