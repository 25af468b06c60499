package llcflow

import (
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// This file has when another link is attempted: by a server's timer, as an RNIC has come, as a link
// was lost, at the client's request; and the client's part in that, REQUEST ADD LINK. RFC 7609
// §3.5.1.6, C.7.1, C.8.

// An addRetry says when a server attempts another link.
type addRetry struct {
	at        time.Time // zero: not by itself
	last      time.Time // of the last attempt
	delay     time.Duration
	soon      int // further attempts, one every AddLinkPause, after a loss or with a fresh RNIC
	flaps     []pairFlaps
	attempted bool       // in the first contact
	hinted    bool       // the client has another RNIC
	gids      []wire.GID // the client's, as it has told
}

// pairFlaps is how many links in a row were lost soon between two RNICs.
type pairFlaps struct {
	local, peer core.LinkEnd
	n           int
}

// noteFlap takes note of a link that was lost.
func (lc *LinkControl) noteFlap(now time.Time, lost *controlLink) {
	n := 0
	lc.retry.flaps = slices.DeleteFunc(lc.retry.flaps, func(f pairFlaps) bool {
		same := sameRNIC(f.local, lost.local) && sameRNIC(f.peer, lost.peer) // rule: TestAddLinkAlternating: && sameRNIC(f.peer, lost.peer) -> && sameRNIC(f.peer, lost.peer) || true
		if same {
			n = f.n
		}
		return same
	})
	if now.Sub(lost.upSince) >= linkSteady { // rule: TestAddLinkSteady
		return
	}
	lc.retry.flaps = append(lc.retry.flaps, pairFlaps{lost.local, lost.peer, n + 1})
	lc.retry.flaps = lc.retry.flaps[max(0, len(lc.retry.flaps)-maxFailedPairs):]
}

// flapsOfNext returns how many links in a row did not hold between the RNICs that are next in turn.
func (lc *LinkControl) flapsOfNext(now time.Time) (n int) {
	local, target, ok := lc.plan(now, true)
	for _, f := range lc.retry.flaps {
		if ok && sameRNIC(f.local, endOf(local)) && (target.IsZero() || sameRNIC(f.peer, core.LinkEnd{GID: target})) { // rule: TestAddLinkPairFlaps: core.LinkEnd{GID: target})) -> core.LinkEnd{GID: target})) || true
			n = max(n, f.n)
		}
	}
	return n
}

// SetRNICs says which RNICs of ours may be an end of a link now. A new one is a reason to attempt
// another link, or to ask the server for it.
func (lc *LinkControl) SetRNICs(now time.Time, rnics []core.RNIC, out []Output) []Output {
	var fresh []core.RNIC
	for _, r := range rnics {
		if !slices.Contains(lc.rnics, r) {
			fresh = append(fresh, r)
			lc.failed.forget(r)
		}
	}
	lc.rnics = slices.Clone(rnics)
	if len(fresh) == 0 || lc.state >= StateEnding { // rule: TestAddLinkFreshFirst: lc.state >= StateEnding -> lc.state != StateActive
		return out
	}
	if lc.role == core.RoleServer { // also for the time after a link that is being made without it
		lc.retryNow(now)
		return lc.arm(lc.next(now, out))
	}
	// the first contact, which may make a link without it
	if lc.state != StateActive { // rule: TestControlTable
		lc.retry.at = now
		return out
	}
	// a link that is being made without it
	if lc.add.phase != addNone { // rule: TestAddLinkFreshMeanwhile
		lc.retry.at = now
		return out
	}
	n := len(out)
	if out = lc.askForLink(now, fresh[0], out); len(out) == n {
		return out
	}
	lc.retry.soon, lc.retry.delay = max(lc.retry.soon, freshTries), 0
	lc.setRetry(now) // rule: TestAddLinkFreshAskedAgain
	return lc.arm(out)
}

// askForLink tells the server of another RNIC of a client, unless the group is symmetric, or can
// have no more links. "The client must not wait for a response or throw an error if one does not
// come" (RFC 7609 p.46).
func (lc *LinkControl) askForLink(now time.Time, r core.RNIC, out []Output) []Output {
	symmetric, _ := lc.split()
	link := lc.main()
	switch {
	case len(symmetric) >= lc.maxLinks: // rule: TestAddLinkHints
		return out // in version 2 also: "the client should not send this message when the LG is symmetric"
	case usesLocal(symmetric, endOf(r)): // rule: TestAddLinkHints
		return out
	case lc.add.phase != addNone:
		return out
	case lc.form.Version() == 1:
		return append(out, SendLLC{Link: link.num,
			Message: llc.AddLink{Header: llc.Header{Form: lc.form}, MAC: r.MAC, GID: r.GID}})
	}
	gids := []wire.GID{link.local.GID, r.GID}
	for _, other := range lc.unused(now, symmetric) {
		if other.GID != r.GID && len(gids) < llc.MaxGIDs { // rule: TestAddLinkRequestAll
			gids = append(gids, other.GID)
		}
	}
	return append(out, SendLLC{Link: link.num,
		Message: llc.RequestAddLink{Header: llc.Header{Form: lc.form}, GIDs: gids}})
}

// retryLater has the server try again after a while, longer each time: "the server peer ... must
// set a timer" (RFC 7609 C.8).
func (lc *LinkControl) retryLater(now time.Time) {
	if _, _, ok := lc.plan(now, lc.form.Version() == 1); ok && lc.role == core.RoleServer { // rule: TestAddLinkRetry
		lc.setRetry(now)
	}
}

// setRetry sets the timer for another attempt, or a client's for asking the server for it, unless
// there is a reason for an earlier one: an RNIC that came, or a link that was lost, while one was
// being made.
func (lc *LinkControl) setRetry(now time.Time) {
	first := lc.cfg.RetryInterval
	if first == 0 {
		first = AddLinkRetry
	}
	if first < 0 { // rule: TestAddLinkRetry
		return
	}
	var wait time.Duration
	if lc.retry.soon > 0 { // rule: TestAddLinkSingle: lc.retry.soon > 0 -> false
		lc.retry.soon--
		wait = min(first, lc.pause(now))
	} else {
		lc.retry.delay = min(max(2*lc.retry.delay, first), max(first, AddLinkRetryMax))
		wait = lc.retry.delay
	}
	lc.retry.at = earliest(lc.retry.at, now.Add(wait)) // rule: TestAddLinkFreshKept: earliest(lc.retry.at, now.Add(wait)) -> now.Add(wait)
}

// retryNow has a server try as soon as may be, as either side has another RNIC. Earlier attempts
// failed without it.
func (lc *LinkControl) retryNow(now time.Time) {
	lc.retry.delay = 0 // rule: TestAddLinkFreshAnew
	lc.retry.at = lc.notBefore(now, lc.pause(now))
}

// askAgain has a client say once more that it has an RNIC for a link, after its link was lost or
// not confirmed, or an RNIC came. It "set a timer to send an ADD LINK to the server if there is
// still an unused RNIC on the client side" (RFC 7609 C.7.1, p.138). A server of ours has a timer
// too, Linux net/smc has none. As long as there is one link it goes on, less and less often: a
// request may be dropped, as Linux net/smc does with one that crosses an exchange, such as for the
// RMBs of connections that end. A server with an asymmetric link may have no RNIC for another one:
// it is asked a few times.
func (lc *LinkControl) askAgain(now time.Time, out []Output) []Output {
	lc.retry.at = time.Time{}
	symmetric, asymmetric := lc.split()
	if unused := lc.unused(now, symmetric); len(unused) > 0 && len(symmetric) < lc.maxLinks {
		if asymmetric == nil || lc.retry.soon > 0 { // rule: TestAddLinkFreshAskedAgain: lc.retry.soon > 0 -> false
			lc.setRetry(now)
		}
		return lc.askForLink(now, unused[0], out)
	}
	return out
}

// retrySoon has the server try the RNICs that are left at once, unless the link that was lost had
// not held for long. It has a client ask for a link after a while.
func (lc *LinkControl) retrySoon(now time.Time, lost *controlLink) {
	lc.failed.note(now, lost) // rule: TestAddLinkRotate
	lc.noteFlap(now, lost)
	lc.retry.soon, lc.retry.delay = singleTries, 0
	if lc.role == core.RoleServer {
		lc.retry.at = lc.notBefore(now, lc.pause(now))
	} else if lc.retry.at.IsZero() { // rule: TestAddLinkAskAfterLoss
		lc.setRetry(now)
	}
}

// pause is the least time between two attempts: it doubles with each further link that does not
// hold between the same RNICs, so that one that comes and goes is no storm of ADD LINK, nor does it
// move connections all the time.
func (lc *LinkControl) pause(now time.Time) time.Duration {
	return min(AddLinkPause<<min(max(lc.flapsOfNext(now)-freeFlaps, 0), 16), AddLinkPauseMax) // rule: TestAddLinkFlapping: AddLinkPause<< -> AddLinkPause, AddLinkPause<<
}

// notBefore is when the next attempt may be, if there is a reason for one now.
func (lc *LinkControl) notBefore(now time.Time, pause time.Duration) time.Time {
	if at := lc.retry.last.Add(pause); at.After(now) { // rule: TestAddLinkHints, TestFloodOfDeletes
		return at
	}
	return now
}

// answersHint reports whether ADD LINK is the answer to a client's word that it has another RNIC.
// Not so when the client has replied to it: it had not that RNIC then, and the reply to CONFIRM
// LINK, with which the link is made for the client, comes over another queue pair than its word.
func (lc *LinkControl) answersHint() bool {
	return lc.add.phase == addOpening || lc.add.phase == addRequested // rule: TestAddLinkHintOvertakes: lc.add.phase == addOpening || lc.add.phase == addRequested -> lc.add.phase != addNone
}

// hint takes a client's word that it has another RNIC. While the first contact makes a link that
// the client has replied to, it is for the time afterwards.
func (lc *LinkControl) hint(now time.Time, out []Output) []Output {
	if lc.state != StateAdding && lc.state != StateActive || lc.answersHint() { // rule: TestAddLinkHints
		return out
	}
	lc.retry.hinted = true
	lc.retryNow(now)
	return lc.next(now, out)
}

// handleRequestAddLink takes a client's wish for another link. The server "should not reject", and need not
// add one (SMCv2 "SMC-Rv2 LLC Request Add Link Message", notes 5 and 6). An ADD LINK to which the
// client has replied before it asked is no answer.
//
//	state                           role    message  output
//	Adding, Active                  server  request  SendLLC reply, unless ADD LINK follows at once
//	Adding, Active, before a reply  server  request  (ADD LINK is the answer: note 7; SendLLC reply if there is no queue pair for it)
//	Ending                          server  request  (nobody needs one)
//	Confirming                      server  request  out of sync
//	any but Ending                  client  request  out of sync
//	any                             both    reply    (nobody has asked)
func (lc *LinkControl) handleRequestAddLink(now time.Time, link *controlLink, m llc.RequestAddLink,
	out []Output) []Output {
	switch {
	case m.Reply:
		return out
	case lc.role == core.RoleClient || lc.state == StateConfirming:
		return lc.unexpected(now, link, m, out)
	case lc.state == StateEnding: // rule: TestControlTable
		return out
	}
	lc.retry.gids = slices.Clone(m.GIDs)           // rule: TestAddLinkHints, TestRequestAddLinkAnswered
	if out = lc.hint(now, out); lc.answersHint() { // rule: TestControlTable, TestRequestAddLinkAnswered: lc.answersHint() -> false
		lc.add.asked = m.Form
	} else { // rule: TestRequestAddLinkAnswered: else -> else if lc.add.phase == addNone
		out = append(out, SendLLC{Link: link.num,
			Message: llc.RequestAddLink{Header: llc.Header{Form: m.Form, Reply: true}}})
	}
	return out
}
