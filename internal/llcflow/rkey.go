package llcflow

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
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
//	ADD LINK from the client     answered by an attempt afterwards
//	ADD LINK from the server     served: it refuses our RKey, which is told again afterwards
//	DELETE LINK from the client  queued, served when the exchange is over
//	DELETE LINK from the server  served, likewise
//	DELETE LINK all              the group ends at once
//
// An answer that does not come in time may be one that the peer never gave: Linux net/smc drops requests
// that cross an exchange of its own. So the request is sent once more, then the exchange is given
// up, and TEST LINK finds out whether the link has failed, which RFC 7609 C.7.1 takes for granted.

// An ownRMBState is the peer's knowledge of one of our RMBs.
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
	tokens map[llc.LinkNum]llc.RToken // on each link, also one that is being made
	told   map[llc.LinkNum]bool       // on which the peer knows it
	delete bool                       // rmbConfirming: not wanted any more
	again  bool                       // rmbConfirming: the peer knew it before, but not on all links
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
	via   llc.LinkNum      // that carries it
	named []llc.LinkNum    // the links that the request names
	rest  []llc.LinkRToken // CONFIRM RKEY, version 1: tokens that are still to be told
	tries int
	until time.Time // when the answer has to be there, or when to try again
	retry bool      // the peer has asked to try again
	end   time.Time // no more tries after it
}

// Room reports whether both sides can have another RMB.
func (lc *LinkControl) Room() bool {
	return len(lc.own) < llc.MaxRKeys && lc.peer.room() // rule: TestControlRKeyLimit: len(lc.own) < llc.MaxRKeys -> true
}

// Spare reports whether both sides have an RMB for one more connection: a new one; or of ours one
// that is free, if there is such; or of the peer's one that no connection of ours writes to, which
// is likely to be free there.
func (lc *LinkControl) Spare(free bool) bool {
	return (free || len(lc.own) < llc.MaxRKeys) && (lc.peer.room() || lc.peer.idle()) // rule: TestControlSpare: lc.peer.idle() -> false
}

// ConfirmRMB tells the peer of an RMB of ours, before a CLC message names it. The answer is [RMBConfirmed] or
// [RMBRefused]. An RMB that the peer knows is confirmed at once. tokens says where it is on each
// link, also on one for which [OpenLink] was the last word.
func (lc *LinkControl) ConfirmRMB(now time.Time, id RMBID, tokens map[llc.LinkNum]llc.RToken,
	out []Output) []Output {
	switch b := lc.own[id]; {
	case b != nil && b.state == rmbConfirmed && lc.state == StateActive && maps.Equal(b.tokens, tokens):
		return append(out, RMBConfirmed{id})
	case b != nil:
		return append(out, RMBRefused{id, clc.DiagBufferRegistration}) // still in use, or in quarantine
	case lc.state != StateActive:
		return append(out, RMBRefused{id, clc.DiagNoActiveLink})
	case len(lc.own) >= llc.MaxRKeys: // rule: TestControlRKeyLimit
		return append(out, RMBRefused{id, clc.DiagRToken})
	}
	lc.own[id] = &ownRMB{state: rmbQueued, tokens: maps.Clone(tokens), told: make(map[llc.LinkNum]bool)}
	lc.wishes = append(lc.wishes, id)
	return lc.arm(lc.next(now, out))
}

