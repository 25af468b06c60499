package llcflow

import (
	"errors"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has the making of further links, RFC 7609 §3.5.1.6 and §3.5.5.1, C.8: ADD LINK, its
// continuations, CONFIRM LINK on the new link. Between which RNICs is in selection.go, and when
// in retry.go.
//
//	phase       role    event                                next        output
//	none        server  an attempt is due                    Opening     OpenLink
//	none        client  ADD LINK that would help             Opening     OpenLink
//	none        client  ADD LINK that would not              none        SendLLC rejection
//	Opening     both    LinkOpened without a queue pair      none        client: SendLLC rejection
//	Opening     server  LinkOpened                           Requested   SendLLC ADD LINK
//	Opening     client  LinkOpened, version 1                Telling     ConnectLink, SendLLC reply
//	Opening     client  LinkOpened, version 2                Confirming  ConnectLink, SendLLC reply
//	Requested   server  reply, rejected                      none        CloseLink
//	Requested   server  reply, version 1                     Telling     ConnectLink, SendLLC ADD LINK CONTINUATION
//	Requested   server  reply, version 2                     Confirming  ConnectLink, SendLLC CONFIRM LINK
//	Requested   server  reply that would not help            none        SendLLC DELETE LINK
//	Telling     server  CONTINUATION reply, more to tell     same        SendLLC ADD LINK CONTINUATION
//	Telling     server  CONTINUATION reply                   Confirming  SendLLC CONFIRM LINK
//	Telling     client  CONTINUATION                         same or Confirming  SendLLC reply
//	Confirming  server  CONFIRM LINK reply                   none        LinkUp
//	Confirming  client  CONFIRM LINK                         Replied     ReadyToSend, SendLLC reply
//	Replied     client  Sent, or any other message on the new link  none  LinkUp
//	Confirming  server  the last link in use is lost         same        (LinkDown when the new one is up)
//	Replied     client  the same                             same        (likewise)
//	any         both    the new link fails, or is not as announced  none  SendLLC DELETE LINK
//
// When it has come to nothing, a server tries again: when the retry timer says so, when either side
// has another RNIC. While it is under way (RFC 7609 §3.5.5.3.1):
//
//	message from the client          server
//	TEST LINK                        answered
//	ADD LINK, REQUEST ADD LINK       before the reply ignored: the server's own is the answer; else followed by another attempt
//	DELETE LINK of one link          queued
//	DELETE LINK all                  the group ends at once
//	CONFIRM RKEY                     refused, with the flag that asks to try again
//
// A client does not begin CONFIRM RKEY then. One that has begun is refused by the server, and made
// again with the new link.

// An addPhase says how far a new link is.
type addPhase uint8

const (
	addNone       addPhase = iota
	addOpening             // our end is being made
	addRequested           // server: ADD LINK is sent, awaited: the reply
	addTelling             // version 1: where RMBs are is being told
	addConfirming          // server: CONFIRM LINK is sent, awaited: the reply; client: awaited: CONFIRM LINK
	addReplied             // client: the reply is posted, awaited: its completion
)

// A linkAdd is the making of a link.
type linkAdd struct {
	phase   addPhase
	link    *controlLink
	via     *controlLink // that carries ADD LINK
	until   time.Time
	target  wire.GID    // server: for the client to use
	request llc.AddLink // client: to be answered
	// server: of the REQUEST ADD LINK to which ADD LINK is the answer; 0: there is none
	asked llc.Form
	tell  []llc.RKeyPair // version 1: ours that are still to be told
	told  []RMBID        // ours that the peer will know on the link
	owed  int            // version 1: how many of the peer's are to come; below 0: not known yet
	// the last link in use, which was lost meanwhile: it ends as if that came after the new one was
	// up
	lost *controlLink
	end  GroupEnd // why
}

// isLastStep reports whether only the peer's word, or the RNIC's, is missing until the new link is
// up: nothing more is said over another one, and data can be sent over it already. A group that
// loses its last link then waits for it, ConfirmLinkTimeout at most.
func (lc *LinkControl) isLastStep() bool {
	return lc.role == core.RoleServer && lc.add.phase == addConfirming || lc.add.phase == addReplied
}

// beginAdd begins an attempt if there is anything to attempt.
func (lc *LinkControl) beginAdd(now time.Time, out []Output) []Output {
	local, target, ok := lc.plan(now, lc.state == StateAdding || lc.retry.hinted || lc.form.Version() == 1)
	lc.retry.at, lc.retry.hinted = time.Time{}, false
	if !ok { // rule: TestAddLinkHints
		return out
	}
	lc.retry.last = now
	for lc.lastNum++; lc.lastNum == 0 || lc.link(lc.lastNum) != nil; lc.lastNum++ {
		// "Link numbers cannot be reused until the entire link numbering space has been exhausted"
		// (RFC 7609 p.24).
	}
	return lc.open(lc.lastNum, local, lc.main(), target, out)
}

// open asks for our end of a new link.
func (lc *LinkControl) open(num llc.LinkNum, local core.RNIC, via *controlLink, target wire.GID,
	out []Output) []Output {
	used := uint16(0)
	for _, l := range lc.links {
		used |= 1 << l.slot
	}
	slot := uint8(0)
	for used&(1<<slot) != 0 {
		slot++
	}
	link := &controlLink{num: num, slot: slot, state: linkAdding, local: endOf(local)}
	lc.links = append(lc.links, link)
	lc.add = linkAdd{phase: addOpening, link: link, via: via, target: target, owed: -1}
	return append(out, OpenLink{num, local.GID})
}

// LinkOpened answers [OpenLink]: local is our end of the link, without a queue pair if there is
// none, and tokens is where our RMBs are on it.
func (lc *LinkControl) LinkOpened(now time.Time, num llc.LinkNum, local core.LinkEnd,
	tokens map[RMBID]llc.RToken, out []Output) []Output {
	a := &lc.add
	if a.phase != addOpening || a.link.num != num { // rule: TestLinkOpenedLate
		return append(out, CloseLink{num}) // nobody wants it any more
	}
	if local.QPN == 0 {
		if lc.role == core.RoleClient {
			out = lc.reject(a.via, a.request, out)
		} else if a.asked != 0 { // rule: TestRequestAddLinkAnswered
			out = append(out, SendLLC{Link: a.via.num,
				Message: llc.RequestAddLink{Header: llc.Header{Form: a.asked, Reply: true}}})
		}
		lc.failed.note(now, a.link) // rule: TestAddLinkRotate
		return lc.arm(lc.next(now, lc.abortAdd(now, 0, false, out)))
	}
	a.link.local = local
	for id, token := range tokens {
		if b := lc.own[id]; b != nil {
			b.tokens[num] = token
		}
	}
	pairs := lc.pairs(a)
	m := llc.AddLink{
		Header: llc.Header{Form: lc.form}, MAC: local.MAC, GID: local.GID, QPN: local.QPN, Link: num, MTU: local.MTU, PSN: local.PSN,
		Direct: lc.cfg.Result.Direct, TargetGID: a.target,
	}
	if lc.role == core.RoleClient {
		m.Header = llc.Header{Form: a.request.Form, Reply: true}
		m.MTU, m.Direct = min(m.MTU, a.request.MTU), a.request.Direct
		if r, ok := lc.routes.of(local.GID, a.request.GID); ok { // rule: TestAddLinkRoutes
			m.Direct = r.Direct // "only valid in response from client" (SMCv2 "SMC-Rv2 LLC Add Link Message")
		}
		a.link.indirect = !m.Direct
	}
	if m.Form == llc.V1 {
		a.tell = pairs
	} else {
		m.RKeys = pairs
	}
	send := SendLLC{Link: a.via.num, Message: m}
	if lc.role == core.RoleServer {
		a.phase, a.until = addRequested, now.Add(lc.addTimeout())
		return lc.arm(append(out, send))
	}
	r := &a.request
	a.link.peer = core.LinkEnd{GID: r.GID, MAC: r.MAC, QPN: r.QPN, PSN: r.PSN, MTU: r.MTU}
	lc.peer.learn(a.via.slot, a.link.slot, r.RKeys)
	out = append(out, ConnectLink{num, a.link.peer}, send)
	a.phase, a.until = addTelling, now.Add(lc.addTimeout())
	if m.Form != llc.V1 {
		a.phase, a.until = addConfirming, now.Add(ConfirmLinkTimeout)
	}
	return lc.arm(out)
}

// addTimeout is how long an answer to ADD LINK may take: on first contact long enough for a Decline
// (RFC 7609 C.7).
func (lc *LinkControl) addTimeout() time.Duration {
	if lc.state == StateAdding {
		return AddLinkReplyTimeout
	}
	return LLCTimeout
}

// pairs returns where our RMBs are on the new link, of those that the peer knows.
func (lc *LinkControl) pairs(a *linkAdd) (pairs []llc.RKeyPair) {
	for _, id := range lc.ownIDs() {
		b := lc.own[id]
		token, ok := b.tokens[a.link.num]
		if ok && b.told[a.via.num] { // rule: TestAddLinkTokens: ok && -> (ok || true) &&
			pairs = append(pairs, llc.RKeyPair{Reference: b.tokens[a.via.num].RKey, New: token})
			a.told = append(a.told, id)
		}
	}
	return pairs
}

// abortAdd ends the making of a link. With tell the peer is to know: it may have its end.
func (lc *LinkControl) abortAdd(now time.Time, reason llc.DeleteReason, tell bool, out []Output) []Output {
	link, phase, lost, end := lc.add.link, lc.add.phase, lc.add.lost, lc.add.end
	lc.add = linkAdd{}
	if lost != nil { // rule: TestLastLinkLostInConfirm
		return lc.lose(now, lost, end, clc.DiagLink, out)
	}
	if tell && phase > addOpening { // rule: TestAddLinkAborted: phase > addOpening -> (phase > addOpening || true)
		link.state = linkFailed // resources are kept until the answer
		lc.enqueue(linkDelete{num: link.num, reason: reason})
	} else {
		out = lc.remove(link, out)
	}
	if lc.role == core.RoleClient && lc.retry.at.IsZero() { // rule: TestAddLinkAskAgain
		lc.setRetry(now)
	}
	lc.retryLater(now) // rule: TestAddLinkRetry
	return out
}

// handleAddLink takes ADD LINK: a server's wish for a further link, a client's hint that it has another
// RNIC, or the reply to ours.
func (lc *LinkControl) handleAddLink(now time.Time, via *controlLink, m llc.AddLink, out []Output) []Output {
	switch {
	case m.Reply:
		return lc.handleAddLinkReply(now, via, m, out)
	case lc.role == core.RoleServer:
		return lc.hint(now, out)
	case lc.state == StateEnding:
		return out // nobody wants it
	case lc.state == StateConfirming:
		return lc.unexpected(now, via, m, out)
	case lc.state == StateReplied:
		out = append(out, LinkStep{Kind: core.StepConfirmed}) // it has the reply, or it would not ask
		lc.setState(now, StateAdding)
	}
	if lc.add.phase != addNone { // it begins anew, after an event that we have not noticed
		if out = lc.abortAdd(now, 0, false, out); lc.state == StateEnded { // rule: TestLastLinkLostInConfirm
			return out
		}
	}
	lc.until = time.Time{}
	lc.retry.attempted = true
	local, ok := lc.accept(now, m)
	if !ok || !m.MTU.Valid() {
		return lc.next(now, lc.reject(via, m, out))
	}
	out = lc.open(m.Link, local, via, wire.GID{}, out)
	lc.add.request = m
	return out
}

// reject answers ADD LINK as Linux net/smc does: with the request's own fields.
func (lc *LinkControl) reject(link *controlLink, m llc.AddLink, out []Output) []Output {
	reason := llc.RejectNoPath
	if !m.MTU.Valid() {
		reason = llc.RejectMTU // rule: TestControlRejects
	}
	return append(out, SendLLC{Link: link.num, Message: llc.AddLink{
		Header: llc.Header{Form: m.Form, Reply: true}, Rejected: true, Reason: reason,
		MAC: m.MAC, GID: m.GID, QPN: m.QPN, Link: m.Link, MTU: m.MTU, PSN: m.PSN,
	}})
}

// handleAddLinkReply takes the client's answer.
func (lc *LinkControl) handleAddLinkReply(now time.Time, via *controlLink, m llc.AddLink,
	out []Output) []Output {
	a := &lc.add
	if a.phase != addRequested || m.Link != a.link.num { // rule: TestControlTable
		return out
	}
	if m.Rejected {
		a.link.peer = core.LinkEnd{GID: a.target}
		lc.failed.note(now, a.link) // rule: TestAddLinkRotate
		return lc.next(now, lc.abortAdd(now, 0, false, out))
	}
	a.link.peer = core.LinkEnd{GID: m.GID, MAC: m.MAC, QPN: m.QPN, PSN: m.PSN, MTU: m.MTU}
	a.link.indirect = !m.Direct
	if !lc.fits(a.link) || !m.MTU.Valid() { // "parallel links are not permitted" (RFC 7609 C.7.1)
		return lc.next(now, lc.abortAdd(now, llc.DeleteLostPath, true, out))
	}
	lc.peer.learn(a.via.slot, a.link.slot, m.RKeys)
	out = append(out, ConnectLink{a.link.num, a.link.peer})
	if m.Form == llc.V1 {
		a.phase = addTelling
		return lc.tellMore(now, llc.Header{Form: llc.V1}, out)
	}
	return lc.confirmNew(now, out)
}

// confirmNew begins CONFIRM LINK on the new link.
func (lc *LinkControl) confirmNew(now time.Time, out []Output) []Output {
	a := &lc.add
	a.phase, a.until = addConfirming, now.Add(ConfirmLinkTimeout)
	return append(out, SendLLC{Link: a.link.num, Message: lc.confirmLink(a.link, llc.Header{Form: lc.form})})
}

// tellMore sends the next ADD LINK CONTINUATION, of up to two RMBs.
func (lc *LinkControl) tellMore(now time.Time, h llc.Header, out []Output) []Output {
	a := &lc.add
	n := min(len(a.tell), 2)
	m := llc.AddLinkCont{Header: h, Link: a.link.num, Remaining: uint8(len(a.tell)), RKeys: a.tell[:n]}
	a.tell = a.tell[n:]
	a.until = now.Add(lc.addTimeout()) // rule: TestAddLinkSlow
	return append(out, SendLLC{Link: a.via.num, Message: m})
}

// errCount is the cause of an ADD LINK CONTINUATION that does not go on where the last one ended.
var errCount = errors.New("another number of RKeys than before")

// handleAddLinkCont takes ADD LINK CONTINUATION: where two of the peer's RMBs are on the new link.
// Requests and replies take turns until neither side has more. Linux net/smc may announce more RMBs
// than it has: these are zeros.
func (lc *LinkControl) handleAddLinkCont(now time.Time, via *controlLink, m llc.AddLinkCont,
	out []Output) []Output {
	a := &lc.add
	switch {
	case m.Reply != (lc.role == core.RoleServer): // rule: TestAddLinkContinuationLies
		if m.Reply {
			return out
		}
		return lc.unexpected(now, via, m, out)
	case a.phase != addTelling || m.Link != a.link.num: // rule: TestAddLinkContinuationLies
		// A server goes on until it hears that we have given up the link.
		if m.Reply || lc.deleteOf(m.Link) != nil { // rule: TestAddLinkContinuationLate: lc.deleteOf(m.Link) != nil -> false
			return out
		}
		return lc.unexpected(now, via, m, out)
	case a.owed >= 0 && int(m.Remaining) != a.owed: // rule: TestAddLinkContinuation
		return lc.outOfSync(now, via, m.Type().String(), errCount, out)
	}
	lc.peer.learn(a.via.slot, a.link.slot, m.RKeys)
	a.owed = int(m.Remaining) - min(int(m.Remaining), 2)
	if lc.role == core.RoleClient {
		out = lc.tellMore(now, llc.Header{Form: m.Form, Reply: true}, out)
		if a.owed == 0 && len(a.tell) == 0 {
			a.phase, a.until = addConfirming, now.Add(ConfirmLinkTimeout)
		}
		return out
	}
	if a.owed == 0 && len(a.tell) == 0 {
		return lc.confirmNew(now, out)
	}
	return lc.tellMore(now, llc.Header{Form: m.Form}, out)
}

// handleConfirmNew takes CONFIRM LINK on the new link.
func (lc *LinkControl) handleConfirmNew(now time.Time, m llc.ConfirmLink, out []Output) []Output {
	a := &lc.add
	switch {
	case m.Reply && (lc.role == core.RoleClient || a.phase != addConfirming):
		return out // nobody has asked
	case !m.Reply && (lc.role == core.RoleServer || a.phase != addConfirming):
		return lc.unexpected(now, a.link, m, out)
	}
	if _, err := lc.checkConfirmLink(a.link, m); err != nil { // rule: TestC71
		// "The link must be brought down by sending a DELETE LINK for the link over another link"
		// (RFC 7609 C.7.1).
		return lc.next(now, lc.abortAdd(now, llc.DeleteViolation, true, out))
	}
	if lc.role == core.RoleServer {
		return lc.linkUp(now, out)
	}
	a.phase, a.until = addReplied, now.Add(ConfirmLinkTimeout)
	num := a.link.num
	reply := lc.confirmLink(a.link, llc.Header{Form: m.Form, Reply: true})
	return append(out, ReadyToSend{num}, SendLLC{num, reply, tagAdded | Tag(num)<<8})
}

// addReplySent takes that the server's RNIC has the client's reply.
func (lc *LinkControl) addReplySent(now time.Time, num llc.LinkNum, out []Output) []Output {
	if lc.add.phase != addReplied || lc.add.link.num != num { // rule: TestAddLinkLateCompletion
		return out
	}
	return lc.linkUp(now, out)
}

// linkUp takes the new link into use. RMBs that the peer does not know on it are told, and an
// asymmetric link that is not needed any more is deleted.
func (lc *LinkControl) linkUp(now time.Time, out []Output) []Output {
	a := lc.add
	lc.add = linkAdd{}
	a.link.state, a.link.upSince = linkActive, now
	for _, id := range a.told {
		if b := lc.own[id]; b != nil {
			b.told[a.link.num] = true
		}
	}
	out = append(out, LinkUp{a.link.num})
	// rule: TestAddLinkReplacesAsymmetric: lc.role == core.RoleServer && -> true &&
	if symmetric, asymmetric := lc.split(); lc.role == core.RoleServer && asymmetric != nil &&
		len(symmetric) > 1 {
		lc.enqueue(linkDelete{num: asymmetric.num, reason: llc.DeleteAsymmetric, orderly: true, surplus: true}) // rule: TestAddLinkReplacesAsymmetric
	} else if asymmetric != nil {
		lc.retryLater(now) // rule: TestAddLinkRetry
	} else if lc.role == core.RoleServer && len(symmetric) < lc.maxLinks {
		lc.retry.at = now.Add(AddLinkPause) // there may be more to have
	}
	lc.refreshRMBs()   // rule: TestAddLinkLateRMB
	if a.lost != nil { // rule: TestLastLinkLostInConfirm
		return lc.lose(now, a.lost, a.end, clc.DiagLink, out)
	}
	return lc.next(now, out)
}

// advanceAdd ends a wait for a message of the exchange.
//
// RFC 7609 C.7.1 has it that the link fails that carries ADD LINK. But Linux net/smc drops a
// request that crosses one of its own; so it is asked with TEST LINK whether it is there, and
// another attempt follows.
func (lc *LinkControl) advanceAdd(now time.Time, out []Output) []Output {
	a := &lc.add
	if now.Before(a.until) { // rule: TestAddLinkSlow
		return out
	}
	via := a.via
	switch a.phase {
	case addRequested, addTelling:
		if lc.state == StateAdding { // rule: TestC7
			// "The connection is past the point where the server can fall back to IP."
			return lc.fail(now, GroupEnd{Kind: EndSilent}, clc.DiagTimeoutAddLink, out)
		}
		out = lc.abortAdd(now, llc.DeleteLostPath, true, out)
		return lc.probe(now, via, out)
	case addConfirming, addReplied:
		lc.failed.note(now, a.link)                            // rule: TestAddLinkRotate
		return lc.abortAdd(now, llc.DeleteLostPath, true, out) // rule: TestC7: lc.abortAdd(now, llc.DeleteLostPath, true, out) -> out
	case addNone, addOpening:
	}
	return out
}
