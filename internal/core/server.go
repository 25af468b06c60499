package core

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// This file is the server's side of a [Handshake].

// A step is one thing that happens while the server looks for a choice, in the order of Linux
// net/smc: it tries a choice, or notes why a type cannot be used.
type step struct {
	choice Choice        // Mode is zero if there is nothing to try
	why    clc.Diagnosis // of a step without choice
}

// handleProposal looks for choices and tries the first.
func (h *Handshake) handleProposal(now time.Time, p clc.Proposal, out []Output) []Output {
	h.proposal = p
	if h.caps.Refuse != clc.DiagNone {
		return h.decline(now, h.caps.Refuse, out)
	}
	o, why := h.caps.usable(&p)
	h.byType = o.byType
	if why != clc.DiagNone {
		return h.decline(now, why, out)
	}
	h.steps = h.plan(&p, o)
	return h.tryNext(now, out)
}

// tryNext walks through the steps up to the next choice. At the end it declines.
func (h *Handshake) tryNext(now time.Time, out []Output) []Output {
	for len(h.steps) > 0 {
		s := h.steps[0]
		h.steps = h.steps[1:]
		if s.choice.Mode == 0 {
			h.keepFirst(s.why)
			continue
		}
		h.choice = s.choice
		if h.state != HandshakePreparing { // one timer for all choices
			out = h.setState(now, HandshakePreparing, out)
		}
		return append(out, Prepare{s.choice})
	}
	return h.decline(now, h.finalReason(), out)
}

// keepFirst keeps the first reason: it becomes the Decline's.
func (h *Handshake) keepFirst(why clc.Diagnosis) {
	if h.reason == clc.DiagNone {
		h.reason = why
	}
}

// keepReason notes why a choice failed.
func (h *Handshake) keepReason(c Choice, why clc.Diagnosis) {
	h.keepFirst(why)
	slot := &h.byType.SMCRv1
	switch {
	case c.Mode == SMCD && c.Version == clc.V2:
		slot = &h.byType.SMCDv2
	case c.Mode == SMCD:
		slot = &h.byType.SMCDv1
	case c.Version == clc.V2:
		slot = &h.byType.SMCRv2
	}
	if *slot == clc.DiagNone {
		*slot = why
	}
}

// finalReason returns the code of the Decline when no choice is left: the first reason that was
// kept. Two cases differ in Linux net/smc, and here: without SMC-R on offer and without a reason it
// is "no SMC-D device", and with SMC-R on offer a prefix that does not match outweighs the rest.
func (h *Handshake) finalReason() clc.Diagnosis {
	offersR := h.proposal.V1.HasR() || h.proposal.V2.HasR()
	otherNetwork := h.byType.SMCDv1 == clc.DiagPrefix || h.byType.SMCRv1 == clc.DiagPrefix
	switch {
	case offersR && otherNetwork:
		return clc.DiagPrefix
	case h.reason != clc.DiagNone:
		return h.reason
	case offersR:
		return clc.DiagNoDevice
	}
	return clc.DiagNoSMCDDevice
}

// An offer is what of a Proposal can be used at all.
type offer struct {
	dv2, dv1, rv2, rv1 bool
	release            clc.Release
	byType             clc.DiagnosisByType
}

// usable checks the Proposal as a whole. A reason other than DiagNone is to be declined at once.
func (c *Capabilities) usable(p *clc.Proposal) (offer, clc.Diagnosis) {
	o := offer{dv2: p.V2.HasD(), dv1: p.V1.HasD(), rv2: p.V2.HasR(), rv1: p.V1.HasR()}
	why := clc.DiagPeerNoSMC
	dropD := func(d clc.Diagnosis) {
		if o.dv2 {
			o.dv2, o.byType.SMCDv2, why = false, d, d
		}
	}
	dropR := func(d clc.Diagnosis) {
		if o.rv2 {
			o.rv2, o.byType.SMCRv2, why = false, d, d
		}
	}
	if len(c.ISM) == 0 {
		dropD(clc.DiagNoISMv2)
	}
	if x := p.Ext; x == nil {
		dropD(clc.DiagNoV2Extension)
		dropR(clc.DiagNoV2Extension)
	} else {
		o.release = min(x.Release, c.Release)
		// Without the extension a client may still offer the ISM device of its network
		// (SMCv2 p.57, note 3). Linux net/smc does not take that.
		if x.D == nil && p.ISMCHID == 0 {
			dropD(clc.DiagNoDv2Extension)
		}
		if len(x.UEIDs) == 0 {
			dropR(clc.DiagNoUEID)
			if x.D == nil || !x.D.HasSEID {
				dropD(clc.DiagNoUEID)
			}
		}
	}
	switch {
	case !o.dv2 && !o.dv1 && !o.rv2 && !o.rv1:
		return o, why
	case o.rv2 && p.Ext.Release >= clc.Release1 && p.Ext.MaxConns < maxConnsFloor:
		return o, clc.DiagMaxConns
	case o.rv2 && p.Ext.Release >= clc.Release1 && p.Ext.MaxLinks < maxLinksFloor:
		return o, clc.DiagMaxLinks
	}
	return o, clc.DiagNone
}

