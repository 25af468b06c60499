package llcflow

import (
	"maps"
	"slices"

	"github.com/gosmc/smc/internal/core"
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

// maxSlots is how many links a group may have at a time: the symmetric ones, and an asymmetric one.
const maxSlots = llc.MaxLinks + 1

// rtokens are the RMBs of a peer, as many as one link group can have, and which of our connections uses which
// element. Links are told apart by their slots, which are below maxSlots.
type rtokens struct {
	rmbs   []*peerRMB
	users  map[Owner]elementUse
	former []formerLink // oldest first
}

// A formerLink is where RMBs were on a link that is gone: a CLC message that was on its way
// meanwhile may name it.
type formerLink struct {
	peer core.LinkEnd
	rmbs map[*peerRMB]llc.RToken
}

// A peerRMB is one of the peer's RMBs: "one RToken per RMB and link".
type peerRMB struct {
	tokens [maxSlots]llc.RToken
	known  uint16          // which of tokens are there: a bit for each
	users  map[uint8]Owner // by the index of the element
}

type elementUse struct {
	rmb   *peerRMB
	index uint8
	size  int // bytes
}

// on returns where the RMB is on a link, and whether that is known.
func (b *peerRMB) on(slot uint8) (llc.RToken, bool) { return b.tokens[slot], b.known&(1<<slot) != 0 }

// set takes where the RMB is on a link.
func (b *peerRMB) set(slot uint8, token llc.RToken) {
	b.tokens[slot] = token
	b.known |= 1 << slot
}

// find returns the RMB with an RKey on a link, nil if there is none.
func (t *rtokens) find(slot uint8, key wire.RKey) *peerRMB {
	for _, b := range t.rmbs {
		if token, ok := b.on(slot); ok && token.RKey == key {
			return b
		}
	}
	return nil
}

// room reports whether another RMB has a place.
func (t *rtokens) room() bool { return len(t.rmbs) < llc.MaxRKeys } // rule: TestRTokens: len(t.rmbs) < llc.MaxRKeys -> true

// idle reports whether there is an RMB of which no element is in use.
func (t *rtokens) idle() bool {
	return slices.ContainsFunc(t.rmbs, func(b *peerRMB) bool { return len(b.users) == 0 })
}

// add takes an RMB, and returns nil if it did not. One that is known is told again when it is used
// again: Linux net/smc. Its address can change while nobody uses it.
func (t *rtokens) add(slot uint8, token llc.RToken) *peerRMB {
	if b := t.find(slot, token.RKey); b != nil {
		if b.tokens[slot] != token && len(b.users) > 0 { // rule: TestRTokens
			return nil
		}
		b.tokens[slot] = token
		return b
	}
	if !t.room() {
		return nil
	}
	b := new(peerRMB)
	b.set(slot, token)
	t.rmbs = append(t.rmbs, b)
	return b
}

// learn takes where RMBs are on a new link, of those that are known on the link via.
func (t *rtokens) learn(via, slot uint8, pairs []llc.RKeyPair) {
	for _, p := range pairs {
		if b := t.find(via, p.Reference); b != nil {
			b.set(slot, p.New)
		}
	}
}

// remember keeps where RMBs are on a link that is about to be forgotten.
func (t *rtokens) remember(slot uint8, peer core.LinkEnd) {
	f := formerLink{peer, make(map[*peerRMB]llc.RToken)}
	for _, b := range t.rmbs {
		if token, ok := b.on(slot); ok {
			f.rmbs[b] = token
		}
	}
	t.former = append(t.former, f)
	t.former = t.former[max(0, len(t.former)-core.MaxFormerLinks):]
}

// namedBefore returns the RMB that p names on a link that is gone, if it is known on another one.
func (t *rtokens) namedBefore(p *clc.ParamsR) *peerRMB {
	for _, f := range slices.Backward(t.former) {
		if !isEnd(f.peer, p) {
			continue
		}
		for _, b := range t.rmbs { // none that was deleted meanwhile
			if token, ok := f.rmbs[b]; ok && token.RKey == p.RKey && token.VA == p.RMBAddr {
				return b
			}
		}
	}
	return nil
}

// isEnd reports whether a message names that end of a link.
func isEnd(e core.LinkEnd, p *clc.ParamsR) bool {
	return e.QPN == p.QPN && e.GID.Addr() == p.GID.Addr()
}

// forget takes a link out of the table, and returns the users of RMBs that are on no other link, in
// order.
func (t *rtokens) forget(slot uint8) (lost []Owner) {
	t.rmbs = slices.DeleteFunc(t.rmbs, func(b *peerRMB) bool {
		b.known &^= 1 << slot
		if b.known == 0 {
			lost = append(lost, t.drop(b)...)
		}
		return b.known == 0
	})
	return lost
}

// drop ends all use of an RMB, and returns its users.
func (t *rtokens) drop(b *peerRMB) []Owner {
	users := slices.Sorted(maps.Values(b.users))
	for _, owner := range users {
		delete(t.users, owner)
	}
	return users
}

// remove forgets an RMB, and returns the users of its elements, in order. It reports whether there
// was one.
func (t *rtokens) remove(slot uint8, key wire.RKey) ([]Owner, bool) {
	b := t.find(slot, key)
	if b == nil {
		return nil, false
	}
	t.rmbs = slices.DeleteFunc(t.rmbs, func(x *peerRMB) bool { return x == b })
	return t.drop(b), true
}

// take gives the element that p names to owner. A previous one has lost it, and is returned.
func (t *rtokens) take(slot uint8, p *clc.ParamsR,
	owner Owner) (el Element, previous Owner, why clc.Diagnosis) {
	size := p.RMBESize.Bytes()
	va := elementAt(p.RMBAddr, p.RMBEIndex, size)
	// "Valid value range is 1-255" (RFC 7609 p.15). An address is any number, but memory does not go on at 0.
	if p.RMBEIndex == 0 || va+uint64(size-1) < va { // rule: TestRTokens
		return Element{}, 0, clc.DiagRToken
	}
	// The peer has told of the RMB with CONFIRM RKEY, on the link. Linux net/smc does so too, but
	// would take one from the CLC message: from the program at the other end of the TCP connection,
	// which may not be that peer.
	b := t.find(slot, p.RKey)
	if b == nil || b.tokens[slot].VA != p.RMBAddr { // rule: TestRTokens
		b = t.namedBefore(p) // rule: TestElementOfFormerLink: t.namedBefore(p) -> nil
	}
	if b == nil {
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
	t.users[owner] = elementUse{b, p.RMBEIndex, size}
	return Element{RKey: p.RKey, VA: va, Size: size}, previous, clc.DiagNone
}

// elementAt is the address of an element of an RMB.
func elementAt(rmb uint64, index uint8, size int) uint64 { return rmb + uint64(index-1)*uint64(size) }

// element returns owner's element as a writer on a link addresses it, and whether the peer has told
// where it is there.
func (t *rtokens) element(slot uint8, owner Owner) (Element, bool) {
	use, ok := t.users[owner]
	if !ok {
		return Element{}, false
	}
	token, ok := use.rmb.on(slot)
	va := elementAt(token.VA, use.index, use.size)
	if !ok || va+uint64(use.size-1) < va {
		return Element{}, false
	}
	return Element{RKey: token.RKey, VA: va, Size: use.size}, true
}

// release ends owner's use of its element.
func (t *rtokens) release(owner Owner) {
	if use, ok := t.users[owner]; ok {
		delete(use.rmb.users, use.index)
		delete(t.users, owner)
	}
}
