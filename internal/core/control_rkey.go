package core

import (
	"slices"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has the exchanges of a [LinkControl] about RMBs: CONFIRM RKEY and DELETE RKEY.
// One of ours is under way at a time; the peer's own may cross it (RFC 7609 p.57), and so
// may everything else:
//
//	message                      while our exchange is under way
//	TEST LINK                    answered
//	CONFIRM RKEY, DELETE RKEY    answered
//	ADD LINK from the server     rejected, as always
//	DELETE LINK from the client  parked, served when the exchange is over
//	DELETE LINK from the server  served; the group ends with the link
//	DELETE LINK all              the group ends at once
//
// An answer that does not come in time may be one that the peer never gave: Linux net/smc drops requests
// that cross an exchange of its own. So the request is sent once more, then the exchange is given up, and TEST LINK
// finds out whether the link has failed, which RFC 7609 C.7.1 takes for granted.

// An ownRMBState says what the peer knows of one of our RMBs.
type ownRMBState uint8

const (
	rmbQueued      ownRMBState = iota // CONFIRM RKEY waits for its turn
	rmbConfirming                     // CONFIRM RKEY is under way
	rmbConfirmed                      // the peer knows it
	rmbUnsure                         // CONFIRM RKEY was not answered
	rmbRefused                        // the peer did not take it
	rmbUnwanted                       // DELETE RKEY waits for its turn
	rmbDeleting                       // DELETE RKEY is under way
	rmbQuarantined                    // the peer may still write into it: kept until the group ends
)

// An ownRMB is one of our RMBs.
type ownRMB struct {
	state  ownRMBState
	token  llc.RToken // on the first link
	delete bool       // rmbConfirming: not wanted any more
}

// An exchangeKind says which exchange of ours is under way.
type exchangeKind uint8

const (
	exchangeNone exchangeKind = iota
	exchangeConfirmRKey
	exchangeDeleteRKey
)

// A rkeyExchange is CONFIRM RKEY or DELETE RKEY under way.
type rkeyExchange struct {
	kind  exchangeKind
	id    RMBID
	tries int
	until time.Time // when the answer has to be there, or when to try again
	retry bool      // the peer has asked to try again
	end   time.Time // no more tries after it
}

// Room reports whether both sides can have another RMB.
func (lc *LinkControl) Room() bool {
	return len(lc.own) < llc.MaxRKeys && lc.peer.room() // rule: TestControlRKeyLimit: len(lc.own) < llc.MaxRKeys -> true
}

// ConfirmRMB tells the peer of an RMB of ours, before a CLC message names it. The answer is [RMBConfirmed] or
// [RMBRefused]. An RMB that the peer knows is confirmed at once.
func (lc *LinkControl) ConfirmRMB(now time.Time, id RMBID, token llc.RToken, out []Output) []Output {
	switch b := lc.own[id]; {
	case b != nil && b.state == rmbConfirmed && lc.state == ControlActive && b.token == token:
		return append(out, RMBConfirmed{id})
	case b != nil:
		return append(out, RMBRefused{id, clc.DiagBufferRegistration}) // still in use, or in quarantine
	case lc.state != ControlActive:
		return append(out, RMBRefused{id, clc.DiagNoActiveLink})
	case len(lc.own) >= llc.MaxRKeys: // rule: TestControlRKeyLimit
		return append(out, RMBRefused{id, clc.DiagRToken})
	}
	lc.own[id] = &ownRMB{state: rmbQueued, token: token}
	lc.wishes = append(lc.wishes, id)
	return lc.arm(lc.next(now, out))
}

// DeleteRMB takes an RMB of ours out of the group. The answer is [RMBDeleted], when nobody writes into it any
// more. clean says that the peer has promised not to ([ReleaseBuffers]); without that promise the RMB is kept
// in quarantine and comes back with [GroupEnded] only: what a peer writes to an RKey that is gone costs
// all connections of the group.
func (lc *LinkControl) DeleteRMB(now time.Time, id RMBID, clean bool, out []Output) []Output {
	b := lc.own[id]
	switch {
	case lc.state == ControlEnding:
		return out // GroupEnded is the answer
	case b == nil || lc.state == ControlEnded:
		return append(out, RMBDeleted{id})
	case !clean && b.state == rmbConfirmed: // rule: TestControlQuarantine
		b.state = rmbQuarantined
		return out
	}
	switch b.state {
	case rmbQueued:
		lc.wishes = slices.DeleteFunc(lc.wishes, func(w RMBID) bool { return w == id })
		return lc.deleted(id, out)
	case rmbRefused:
		return lc.deleted(id, out)
	case rmbConfirming:
		b.delete = true
		return out
	case rmbConfirmed, rmbUnsure:
		b.state = rmbUnwanted
		lc.wishes = append(lc.wishes, id)
		return lc.arm(lc.next(now, out))
	case rmbUnwanted, rmbDeleting, rmbQuarantined:
		return out // said before
	}
	panic("core: impossible state of an RMB")
}

// deleted forgets an RMB.
func (lc *LinkControl) deleted(id RMBID, out []Output) []Output {
	delete(lc.own, id)
	return append(out, RMBDeleted{id})
}

// next begins what has waited: first what the client has asked for, then RMBs for which a connection waits, then
// those that nobody needs.
func (lc *LinkControl) next(now time.Time, out []Output) []Output {
	if lc.state != ControlActive || lc.exchange.kind != exchangeNone {
		return out
	}
	for len(lc.parked) > 0 {
		m := lc.parked[0]
		lc.parked = lc.parked[1:]
		if lc.link(m.Link) != nil {
			return lc.deleteLink(now, m, out)
		}
	}
	if len(lc.wishes) == 0 {
		return out
	}
	i := max(0, slices.IndexFunc(lc.wishes, func(id RMBID) bool { return lc.own[id].state == rmbQueued }))
	id := lc.wishes[i]
	lc.wishes = slices.Delete(lc.wishes, i, i+1)
	b := lc.own[id]
	lc.exchange = rkeyExchange{kind: exchangeDeleteRKey, id: id, end: now.Add(RKeyTimeout)}
	if b.state == rmbQueued {
		b.state, lc.exchange.kind = rmbConfirming, exchangeConfirmRKey
	} else {
		b.state = rmbDeleting
	}
	return lc.request(now, out)
}

// request sends the request of the exchange.
func (lc *LinkControl) request(now time.Time, out []Output) []Output {
	x := &lc.exchange
	x.tries++
	x.retry = false
	x.until = now.Add(LLCTimeout)
	link := &lc.links[0]
	token := lc.own[x.id].token
	if x.kind == exchangeConfirmRKey {
		return append(out, SendLLC{Link: link.num, Message: llc.ConfirmRKey{Header: llc.Header{Form: lc.form}, RToken: token}})
	}
	return append(out, SendLLC{Link: link.num, Message: llc.DeleteRKey{
		Header: llc.Header{Form: lc.form}, RKeys: []wire.RKey{token.RKey},
	}})
}

// advanceExchange tries again, or gives up.
func (lc *LinkControl) advanceExchange(now time.Time, out []Output) []Output {
	x := &lc.exchange
	switch {
	case x.kind == exchangeNone || now.Before(x.until):
		return out
	case x.retry && now.Before(x.end), x.tries < rkeyTries && !x.retry: // rule: TestControlRKeyTimeout
		return lc.request(now, out)
	}
	id, kind, asked := x.id, x.kind, x.retry
	lc.exchange = rkeyExchange{}
	b := lc.own[id]
	if kind == exchangeDeleteRKey {
		b.state = rmbQuarantined // rule: TestControlRKeyTimeout
	} else {
		out = lc.refused(id, rmbUnsure, out)
	}
	if !asked {
		// Those behind it would wait in vain for as long: their connections go on over TCP.
		out = lc.refuseQueued(clc.DiagBufferRegistration, out) // rule: TestControlRKeyTimeout
		out = lc.probe(now, &lc.links[0], out)                 // rule: TestControlRKeyTimeout
	}
	return lc.next(now, out)
}

// refused ends CONFIRM RKEY without success.
func (lc *LinkControl) refused(id RMBID, s ownRMBState, out []Output) []Output {
	b := lc.own[id]
	b.state = s
	if !b.delete {
		return append(out, RMBRefused{id, clc.DiagBufferRegistration})
	}
	if s == rmbRefused {
		return lc.deleted(id, out)
	}
	b.state = rmbUnwanted
	lc.wishes = append(lc.wishes, id)
	return out
}

// refuseQueued gives up the RMBs that wait for CONFIRM RKEY.
func (lc *LinkControl) refuseQueued(why clc.Diagnosis, out []Output) []Output {
	var rest []RMBID
	for _, id := range lc.wishes {
		if lc.own[id].state != rmbQueued {
			rest = append(rest, id)
			continue
		}
		lc.own[id].state = rmbRefused
		out = append(out, RMBRefused{id, why})
	}
	lc.wishes = rest
	return out
}

// refuseAll gives up all exchanges: the group ends.
func (lc *LinkControl) refuseAll(why clc.Diagnosis, out []Output) []Output {
	if x := lc.exchange; x.kind == exchangeConfirmRKey && !lc.own[x.id].delete {
		out = append(out, RMBRefused{x.id, why})
	}
	out = lc.refuseQueued(why, out)
	lc.exchange, lc.wishes = rkeyExchange{}, nil
	return out
}

// handleConfirmRKey takes an RMB of the peer's, or its answer to ours.
//
//	state                 message   output
//	Active                request   SendLLC reply
//	Adding                request   client: SendLLC reply; server: SendLLC refusal, try again
//	Confirming, Replied   request   SendLLC refusal, try again
//	Ending                request   SendLLC refusal
//	Active, our exchange  reply     RMBConfirmed or RMBRefused, next exchange; or later again
//	any other             reply     (late, or nobody has asked)
//
// RFC 7609 §3.5.5.2.1, §3.5.5.3.1.
func (lc *LinkControl) handleConfirmRKey(now time.Time, link *controlLink, m llc.ConfirmRKey, out []Output) []Output {
	if m.Reply {
		return lc.handleConfirmRKeyReply(now, m, out)
	}
	reply := m
	reply.Reply, reply.Negative, reply.Retry = true, false, false
	switch lc.state {
	case ControlActive:
		reply.Negative, reply.Retry = lc.learn(link, m)
	case ControlAdding:
		if lc.role == RoleServer { // rule: TestControlTable
			reply.Negative, reply.Retry = true, true
		} else {
			reply.Negative, reply.Retry = lc.learn(link, m)
		}
	case ControlConfirming, ControlReplied:
		reply.Negative, reply.Retry = true, true
	case ControlEnding:
		reply.Negative = true
	case ControlInit, ControlEnded:
	}
	return append(out, SendLLC{Link: link.num, Message: reply})
}

// learn takes an RMB of the peer's. A message that speaks of more links than there can be comes from a peer that counts
// on links which we do not have: it is asked to try again when it knows better, as by Linux net/smc.
func (lc *LinkControl) learn(link *controlLink, m llc.ConfirmRKey) (negative, retry bool) {
	if int(m.Remaining) > maxLinksCeiling { // rule: TestControlHostile
		return true, true
	}
	return !lc.peer.add(lc.index(link), m.RToken), false
}

func (lc *LinkControl) handleConfirmRKeyReply(now time.Time, m llc.ConfirmRKey, out []Output) []Output {
	x := &lc.exchange
	if x.kind != exchangeConfirmRKey || x.retry || m.RToken.RKey != lc.own[x.id].token.RKey { // rule: TestControlUnasked
		return out
	}
	id, b := x.id, lc.own[x.id]
	switch {
	case m.Negative && m.Retry && now.Before(x.end) && !b.delete:
		x.retry, x.until = true, now.Add(rkeyRetryDelay) // rule: TestControlRKeyRetry
		return out
	case m.Negative:
		lc.exchange = rkeyExchange{}
		out = lc.refused(id, rmbRefused, out)
	case b.delete:
		lc.exchange = rkeyExchange{}
		b.state = rmbUnwanted
		lc.wishes = append(lc.wishes, id)
	default:
		lc.exchange = rkeyExchange{}
		b.state = rmbConfirmed
		out = append(out, RMBConfirmed{id})
	}
	return lc.next(now, out)
}

// handleDeleteRKey takes back RMBs of the peer's, or its answer to ours. An RKey that is not known is answered
// as such, "no other action". A connection that still uses an element has lost it: "either peer can delete one or
// more of its RMBs as long as it is not being used" (RFC 7609 p.53).
//
//	state               message  output
//	Confirming..Ending  request  SendLLC reply, ElementLost for each connection that used an element
//	Active, our exchange  reply  RMBDeleted, next exchange
//	any other           reply    (late, or nobody has asked)
func (lc *LinkControl) handleDeleteRKey(now time.Time, link *controlLink, m llc.DeleteRKey, out []Output) []Output {
	if !m.Reply {
		var lost []Owner
		reply := m.Answer(func(key wire.RKey) bool {
			users, ok := lc.peer.remove(lc.index(link), key)
			lost = append(lost, users...)
			return ok
		})
		for _, owner := range lost {
			out = append(out, ElementLost{owner})
		}
		return append(out, SendLLC{Link: link.num, Message: reply})
	}
	x := &lc.exchange
	if x.kind != exchangeDeleteRKey { // rule: TestControlUnasked
		return out
	}
	if m.Form == llc.V1 && !slices.Contains(m.RKeys, lc.own[x.id].token.RKey) { // rule: TestControlUnasked
		return out
	}
	id := x.id
	lc.exchange = rkeyExchange{}
	return lc.next(now, lc.deleted(id, out)) // a peer that does not know the RMB does not write to it either
}
