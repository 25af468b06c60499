package llcflow

import (
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// This file selects the RNICs of a further link: the pair that a server plans, the RNIC that a
// client accepts, and the pairs that fit beside the links there are. RFC 7609 §2.2.1, §3.5.1.6.
//
// A pair which has failed has to wait until it is its turn again. This rule is ours: the next
// attempt may be with an RNIC that is idle. The time of the next attempt is in retry.go.

// SetRoutes tells routes. Of pairs that are told of again the newest counts; those that are not
// told of are taken to have one.
func (lc *LinkControl) SetRoutes(routes []core.PairRoute) { lc.routes.set(routes) }

// unused returns RNICs of ours that none of the links uses, in the order in which it is their turn.
func (lc *LinkControl) unused(now time.Time, links []*controlLink) []core.RNIC {
	list := slices.DeleteFunc(slices.Clone(lc.rnics), func(r core.RNIC) bool {
		return usesLocal(links, endOf(r))
	})
	slices.SortStableFunc(list, func(a, b core.RNIC) int {
		// rule: TestAddLinkRequestAll: lc.failed.turn(now, endOf(a), core.LinkEnd{}).compare(lc.failed.turn(now, endOf(b), core.LinkEnd{})) -> 0
		return lc.failed.turn(now, endOf(a), core.LinkEnd{}).compare(lc.failed.turn(now, endOf(b), core.LinkEnd{}))
	})
	return list
}

// plan finds an RNIC of the server's for another link, and the client's that it would like to be
// used. In a first contact it always finds a pair; later only a pair that is likely to help. Of
// several pairs it takes the next in turn.
func (lc *LinkControl) plan(now time.Time, first bool) (local core.RNIC, target wire.GID, ok bool) {
	symmetric, asymmetric := lc.split()
	if len(symmetric) == 0 || len(symmetric) >= lc.maxLinks || len(lc.links) >= maxSlots { // rule: TestAddLinkPlan
		return local, target, false
	}
	var targets []wire.GID
	for _, gid := range lc.retry.gids {
		if !usesPeer(symmetric, core.LinkEnd{GID: gid}) { // rule: TestAddLinkPlan
			targets = append(targets, gid)
		}
	}
	locals := lc.unused(now, symmetric)
	alone := len(locals) == 0 // there is nothing but the RNIC of the first link
	if alone {
		locals = slices.DeleteFunc(slices.Clone(lc.rnics), func(r core.RNIC) bool {
			return !sameRNIC(endOf(r), symmetric[0].local)
		})
	}
	targets = slices.DeleteFunc(targets, func(gid wire.GID) bool {
		return !slices.ContainsFunc(locals, func(r core.RNIC) bool {
			return !lc.routes.unreachable(r.GID, gid)
		})
	})
	if len(targets) == 0 {
		targets = []wire.GID{{}}
	}
	if alone && (asymmetric != nil || !first && targets[0].IsZero()) { // rule: TestAddLinkPlan
		return local, target, false
	}
	var best pairTurn
	for _, r := range locals {
		for _, gid := range targets {
			if lc.routes.unreachable(r.GID, gid) {
				continue
			}
			if t := lc.failed.turn(now, endOf(r), core.LinkEnd{GID: gid}); !ok || t.compare(best) < 0 { // rule: TestAddLinkRotate: t.compare(best) < 0 -> t == best && false
				local, target, ok, best = r, gid, true, t
			}
		}
	}
	return local, target, ok
}

// accept finds the client's RNIC for a link that the server offers, RFC 7609 §3.5.1.6.1. It reports
// false if there is none: the link would be parallel to another one, or a second asymmetric one, or
// one too many, or ends at ourselves.
func (lc *LinkControl) accept(now time.Time, m llc.AddLink) (core.RNIC, bool) {
	peer := core.LinkEnd{GID: m.GID, MAC: m.MAC}
	symmetric, asymmetric := lc.split()
	switch {
	case m.Link == 0 || lc.link(m.Link) != nil || len(lc.links) >= maxSlots || len(symmetric) >= lc.maxLinks: // rule: TestAddLinkAccept, TestAddLinkRefused
		return core.RNIC{}, false
	case lc.isOurs(m.GID): // rule: TestAddLinkRefused
		return core.RNIC{}, false
	}
	known := usesPeer(symmetric, peer)
	unused := slices.DeleteFunc(lc.unused(now, symmetric), func(r core.RNIC) bool {
		return lc.routes.unreachable(r.GID, m.GID)
	})
	free := lc.choose(now, unused, peer, m.TargetGID)
	switch {
	case !known && free != nil:
		return *free, true // symmetric
	case asymmetric != nil: // rule: TestAddLinkAccept, TestAddLinkRefused
		return core.RNIC{}, false
	case free != nil:
		return *free, true // asymmetric: the server has one RNIC
	case known: // rule: TestAddLinkRefused
		return core.RNIC{}, false
	}
	for _, r := range lc.rnics {
		if sameRNIC(endOf(r), lc.main().local) && !lc.routes.unreachable(r.GID, m.GID) { // rule: TestAddLinkRoutes: !lc.routes.unreachable(r.GID, m.GID) -> true
			return r, true // asymmetric: we have one
		}
	}
	return core.RNIC{}, false
}

// choose returns a client's RNIC for a link to the server's, nil if there is none. It takes the
// RNIC that the server would like, unless that has failed before, else the next in turn.
func (lc *LinkControl) choose(now time.Time, list []core.RNIC, peer core.LinkEnd, target wire.GID) (best *core.RNIC) {
	var first pairTurn
	for i := range list {
		r := &list[i]
		t := lc.failed.turn(now, endOf(*r), peer)
		if r.GID.Addr() == target.Addr() && t.both.IsZero() { // rule: TestAddLinkAccept
			return r
		}
		if best == nil || t.compare(first) < 0 { // rule: TestAddLinkAcceptRotate: t.compare(first) < 0 -> t == first && false
			best, first = r, t
		}
	}
	return best
}

// isOurs reports whether a GID is one of ours: a link to ourselves is none.
func (lc *LinkControl) isOurs(gid wire.GID) bool {
	return slices.ContainsFunc(lc.rnics, func(r core.RNIC) bool { return r.GID.Addr() == gid.Addr() })
}

// fits reports whether a link may be in the group with the others.
func (lc *LinkControl) fits(link *controlLink) bool {
	if lc.routes.unreachable(link.local.GID, link.peer.GID) {
		return false
	}
	if lc.isOurs(link.peer.GID) { // rule: TestAddLinkFits, TestAddLinkParallel
		return false
	}
	symmetric, asymmetric := lc.split()
	for _, l := range lc.links {
		if l.state == linkActive && sameRNIC(l.local, link.local) && sameRNIC(l.peer, link.peer) { // rule: TestAddLinkFits, TestAddLinkParallel
			return false
		}
	}
	// rule: TestAddLinkFits, TestAddLinkSecondAsymmetric: asymmetric == nil || -> asymmetric == nil || true ||
	return asymmetric == nil || !usesLocal(symmetric, link.local) && !usesPeer(symmetric, link.peer)
}