// DeleteRMB takes an RMB of ours out of the group. The answer is [RMBDeleted], when nobody writes
// into it any more. The flag clean says that the peer has promised not to ([ReleaseBuffers]).
// Without that promise the RMB is kept in quarantine and comes back with [GroupEnded] only. The
// reason is that a write of the peer to an RKey that is gone costs all connections of the group.
func (lc *LinkControl) DeleteRMB(now time.Time, id RMBID, clean bool, out []Output) []Output {
	b := lc.own[id]
	switch {
	case lc.state == StateEnding:
		return out // GroupEnded is the answer
	case b == nil || lc.state == StateEnded:
		return append(out, RMBDeleted{id})
	case !clean && b.state == rmbConfirmed: // rule: TestControlQuarantine
		b.state = rmbQuarantined
		lc.dropWish(id) // rule: TestQuarantineWhileTold
		return out
	case !clean && b.state == rmbConfirming && b.again: // rule: TestQuarantineWhileTold
		b.state = rmbQuarantined // the exchange goes on
		return out
	}
	switch b.state {
	case rmbQueued:
		lc.dropWish(id)
		return lc.deleted(id, out)
	case rmbRefused:
		return lc.deleted(id, out)
	case rmbConfirming:
		b.delete = true
		return out
	case rmbConfirmed, rmbUnsure:
		b.state = rmbUnwanted
		lc.dropWish(id)
		lc.wishes = append(lc.wishes, id)
		return lc.arm(lc.next(now, out))
	case rmbUnwanted, rmbDeleting, rmbQuarantined:
		return out // said before
	}
	panic("core: impossible state of an RMB")
}

// dropWish takes an RMB out of those that wait for an exchange.
func (lc *LinkControl) dropWish(id RMBID) {
	lc.wishes = slices.DeleteFunc(lc.wishes, func(w RMBID) bool { return w == id })
}

// deleted forgets an RMB.
func (lc *LinkControl) deleted(id RMBID, out []Output) []Output {
	delete(lc.own, id)
	return append(out, RMBDeleted{id})
}

// ownIDs returns our RMBs in order.
func (lc *LinkControl) ownIDs() []RMBID { return slices.Sorted(maps.Keys(lc.own)) }

// refreshRMBs has the peer told where our RMBs are on links that were added meanwhile.
func (lc *LinkControl) refreshRMBs() {
	for _, id := range lc.ownIDs() {
		if b := lc.own[id]; b.state == rmbConfirmed && lc.isShort(b) && !slices.Contains(lc.wishes, id) {
			lc.wishes = append(lc.wishes, id)
		}
	}
}

// An rkeyAgain says when the peer is told again of RMBs that it does not know on all links, as it
// has refused, or not answered. A connection cannot go on over a link on which its RMB is not
// known.
type rkeyAgain struct {
	at    time.Time // zero: not by itself
	delay time.Duration
}

// tellLater has the peer told again after a while, longer each time.
func (lc *LinkControl) tellLater(now time.Time) {
	a := &lc.again
	a.delay = min(max(2*a.delay, rkeyAgainDelay), rkeyAgainMax) // rule: TestToldAgainLater: min(max(2*a.delay, rkeyAgainDelay), rkeyAgainMax) -> rkeyAgainDelay
	a.at = earliest(a.at, now.Add(a.delay))
}

// isShort reports whether the peer does not know an RMB on all links.
func (lc *LinkControl) isShort(b *ownRMB) bool {
	return slices.ContainsFunc(lc.links, func(l *controlLink) bool {
		_, ok := b.tokens[l.num]
		return l.state == linkActive && ok && !b.told[l.num]
	})
}

// nextRMB begins the exchange for an RMB that has waited: first those for which a connection waits, then
// those that are not known on all links, then those that nobody needs.
func (lc *LinkControl) nextRMB(now time.Time, out []Output) []Output {
	if len(lc.wishes) == 0 {
		return out
	}
	i := slices.IndexFunc(lc.wishes, func(id RMBID) bool { return lc.own[id].state == rmbQueued })
	if i < 0 {
		i = max(0, slices.IndexFunc(lc.wishes,
			func(id RMBID) bool { return lc.own[id].state == rmbConfirmed }))
	}
	id := lc.wishes[i]
	lc.wishes = slices.Delete(lc.wishes, i, i+1)
	b := lc.own[id]
	if _, ok := b.tokens[lc.main().num]; b.state == rmbUnwanted && !ok {
		// the links are gone on which the peer knew it
		return lc.next(now, lc.deleted(id, out))
	}
	lc.exchange = rkeyExchange{kind: exchangeDeleteRKey, id: id, end: now.Add(RKeyTimeout)}
	switch b.state {
	case rmbConfirmed, rmbQueued:
		b.again = b.state == rmbConfirmed
		b.state, lc.exchange.kind = rmbConfirming, exchangeConfirmRKey
	default:
		b.state = rmbDeleting
	}
	return lc.request(now, out)
}

