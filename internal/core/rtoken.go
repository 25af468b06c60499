package core

import (
	"maps"
	"slices"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// An Element is a place for one connection in a peer's RMB, as a writer on one link addresses it.
type Element struct {
	RKey wire.RKey
	VA   uint64 // of the element's first byte
	Size int    // bytes
}

// rtokens are the RMBs of a peer, as many as one link group can have, and which of our connections uses which
// element.
type rtokens struct {
	rmbs  []*peerRMB
	users map[Owner]elementUse
}

// A peerRMB is one of the peer's RMBs: "one RToken per RMB and link".
type peerRMB struct {
	tokens [llc.MaxLinks]llc.RToken // by the index of the link
	known  uint8                    // which of tokens are there: a bit for each
	users  map[uint8]Owner          // by the index of the element
}

type elementUse struct {
	rmb   *peerRMB
	index uint8
}

// find returns the RMB with an RKey on a link, nil if there is none.
func (t *rtokens) find(link int, key wire.RKey) *peerRMB {
	for _, b := range t.rmbs {
		if b.known&(1<<link) != 0 && b.tokens[link].RKey == key {
			return b
		}
	}
	return nil
}

// room reports whether another RMB has a place.
func (t *rtokens) room() bool { return len(t.rmbs) < llc.MaxRKeys } // rule: TestRTokens: len(t.rmbs) < llc.MaxRKeys -> true

// add takes an RMB, and reports whether it did. One that is known is told again when it is used again: Linux net/smc.
// Its address can change while nobody uses it.
func (t *rtokens) add(link int, token llc.RToken) bool {
	if b := t.find(link, token.RKey); b != nil {
		if b.tokens[link] != token && len(b.users) > 0 { // rule: TestRTokens
			return false
		}
		b.tokens[link] = token
		return true
	}
	if !t.room() {
		return false
	}
	b := &peerRMB{known: 1 << link}
	b.tokens[link] = token
	t.rmbs = append(t.rmbs, b)
	return true
}

// remove forgets an RMB, and returns who has used its elements, in order. It reports whether there was one.
func (t *rtokens) remove(link int, key wire.RKey) ([]Owner, bool) {
	b := t.find(link, key)
	if b == nil {
		return nil, false
	}
	users := slices.Sorted(maps.Values(b.users))
	for _, owner := range users {
		delete(t.users, owner)
	}
	t.rmbs = slices.DeleteFunc(t.rmbs, func(x *peerRMB) bool { return x == b })
	return users, true
}

// take gives the element that p names to owner. A previous one has lost it, and is returned.
func (t *rtokens) take(link int, p *clc.ParamsR, owner Owner) (el Element, previous Owner, why clc.Diagnosis) {
	size := p.RMBESize.Bytes()
	va := p.RMBAddr + uint64(p.RMBEIndex-1)*uint64(size)
	// "Valid value range is 1-255" (RFC 7609 p.15). An address is any number, but memory does not go on at 0.
	if p.RMBEIndex == 0 || va+uint64(size-1) < va { // rule: TestRTokens
		return Element{}, 0, clc.DiagRToken
	}
	// The peer has told of the RMB with CONFIRM RKEY, on the link. Linux net/smc does so too, but would take one
	// from the CLC message: from whoever is on the TCP connection, who may not be that peer.
	b := t.find(link, p.RKey)
	if b == nil || b.tokens[link].VA != p.RMBAddr { // rule: TestRTokens
		return Element{}, 0, clc.DiagRToken
	}
	t.release(owner)
	if previous = b.users[p.RMBEIndex]; previous != 0 {
		delete(t.users, previous) // rule: TestRTokens
	}
	if b.users == nil {
		b.users = make(map[uint8]Owner)
	}
	if t.users == nil {
		t.users = make(map[Owner]elementUse)
	}
	b.users[p.RMBEIndex] = owner
	t.users[owner] = elementUse{b, p.RMBEIndex}
	return Element{RKey: p.RKey, VA: va, Size: size}, previous, clc.DiagNone
}

// release ends owner's use of its element.
func (t *rtokens) release(owner Owner) {
	if use, ok := t.users[owner]; ok {
		delete(use.rmb.users, use.index)
		delete(t.users, owner)
	}
}

// TakeElement finds the element of a peer's RMB that its Accept or Confirm names, for a connection that writes
// on the first link, and keeps for whom. If it cannot be one, such as for an RMB that the peer has not told of, why is the
// reason to decline, where that is possible. Of a connection that had the element before, the peer thinks that it has ended: it "must
// abort the existing SMC-R connection associated with this RMBE" (RFC 7609 §4.4.2), see [ElementLost].
func (lc *LinkControl) TakeElement(p *clc.ParamsR, owner Owner, out []Output) (Element, clc.Diagnosis, []Output) {
	if lc.state == ControlEnding || lc.state == ControlEnded {
		return Element{}, clc.DiagNoActiveLink, out
	}
	el, previous, why := lc.peer.take(0, p, owner)
	if previous != 0 {
		out = append(out, ElementLost{previous}) // rule: TestControlElements
	}
	return el, why, out
}

// ReleaseElement says that a connection does not use its element any more.
func (lc *LinkControl) ReleaseElement(owner Owner) { lc.peer.release(owner) }

// FirstElement returns the element that the first contact's CLC messages have named. One that cannot be
// ends the first contact at Start.
func (lc *LinkControl) FirstElement() Element { return lc.first }
