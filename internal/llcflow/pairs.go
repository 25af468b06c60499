package llcflow

import (
	"cmp"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
)

// A failedPair is two RNICs between which a link did not come up, or was lost. Each may be good,
// and the path between them not, which nobody is told; so another attempt is between others, if
// there are.
type failedPair struct {
	local, peer core.LinkEnd // peer is zero where it was not known yet: with any
	at          time.Time
}

// failedPairs are the last ones, at most maxFailedPairs, oldest first.
type failedPairs []failedPair

// note remembers that a link has failed between its RNICs, for FailedPairMemory.
func (p *failedPairs) note(now time.Time, link *controlLink) {
	list := slices.DeleteFunc(*p, func(f failedPair) bool {
		return now.Sub(f.at) >= FailedPairMemory || sameRNIC(f.local, link.local) && sameRNIC(f.peer, link.peer) // rule: TestFailedPairs: now.Sub(f.at) >= FailedPairMemory || -> false ||
	})
	list = append(list, failedPair{link.local, link.peer, now})
	list = list[max(0, len(list)-maxFailedPairs):] // rule: TestFailedPairs
	*p = list
}

// forget forgets the failed pairs of an RNIC of ours, which has come back.
func (p *failedPairs) forget(r core.RNIC) {
	*p = slices.DeleteFunc(*p, func(f failedPair) bool { return sameRNIC(f.local, endOf(r)) }) // rule: TestFailedPairs
}

// A pairTurn orders pairs of RNICs for the next attempt: first those that have not failed, or
// longest ago; of those, such as have no RNIC that has failed with another one.
type pairTurn struct{ both, either time.Time }

// turn returns the turn of a pair. Without a peer it is for any.
func (p failedPairs) turn(now time.Time, local, peer core.LinkEnd) (t pairTurn) {
	for _, f := range p {
		if now.Sub(f.at) >= FailedPairMemory { // rule: TestFailedPairs
			continue
		}
		ours := sameRNIC(f.local, local)
		theirs := !peer.GID.IsZero() && sameRNIC(f.peer, peer)
		if ours && (theirs || peer.GID.IsZero() || f.peer.GID.IsZero()) {
			t.both = f.at
		}
		if ours || theirs {
			t.either = f.at // rule: TestAddLinkRotate
		}
	}
	return t
}

func (t pairTurn) compare(u pairTurn) int {
	return cmp.Or(t.both.Compare(u.both), t.either.Compare(u.either))
}

// pairRoutes are the routes that were told of last, at most maxFailedPairs, oldest first.
type pairRoutes []core.PairRoute

// set takes routes. Of pairs that are told of again the newest counts.
func (p *pairRoutes) set(routes []core.PairRoute) {
	list := append(slices.DeleteFunc(*p, func(r core.PairRoute) bool {
		return slices.ContainsFunc(routes, func(n core.PairRoute) bool {
			return r.Local == n.Local && r.Peer == n.Peer
		})
	}), routes...)
	*p = list[max(0, len(list)-maxFailedPairs):]
}

// of returns the route of a pair, and whether it is known.
func (p pairRoutes) of(local, peer wire.GID) (core.PairRoute, bool) {
	for _, r := range p {
		if r.Local.Addr() == local.Addr() && r.Peer.Addr() == peer.Addr() {
			return r, true
		}
	}
	return core.PairRoute{}, false
}

// unreachable reports whether there is no route between two RNICs. A link between them would cost
// the time of CONFIRM LINK.
func (p pairRoutes) unreachable(local, peer wire.GID) bool {
	r, ok := p.of(local, peer)
	return ok && r.None // rule: TestAddLinkRoutes: ok && r.None -> ok && r.None && false
}