// restartExchange has the exchange that is under way begin anew.
func (lc *LinkControl) restartExchange() {
	id := lc.exchange.id
	b := lc.own[id]
	lc.exchange = rkeyExchange{}
	switch {
	case b.state == rmbQuarantined: // rule: TestQuarantineWhileTold
		return
	case b.state == rmbDeleting || b.delete: // rule: TestExchangeOnLostLink
		b.state, b.delete = rmbUnwanted, false
	case b.again:
		b.state = rmbConfirmed // rule: TestToldAgain
	default:
		b.state = rmbQueued
	}
	lc.wishes = slices.Insert(lc.wishes, 0, id)
}

// request sends the request of the exchange.
func (lc *LinkControl) request(now time.Time, out []Output) []Output {
	x := &lc.exchange
	x.tries++
	x.retry = false
	x.until = now.Add(LLCTimeout)
	link := lc.main()
	x.via = link.num
	b := lc.own[x.id]
	if x.kind == exchangeDeleteRKey {
		return append(out, SendLLC{Link: link.num, Message: llc.DeleteRKey{
			Header: llc.Header{Form: lc.form}, RKeys: []wire.RKey{b.tokens[link.num].RKey},
		}})
	}
	x.named, x.rest = []llc.LinkNum{link.num}, nil
	for _, l := range lc.links {
		if token, ok := b.tokens[l.num]; ok && l != link && l.state == linkActive {
			x.rest = append(x.rest, llc.LinkRToken{Link: l.num, RToken: token})
			x.named = append(x.named, l.num)
		}
	}
	m := llc.ConfirmRKey{Header: llc.Header{Form: lc.form}, RToken: b.tokens[link.num],
		Remaining: uint8(len(x.rest))}
	n := min(len(x.rest), 2)
	m.Others, x.rest = x.rest[:n:n], x.rest[n:]
	return append(out, SendLLC{Link: link.num, Message: m})
}

// advanceExchange tries again, or gives up.
func (lc *LinkControl) advanceExchange(now time.Time, out []Output) []Output {
	x := &lc.exchange
	switch {
	case x.kind == exchangeNone || now.Before(x.until):
		return out
	case x.retry && now.Before(x.end) && lc.add.phase != addNone: // the answer would be the same
		x.until = now.Add(rkeyRetryDelay)
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
		out = lc.refused(now, id, rmbUnsure, out)
	}
	if !asked {
		// Those behind it would wait in vain for as long: their connections go on over TCP.
		out = lc.refuseQueued(clc.DiagBufferRegistration, out) // rule: TestControlRKeyTimeout
		out = lc.probe(now, lc.main(), out)                    // rule: TestControlRKeyTimeout
	}
	return lc.next(now, out)
}