// plan returns the steps in the order of Linux net/smc: SMC-Dv2, the prefix of version 1, SMC-Dv1,
// SMC-Rv2, SMC-Rv1.
func (h *Handshake) plan(p *clc.Proposal, o offer) []step {
	var steps []step
	note := func(why clc.Diagnosis) { steps = append(steps, step{why: why}) }
	if o.dv2 {
		steps = append(steps, h.planDv2(p, o.release)...)
	}
	sameNetwork := true
	if o.dv1 || o.rv1 {
		if sameNetwork = h.caps.matchNetwork(p.IP); !sameNetwork {
			note(clc.DiagPrefix)
		}
	}
	switch remote := (clc.ISMDevice{GID: wire.ISMGID{Hi: p.ISMGID}}); {
	case !o.dv1:
	case !sameNetwork:
		h.byType.SMCDv1 = clc.DiagPrefix
	case h.caps.ISMv1 == nil || !h.reachable[remote.GID]:
		h.byType.SMCDv1 = clc.DiagNoSMCDDevice
		note(clc.DiagNoSMCDDevice)
	default:
		steps = append(steps, step{choice: Choice{
			Mode: SMCD, Version: clc.V1, Local: *h.caps.ISMv1,
			Remote: clc.ISMDevice{GID: remote.GID, CHID: h.caps.ISMv1.CHID},
		}})
	}
	if o.rv2 {
		eid, ok := h.caps.matchUEID(p.Ext.UEIDs)
		switch {
		case !ok: // Linux net/smc keeps no reason either
			h.byType.SMCRv2 = clc.DiagNoUEID
		case h.caps.RoCEv2 == nil:
			h.byType.SMCRv2 = clc.DiagNoSMCRDevice
			note(clc.DiagNoSMCRDevice)
		default:
			steps = append(steps, step{choice: Choice{
				Mode: SMCR, Version: clc.V2, Release: o.release, EID: eid,
				PeerID: p.PeerID, GID: p.Ext.GID, MAC: p.MAC,
			}})
		}
	}
	switch {
	case !sameNetwork:
		if o.rv1 {
			h.byType.SMCRv1 = clc.DiagPrefix
		}
	case o.rv1 && h.caps.RoCEv1 != nil:
		steps = append(steps, step{choice: Choice{
			Mode: SMCR, Version: clc.V1, PeerID: p.PeerID, GID: p.GID, MAC: p.MAC,
		}})
	case o.rv1:
		h.byType.SMCRv1 = clc.DiagNoDevice
		note(clc.DiagNoDevice)
	}
	return steps
}

// planDv2 returns the choices for SMC-Dv2: the device of the client's network first, then the others
// in the client's order. A device whose GID is out of reach, such as that of a kernel on the same
// machine, is passed over.
func (h *Handshake) planDv2(p *clc.Proposal, release clc.Release) []step {
	var remotes []clc.ISMDevice
	if p.ISMCHID != 0 && p.ISMGID != 0 {
		remotes = append(remotes, clc.ISMDevice{GID: wire.ISMGID{Hi: p.ISMGID}, CHID: p.ISMCHID})
	}
	if p.Ext.D != nil {
		remotes = append(remotes, p.Ext.D.Devices...)
	}
	eid, eidOK := h.caps.matchEID(p.Ext)
	var steps []step
	for _, remote := range remotes {
		local, ok := h.caps.device(remote.CHID)
		if !ok || !h.reachable[remote.GID] {
			continue
		}
		steps = append(steps, step{choice: Choice{
			Mode: SMCD, Version: clc.V2, Release: release, EID: eid, Local: local, Remote: remote,
		}})
	}
	switch {
	case steps == nil:
		h.byType.SMCDv2 = clc.DiagNoSMCDv2Device
		return []step{{why: clc.DiagNoSMCDv2Device}}
	case !eidOK: // Linux net/smc keeps no reason here
		h.byType.SMCDv2 = clc.DiagNoUEID
		return nil
	}
	return steps
}

// sendAccept announces our buffer and with it the choice.
func (h *Handshake) sendAccept(now time.Time, r Resources, out []Output) []Output {
	a := clc.Accept{Version: h.choice.Version, FirstContact: r.FirstContact, EID: h.choice.EID}
	a.R, a.D = h.ownParams(r)
	if r.FirstContact && h.choice.Version == clc.V2 {
		a.FCE = h.caps.fce(h.choice.Release)
		a.FCE.Direct = r.Direct && h.choice.Mode == SMCR
		if h.choice.Release >= clc.Release1 {
			a.FCE.Features = h.caps.Features
			if h.sameVendor() {
				a.FCE.VendorOptions = h.caps.VendorOptions
			}
			if h.choice.Mode == SMCR {
				a.FCE.MaxConns = min(h.caps.MaxConns, h.proposal.Ext.MaxConns)
				a.FCE.MaxLinks = min(h.caps.MaxLinks, h.proposal.Ext.MaxLinks)
			}
		}
	}
	if a.Validate() != nil {
		return h.PrepareFailed(now, clc.DiagInternal, out)
	}
	h.accept = a
	out = append(out, SendCLC{a})
	return h.setState(now, HandshakeAwaitConfirm, out)
}

