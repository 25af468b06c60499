package core

import (
	"slices"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// This file has between which RNICs a further link is: what a server plans, a client accepts, and what fits beside the links there are.
// RFC 7609 §2.2.1, §3.5.1.6.

// plan finds an RNIC of the server's for another link, and the client's that it would like to be used. In a first contact it is always
// something; later only what is likely to help.
func (lc *LinkControl) plan(first bool) (local RNIC, target wire.GID, ok bool) {
	symmetric, asymmetric := lc.split()
	if len(symmetric) == 0 || len(symmetric) >= lc.maxLinks || len(lc.links) >= maxSlots { // rule: TestAddLinkPlan
		return local, target, false
	}
	for _, gid := range lc.retry.gids {
		if target.IsZero() && !usesPeer(symmetric, LinkEnd{GID: gid}) { // rule: TestAddLinkPlan
			target = gid
		}
	}
	for _, r := range lc.rnics {
		if !usesLocal(symmetric, r.end()) {
			return r, target, true
		}
	}
	if asymmetric != nil || !first && target.IsZero() { // rule: TestAddLinkPlan
		return local, target, false
	}
	for _, r := range lc.rnics {
		if sameRNIC(r.end(), symmetric[0].local) {
			return r, target, true
		}
	}
	return local, target, false
}

// accept finds the client's RNIC for a link that the server offers, RFC 7609 §3.5.1.6.1. It reports false if there is none: the
// link would be parallel to another one, or a second asymmetric one, or one too many, or ends at ourselves.
func (lc *LinkControl) accept(m llc.AddLink) (RNIC, bool) {
	peer := LinkEnd{GID: m.GID, MAC: m.MAC}
	symmetric, asymmetric := lc.split()
	switch {
	case m.Link == 0 || lc.link(m.Link) != nil || len(lc.links) >= maxSlots || len(symmetric) >= lc.maxLinks: // rule: TestAddLinkAccept, TestAddLinkRefused
		return RNIC{}, false
	case lc.isOurs(m.GID): // rule: TestAddLinkRefused
		return RNIC{}, false
	}
	known := usesPeer(symmetric, peer)
	var free *RNIC
	for i := range lc.rnics {
		r := &lc.rnics[i]
		if usesLocal(symmetric, r.end()) { // rule: TestAddLinkAccept
			continue
		}
		if free == nil || r.GID.Addr() == m.TargetGID.Addr() { // rule: TestAddLinkAccept
			free = r
		}
	}
	switch {
	case !known && free != nil:
		return *free, true // symmetric
	case asymmetric != nil: // rule: TestAddLinkAccept, TestAddLinkRefused
		return RNIC{}, false
	case free != nil:
		return *free, true // asymmetric: the server has one RNIC
	case known: // rule: TestAddLinkRefused
		return RNIC{}, false
	}
	for _, r := range lc.rnics {
		if sameRNIC(r.end(), lc.main().local) {
			return r, true // asymmetric: we have one
		}
	}
	return RNIC{}, false
}

// isOurs reports whether a GID is one of ours: a link to ourselves is none.
func (lc *LinkControl) isOurs(gid wire.GID) bool {
	return slices.ContainsFunc(lc.rnics, func(r RNIC) bool { return r.GID.Addr() == gid.Addr() })
}

// fits reports whether a link may be in the group with the others.
func (lc *LinkControl) fits(link *controlLink) bool {
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