// refused ends CONFIRM RKEY without success.
func (lc *LinkControl) refused(now time.Time, id RMBID, s ownRMBState, out []Output) []Output {
	b := lc.own[id]
	switch {
	case b.state == rmbQuarantined: // rule: TestQuarantineWhileTold
		return out
	case b.again && !b.delete:
		b.state = rmbConfirmed // as far as it was
		lc.tellLater(now)      // rule: TestToldAgainLater
		return out
	}
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
	if x := lc.exchange; x.kind == exchangeConfirmRKey && !lc.own[x.id].delete && !lc.own[x.id].again {
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
//	the same, and a link is added or (server) deleted   SendLLC refusal, try again
//	Confirming            request   SendLLC refusal, try again
//	Replied               request   (the server has the reply) as confirmed, then as in the next state
//	Ending                request   SendLLC refusal
//	Active, our exchange  reply     RMBConfirmed or RMBRefused, next exchange; or later again
//	any other             reply     (late, or nobody has asked)
//
// RFC 7609 §3.5.5.2.1, §3.5.5.3.1.
func (lc *LinkControl) handleConfirmRKey(now time.Time, link *controlLink, m llc.ConfirmRKey,
	out []Output) []Output {
	if m.Reply {
		return lc.handleConfirmRKeyReply(now, m, out)
	}
	if lc.state == StateReplied { // rule: TestReplyArrivedRKey
		out = lc.confirmed(now, out) // or the server would not tell
	}
	reply := m
	reply.Reply, reply.Negative, reply.Retry = true, false, false
	var missing []*controlLink
	switch lc.state {
	case StateActive, StateAdding:
		// "RKeys cannot change while links are being added or deleted" (RFC 7609 p.57).
		if lc.add.phase != addNone || lc.role == core.RoleServer && (lc.state == StateAdding || lc.deletesDue() != time.Time{}) { // rule: TestControlTable, TestCollisions
			reply.Negative, reply.Retry = true, true
		} else {
			reply.Negative, reply.Retry, missing = lc.learn(link, m)
		}
	case StateConfirming:
		reply.Negative, reply.Retry = true, true
	case StateEnding:
		reply.Negative = true
	case StateInit, StateReplied, StateEnded:
	}
	out = append(out, SendLLC{Link: link.num, Message: reply})
	for _, l := range missing {
		out = lc.lose(now, l, GroupEnd{Kind: EndViolation, Err: &core.ProtocolError{
			Message: m.Type().String(), State: lc.state.String(), Err: errNoRKey,
		}}, clc.DiagLink, out)
	}
	return out
}

// errNoRKey is why a link failed that a CONFIRM RKEY does not name.
var errNoRKey = errors.New("no RKey for the link")

// learn takes an RMB of the peer's. A message that speaks of more links than there can be comes
// from a peer that counts on links which we do not have: it is asked to try again when it knows
// better, as by Linux net/smc. A link of which it does not speak is one that the peer does not
// have: "treat as if detected failure of the link(s)" (RFC 7609 C.7.1).
func (lc *LinkControl) learn(link *controlLink,
	m llc.ConfirmRKey) (negative, retry bool, missing []*controlLink) {
	if int(m.Remaining) > lc.maxLinks { // rule: TestControlHostile
		return true, true, nil
	}
	b := lc.peer.add(link.slot, m.RToken)
	if b == nil {
		return true, false, nil
	}
	lc.learning = rkeyLearning{b, int(m.Remaining) - len(m.Others)}
	lc.learnOthers(b, m.Others)
	if lc.learning.owed > 0 {
		return false, false, nil
	}
	return false, false, lc.missing(link, b)
}

// A rkeyLearning is a CONFIRM RKEY of the peer's that is to be continued.
type rkeyLearning struct {
	rmb  *peerRMB
	owed int
}

func (lc *LinkControl) learnOthers(b *peerRMB, others []llc.LinkRToken) {
	for _, t := range others {
		// rule: TestConfirmRKeyContinuation: t.Link != 0 -> (t.Link != 0 || true)
		if l := lc.link(t.Link); l != nil && t.Link != 0 {
			if old, ok := b.on(l.slot); ok && old != t.RToken && len(b.users) > 0 { // rule: TestConfirmRKeyInUse
				continue // as with the first
			}
			b.set(l.slot, t.RToken)
		}
	}
}

// missing returns the links in use on which an RMB is not known.
func (lc *LinkControl) missing(via *controlLink, b *peerRMB) (list []*controlLink) {
	for _, l := range lc.links {
		if _, ok := b.on(l.slot); l.state == linkActive && l != via && !ok { // rule: TestC71
			list = append(list, l)
		}
	}
	return list
}

// handleConfirmRKeyCont takes where the RMB of the last CONFIRM RKEY is on further links. Version 1
// only; Linux net/smc ignores it.
func (lc *LinkControl) handleConfirmRKeyCont(now time.Time, link *controlLink, m llc.ConfirmRKeyCont,
	out []Output) []Output {
	x := &lc.exchange
	if m.Reply {
		if x.kind != exchangeConfirmRKey || len(x.rest) == 0 || int(m.Remaining) != len(x.rest) { // rule: TestConfirmRKeyContinuation
			return out
		}
		x.rest = x.rest[min(len(x.rest), 3):]
		return lc.rkeyAnswered(now, m.Negative, out)
	}
	l := &lc.learning
	if l.rmb == nil || int(m.Remaining) != l.owed || l.owed == 0 { // rule: TestConfirmRKeyContinuation
		return out
	}
	reply := m
	reply.Reply = true
	lc.learnOthers(l.rmb, m.RTokens) // rule: TestConfirmRKeyContinuation
	l.owed -= len(m.RTokens)
	out = append(out, SendLLC{Link: link.num, Message: reply})
	if l.owed > 0 {
		return out
	}
	b := l.rmb
	*l = rkeyLearning{}
	for _, lost := range lc.missing(link, b) {
		out = lc.lose(now, lost, GroupEnd{Kind: EndViolation, Err: &core.ProtocolError{
			Message: m.Type().String(), State: lc.state.String(), Err: errNoRKey,
		}}, clc.DiagLink, out)
	}
	return out
}

func (lc *LinkControl) handleConfirmRKeyReply(now time.Time, m llc.ConfirmRKey, out []Output) []Output {
	x := &lc.exchange
	if x.kind != exchangeConfirmRKey || x.retry || m.RToken.RKey != lc.own[x.id].tokens[x.via].RKey { // rule: TestControlUnasked
		return out
	}
	if m.Negative && m.Retry && now.Before(x.end) && !lc.own[x.id].delete {
		x.retry, x.until = true, now.Add(rkeyRetryDelay) // rule: TestControlRKeyRetry
		return out
	}
	return lc.rkeyAnswered(now, m.Negative, out)
}

// rkeyAnswered goes on after an answer of the peer's.
func (lc *LinkControl) rkeyAnswered(now time.Time, negative bool, out []Output) []Output {
	x := &lc.exchange
	id, b := x.id, lc.own[x.id]
	if !negative && len(x.rest) > 0 {
		x.until = now.Add(LLCTimeout)
		return append(out, SendLLC{Link: x.via, Message: llc.ConfirmRKeyCont{
			Header: llc.Header{Form: lc.form}, Remaining: uint8(len(x.rest)), RTokens: x.rest[:min(len(x.rest), 3)],
		}})
	}
	named := x.named
	lc.exchange = rkeyExchange{}
	if negative {
		return lc.next(now, lc.refused(now, id, rmbRefused, out))
	}
	for _, num := range named {
		b.told[num] = true
	}
	lc.again.delay = 0 // rule: TestToldAgainLater
	switch {
	case b.state == rmbQuarantined: // rule: TestQuarantineWhileTold
	case b.delete:
		b.state, b.delete = rmbUnwanted, false
		lc.wishes = append(lc.wishes, id)
	case lc.isShort(b): // a link was added meanwhile
		b.state = rmbQueued
		if b.again {
			b.state = rmbConfirmed
		}
		lc.wishes = append(lc.wishes, id)
	default:
		b.state = rmbConfirmed
		if !b.again {
			out = append(out, RMBConfirmed{id})
		}
		b.again = false
	}
	return lc.next(now, out)
}

// handleDeleteRKey takes back RMBs of the peer's, or its answer to ours. An RKey that is not known
// is answered as such, "no other action". A connection that still uses an element has lost it:
// "either peer can delete one or more of its RMBs as long as it is not being used" (RFC 7609 p.53).
//
//	state               message  output
//	Confirming..Ending  request  SendLLC reply, ElementLost for each connection that used an element
//	Active, our exchange  reply  RMBDeleted, next exchange
//	any other           reply    (late, or nobody has asked)
func (lc *LinkControl) handleDeleteRKey(now time.Time, link *controlLink, m llc.DeleteRKey,
	out []Output) []Output {
	if !m.Reply {
		var lost []Owner
		reply := m.Answer(func(key wire.RKey) bool {
			users, ok := lc.peer.remove(link.slot, key)
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
	if m.Form == llc.V1 && !slices.Contains(m.RKeys, lc.own[x.id].tokens[x.via].RKey) { // rule: TestControlUnasked
		return out
	}
	id := x.id
	lc.exchange = rkeyExchange{}
	return lc.next(now, lc.deleted(id, out)) // a peer that does not know the RMB does not write to it either
}