// sameVendor reports whether the client offered options of our vendor.
func (h *Handshake) sameVendor() bool {
	return h.caps.VendorOUI != ([3]byte{}) && h.proposal.VendorOUI == h.caps.VendorOUI
}

// handleConfirm takes the client's buffer, and checks that it belongs to what was accepted.
func (h *Handshake) handleConfirm(now time.Time, c clc.Confirm, out []Output) []Output {
	if err := h.checkConfirm(&c); err != nil {
		return h.protocolError(now, "CLC Confirm", err, out)
	}
	if why := h.checkConfirmValues(&c); why != clc.DiagNone {
		if !h.mayDeclineLate() {
			return h.protocolError(now, "CLC Confirm", fmt.Errorf("%w: %v", errNotAsAccepted, why), out)
		}
		return h.decline(now, why, out)
	}
	result := h.newResult(c.D, c.R)
	if c.FCE != nil && h.accept.FCE != nil {
		result.learnFCE(c.FCE)
		ours := h.accept.FCE
		if ours.Release >= clc.Release1 {
			result.Features = c.FCE.Features & h.caps.Features & h.proposal.Ext.Features
			if h.sameVendor() {
				result.VendorOffer, result.VendorOptions = h.proposal.VendorOptions, ours.VendorOptions
			}
		}
		result.Direct = ours.Direct
		result.PeerGIDs = slices.Clone(c.ClientGIDs)
	}
	h.result = result
	if h.mayDeclineLate() {
		return append(h.setState(now, HandshakeLinkTurn, out), StartLink{result})
	}
	return h.end(now, HandshakeEstablished, Established{result}, out)
}

// checkConfirm compares the parts of the Confirm that the client had to repeat.
func (h *Handshake) checkConfirm(c *clc.Confirm) error {
	a := &h.accept
	switch {
	case c.Version != a.Version:
		return fmt.Errorf("%w: version %d", errNotAsAccepted, c.Version)
	case (c.R == nil) != (a.R == nil), (c.D == nil) != (a.D == nil):
		return fmt.Errorf("%w: another SMC type", errNotAsAccepted)
	case c.Version == clc.V2 && c.EID != a.EID:
		return fmt.Errorf("%w: EID %q", errNotAsAccepted, c.EID)
	case c.Version == clc.V2 && c.FirstContact != a.FirstContact,
		c.Version == clc.V2 && c.FirstContact != (c.FCE != nil):
		return fmt.Errorf("%w: first contact", errNotAsAccepted)
	case c.D != nil && c.Version == clc.V2 && c.D.CHID != a.D.CHID:
		return fmt.Errorf("%w: CHID %v", errNotAsAccepted, c.D.CHID)
	case c.D != nil && c.D.GID != h.choice.Remote.GID:
		return errForeignGID
	case c.R != nil && h.proposal.PeerID != zeroPeer && c.R.PeerID != h.proposal.PeerID:
		return errForeignPeer
	case c.R != nil && (c.R.GID.IsZero() || c.R.QPN == 0):
		return fmt.Errorf("no GID or no queue pair")
	}
	return nil
}

// checkConfirmValues compares the negotiated values, for which there are reasons to decline: "if
// the client sends incorrect or other values ... this is considered a protocol violation which
// requires the server to send a late DECLINE" (SMCv2, v2.1 feature negotiation, item 5).
func (h *Handshake) checkConfirmValues(c *clc.Confirm) clc.Diagnosis {
	ours, theirs := h.accept.FCE, c.FCE
	switch {
	case c.R != nil && h.accept.FirstContact && !c.R.MTU.Valid():
		return clc.DiagVersion // a reserved value: RFC 7609 C.6
	case ours == nil || theirs == nil:
		return clc.DiagNone
	case theirs.Release != ours.Release:
		return clc.DiagRelease
	case ours.Release == clc.Release0 || c.R == nil:
		return clc.DiagNone
	case theirs.MaxConns != ours.MaxConns:
		return clc.DiagMaxConns
	case theirs.MaxLinks != ours.MaxLinks:
		return clc.DiagMaxLinks
	}
	return clc.DiagNone
}

var (
	errNotAsAccepted = errors.New("differs from the Accept")
	errForeignGID    = errors.New("GID differs from the one in the Proposal")
	errForeignPeer   = errors.New("peer ID differs from the one in the Proposal")
)

// zeroPeer is what a host without an RNIC sends.
var zeroPeer wire.PeerID
