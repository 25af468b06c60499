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
	choice Choice        // if why is set, no more than a type
	why    clc.Diagnosis // why the type cannot be used; DiagNone: try the choice
}

// SetRNIC tells a server which of its RNICs reach those that the client's Proposal names, in place of
// Capabilities.RoCEv1 and RoCEv2, and why there is none where one is nil (DiagNone: no particular
// reason). Call it before the Proposal is passed to HandleMessage: the RNIC depends on where the
// client's is.
func (h *Handshake) SetRNIC(v1, v2 *RNIC, why clc.Diagnosis) {
	caps := h.caps
	caps.RoCEv1, caps.RoCEv2 = v1, v2
	h.caps, h.noRNIC = caps.normalized(), why
}

// handleProposal looks for choices and tries the first.
func (h *Handshake) handleProposal(now time.Time, p clc.Proposal, out []HandshakeOutput) []HandshakeOutput {
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

// tryNext walks through the steps up to the next choice. At the end it declines: "the Sender
// Diagnosis Information field ... should represent the last Reason Code set that was evaluated"
// (SMCv2 p.79, note 3b). Linux net/smc sends the first.
func (h *Handshake) tryNext(now time.Time, out []HandshakeOutput) []HandshakeOutput {
	for len(h.steps) > 0 {
		s := h.steps[0]
		h.steps = h.steps[1:]
		if s.why != clc.DiagNone {
			h.note(s.choice, s.why)
			continue
		}
		h.choice = s.choice
		// rule: TestPrepareTimer: h.state != HandshakePreparing -> true
		if h.state != HandshakePreparing { // one timer for all choices
			out = h.setState(now, HandshakePreparing, out)
		}
		return append(out, Prepare{s.choice})
	}
	return h.decline(now, h.reason, out)
}

// note keeps why a choice, or a type, is not used.
func (h *Handshake) note(c Choice, why clc.Diagnosis) {
	h.reason = why
	switch {
	case c.Mode == SMCD && c.Version == clc.V2:
		h.byType.SMCDv2 = why
	case c.Mode == SMCD:
		h.byType.SMCDv1 = why
	case c.Version == clc.V2:
		h.byType.SMCRv2 = why
	default:
		h.byType.SMCRv1 = why
	}
}

// fillByType gives the types that the client offered and that have no reason yet the one of the
// Decline: "fields should be set for all applicable SMC types (all SMC types offered by the
// client)" (SMCv2 p.79, note 3a).
func (h *Handshake) fillByType(why clc.Diagnosis) {
	fill := func(offered bool, slot *clc.Diagnosis) {
		if offered && *slot == clc.DiagNone {
			*slot = why
		}
	}
	fill(h.proposal.V2.HasD(), &h.byType.SMCDv2)
	fill(h.proposal.V1.HasD(), &h.byType.SMCDv1) // rule: TestServerOrder
	fill(h.proposal.V2.HasR(), &h.byType.SMCRv2)
	fill(h.proposal.V1.HasR(), &h.byType.SMCRv1) // rule: TestServerOrder
}

// wireByType returns the reasons as a Decline carries them.
func wireByType(d clc.DiagnosisByType) clc.DiagnosisByType {
	return clc.DiagnosisByType{
		SMCDv2: d.SMCDv2.WireCode(), SMCDv1: d.SMCDv1.WireCode(),
		SMCRv2: d.SMCRv2.WireCode(), SMCRv1: d.SMCRv1.WireCode(),
	}
}

// An offer lists the types of a Proposal that can be used at all.
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
	if x := p.Ext; x == nil {
		dropD(clc.DiagNoV2Extension)
		dropR(clc.DiagNoV2Extension)
	} else {
		o.release = min(x.Release, c.Release)
		// Without the extension a client may still offer the ISM device of its network
		// (SMCv2 p.57, note 3). Linux net/smc does not take that.
		if x.D == nil && p.ISMCHID == 0 { // rule: TestProposalChecks
			dropD(clc.DiagNoDv2Extension)
		}
		if len(x.UEIDs) == 0 {
			dropR(clc.DiagNoUEID) // rule: TestProposalChecks
			if x.D == nil || !x.D.HasSEID {
				dropD(clc.DiagNoUEID) // rule: TestDeclineNoUEID
			}
		}
	}
	if len(c.ISM) == 0 {
		dropD(clc.DiagNoISMv2) // rule: TestServerOrder
	}
	// The limits are a matter of release 1: a host that is below "can tolerate (interoperate with
	// or ignore) all protocol updates" (SMCv2 p.41, 4a).
	limits := o.rv2 && o.release >= clc.Release1 // rule: TestTolerationServer: o.release -> p.Ext.Release
	switch {
	case !o.dv2 && !o.dv1 && !o.rv2 && !o.rv1:
		return o, why
	case limits && p.Ext.MaxConns < maxConnsFloor: // rule: TestProposalChecks
		return o, clc.DiagMaxConns
	case limits && p.Ext.MaxLinks < maxLinksFloor: // rule: TestProposalChecks
		return o, clc.DiagMaxLinks
	}
	return o, clc.DiagNone
}

// plan returns the steps in the order of Linux net/smc: SMC-Dv2, SMC-Dv1, SMC-Rv2, SMC-Rv1.
func (h *Handshake) plan(p *clc.Proposal, o offer) []step {
	var steps []step
	try := func(c Choice) { steps = append(steps, step{choice: c}) }
	unusable := func(m Mode, v clc.Version, why clc.Diagnosis) {
		steps = append(steps, step{Choice{Mode: m, Version: v}, why})
	}
	if o.dv2 {
		steps = append(steps, h.planDv2(p, o.release)...)
	}
	sameNetwork := (o.dv1 || o.rv1) && h.caps.matchNetwork(p.IP) // rule: TestServerOrder: h.caps.matchNetwork(p.IP) -> true
	if o.dv1 {
		switch remote := (clc.ISMDevice{GID: wire.ISMGID{Hi: p.ISMGID}}); {
		case !sameNetwork:
			unusable(SMCD, clc.V1, clc.DiagPrefix)
		case h.caps.ISMv1 == nil || !slices.Contains(h.reachable, remote.GID): // rule: TestServerOrder: !slices.Contains(h.reachable, remote.GID) -> false
			unusable(SMCD, clc.V1, clc.DiagNoSMCDDevice)
		default:
			try(Choice{
				Mode: SMCD, Version: clc.V1, Local: *h.caps.ISMv1,
				Remote: clc.ISMDevice{GID: remote.GID, CHID: h.caps.ISMv1.CHID},
			})
		}
	}
	rv2, rv1 := h.planRv2(p, o), h.planRv1(p, o, sameNetwork)
	if rv2.why == clc.DiagNoUEID && rv1.why != clc.DiagNone { // rule: TestDeclineNoUEID
		rv2, rv1 = rv1, rv2 // the last reason is the one that the client is told first
	}
	for _, s := range []step{rv2, rv1} {
		if s.choice.Mode == SMCR {
			steps = append(steps, s)
		}
	}
	return steps
}

// planRv2 returns the step for SMC-Rv2, and the zero step if that was not offered.
func (h *Handshake) planRv2(p *clc.Proposal, o offer) step {
	unusable := func(why clc.Diagnosis) step { return step{Choice{Mode: SMCR, Version: clc.V2}, why} }
	if !o.rv2 {
		if p.V2.HasR() {
			return unusable(o.byType.SMCRv2) // see usable
		}
		return step{}
	}
	eid, ok := h.caps.matchUEID(p.Ext.UEIDs) // rule: TestSEIDNotForSMCR: h.caps.matchUEID(p.Ext.UEIDs) -> h.caps.matchEID(p.Ext)
	switch {
	case !ok:
		return unusable(clc.DiagNoUEID)
	case h.caps.RoCEv2 == nil && h.noRNIC != clc.DiagNone: // rule: TestSetRNIC
		return unusable(h.noRNIC)
	// rule: TestProposalChecks: !h.caps.rightFamily(p.Ext.GID) -> false
	case h.caps.RoCEv2 == nil || p.Ext.GID.IsZero() || !h.caps.rightFamily(p.Ext.GID):
		return unusable(clc.DiagNoSMCRDevice)
	}
	return step{choice: Choice{
		Mode: SMCR, Version: clc.V2, Release: o.release, EID: eid,
		PeerID: p.PeerID, GID: p.Ext.GID, MAC: p.MAC,
	}}
}

// planRv1 returns the step for SMC-Rv1, and the zero step if that was not offered.
func (h *Handshake) planRv1(p *clc.Proposal, o offer, sameNetwork bool) step {
	unusable := func(why clc.Diagnosis) step { return step{Choice{Mode: SMCR, Version: clc.V1}, why} }
	switch {
	case !o.rv1:
		return step{}
	case len(h.caps.Networks) == 0 && (p.Ext == nil || len(p.Ext.UEIDs) == 0): // rule: TestDeclineNoUEID
		return unusable(clc.DiagNoUEID) // version 1 is off here, and for version 2 the client lacks one
	case len(h.caps.Networks) == 0: // rule: TestDeclineNoUEID
		return unusable(clc.DiagNoDevice)
	case !sameNetwork:
		return unusable(clc.DiagPrefix)
	case h.caps.RoCEv1 == nil && h.noRNIC != clc.DiagNone: // rule: TestSetRNIC
		return unusable(h.noRNIC)
	case h.caps.RoCEv1 == nil:
		return unusable(clc.DiagNoDevice)
	}
	return step{choice: Choice{Mode: SMCR, Version: clc.V1, PeerID: p.PeerID, GID: p.GID, MAC: p.MAC}}
}

// planDv2 returns the choices for SMC-Dv2: the device of the client's network first, then the
// others in the client's order. A device with a GID out of reach, such as a kernel's on the same
// machine, is passed over. So is an Emulated-ISM device of a client that has not set the bit of
// that feature, or in release 0: "SMCv2.1 hosts that support Emulated-ISM devices must set the
// corresponding v2.1 feature bit" (SMCv2 "Emulated-ISM", item 13d).
func (h *Handshake) planDv2(p *clc.Proposal, release clc.Release) []step {
	var remotes []clc.ISMDevice
	if p.ISMCHID != 0 && p.ISMGID != 0 {
		remotes = append(remotes, clc.ISMDevice{GID: wire.ISMGID{Hi: p.ISMGID}, CHID: p.ISMCHID}) // rule: TestAssociatedDeviceFirst
	}
	if p.Ext.D != nil {
		remotes = append(remotes, p.Ext.D.Devices...)
	}
	emulated := release >= clc.Release1 && p.Ext.Features&clc.FeatureEmulatedISM != 0
	eid, eidOK := h.caps.matchEID(p.Ext)
	var steps []step
	for _, remote := range remotes {
		local, ok := h.caps.device(remote.CHID)
		// rule: TestKernelDeviceSkipped, TestProposalChecks
		if !ok || !slices.Contains(h.reachable, remote.GID) || remote.CHID.IsEmulated() && !emulated {
			continue
		}
		steps = append(steps, step{choice: Choice{
			Mode: SMCD, Version: clc.V2, Release: release, EID: eid, Local: local, Remote: remote,
		}})
	}
	switch {
	case steps == nil:
		return []step{{Choice{Mode: SMCD, Version: clc.V2}, clc.DiagNoSMCDv2Device}}
	case !eidOK:
		return []step{{Choice{Mode: SMCD, Version: clc.V2}, clc.DiagNoUEID}}
	}
	return steps
}

// sendAccept announces our buffer and with it the choice.
func (h *Handshake) sendAccept(now time.Time, r Resources, out []HandshakeOutput) []HandshakeOutput {
	a := clc.Accept{Version: h.choice.Version, FirstContact: r.FirstContact, EID: h.choice.EID}
	a.R, a.D = h.ownParams(r)
	if r.FirstContact && h.choice.Version == clc.V2 {
		a.FCE = h.caps.fce(h.choice.Release)
		a.FCE.Direct = r.Direct && h.choice.Mode == SMCR
		if h.choice.Release >= clc.Release1 {
			a.FCE.Features = h.caps.Features
			if h.sameVendor() {
				a.FCE.VendorOptions = h.caps.VendorOptions // rule: TestHandshakeVendor
			}
			if h.choice.Mode == SMCR {
				// rule: TestMaximaOfBoth: min(h.caps.MaxConns, h.proposal.Ext.MaxConns) -> h.caps.MaxConns
				a.FCE.MaxConns = min(h.caps.MaxConns, h.proposal.Ext.MaxConns)
				// rule: TestMaximaOfBoth: min(h.caps.MaxLinks, h.proposal.Ext.MaxLinks) -> h.caps.MaxLinks
				a.FCE.MaxLinks = min(h.caps.MaxLinks, h.proposal.Ext.MaxLinks)
			}
		}
	}
	if a.R != nil && a.Version == clc.V2 { // SMCv2 p.66
		a.ReasonKept = h.byType.SMCDv2 != clc.DiagNone || h.byType.SMCDv1 != clc.DiagNone // rule: TestReasonKept
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

// handleConfirm takes the client's buffer, and checks that it matches the Accept.
func (h *Handshake) handleConfirm(now time.Time, c clc.Confirm, out []HandshakeOutput) []HandshakeOutput {
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
			result.Features = c.FCE.Features // which is no more than both have
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
	case c.Version != a.Version: // rule: TestServerChecksConfirm
		return fmt.Errorf("%w: version %d", errNotAsAccepted, c.Version)
	case (c.R == nil) != (a.R == nil), (c.D == nil) != (a.D == nil):
		return fmt.Errorf("%w: another SMC type", errNotAsAccepted)
	case c.Version == clc.V2 && c.EID != a.EID: // rule: TestServerChecksConfirm
		return fmt.Errorf("%w: EID %q", errNotAsAccepted, c.EID)
	case c.Version == clc.V2 && c.FirstContact != a.FirstContact,
		c.Version == clc.V2 && c.FirstContact != (c.FCE != nil):
		return fmt.Errorf("%w: first contact", errNotAsAccepted)
	case c.D != nil && c.Version == clc.V2 && c.D.CHID != a.D.CHID: // rule: TestServerChecksConfirm
		return fmt.Errorf("%w: CHID %v", errNotAsAccepted, c.D.CHID)
	case c.D != nil && c.D.GID != h.choice.Remote.GID: // rule: TestServerChecksConfirm
		return errForeignGID
	case c.R != nil && h.proposal.PeerID != zeroPeer && c.R.PeerID != h.proposal.PeerID: // rule: TestServerChecksConfirm
		return errForeignPeer
	case c.R != nil:
		return h.checkParamsR(c.Version, c.R)
	}
	return nil
}

// checkConfirmValues compares the negotiated values, for which there are reasons to decline: "if
// the client sends incorrect or other values ... this is considered a protocol violation which
// requires the server to send a late DECLINE" (SMCv2, v2.1 feature negotiation, item 5).
func (h *Handshake) checkConfirmValues(c *clc.Confirm) clc.Diagnosis {
	ours, theirs := h.accept.FCE, c.FCE
	switch {
	case c.R != nil && h.accept.FirstContact && !c.R.MTU.Valid(): // rule: TestServerChecksConfirm
		return clc.DiagVersion // a reserved value: RFC 7609 C.6
	case ours == nil || theirs == nil:
		return clc.DiagNone
	case theirs.Release != ours.Release: // rule: TestServerChecksConfirm
		return clc.DiagRelease
	case c.R != nil && ours.Direct && !h.sameMAC(c.R.MAC): // rule: TestServerChecksConfirm
		return clc.DiagVersion // "must match the MAC from the original Proposal" (SMCv2 p.74, note 1a)
	case len(c.ClientGIDs) > 0 && c.ClientGIDs[0].Addr() != c.R.GID.Addr(): // rule: TestServerChecksConfirm
		return clc.DiagVersion // the first is "of the current active link" (SMCv2 p.77, note 6a)
	case ours.Release == clc.Release0:
		return clc.DiagNone
	}
	return h.checkConfirmFeatures(c)
}

// sameMAC reports whether the MAC of an SMC-Rv2 Confirm is the one in the Proposal. The Proposal
// has none where Linux net/smc sends it, and has the MAC of another RNIC where SMC-Rv1 is offered
// too.
func (h *Handshake) sameMAC(m wire.MAC) bool {
	return m == h.proposal.MAC || h.proposal.MAC == wire.MAC{} || h.proposal.V1.HasR()
}

// checkConfirmFeatures compares the features and limits that release 1 has negotiated: "base
// features must match CLC Accept and supplemental features must be common among server and client"
// (as above, item 5c).
func (h *Handshake) checkConfirmFeatures(c *clc.Confirm) clc.Diagnosis {
	ours, theirs := h.accept.FCE, c.FCE
	common := ours.Features & h.proposal.Ext.Features
	switch {
	case theirs.Features&^common != 0: // rule: TestServerChecksConfirm
		return clc.DiagRelease
	case c.D != nil && c.D.CHID.IsEmulated() && theirs.Features&clc.FeatureEmulatedISM == 0: // rule: TestServerChecksConfirm
		// it "can only be exploited when both ... indicate mutual support" (SMCv2 p.44)
		return clc.DiagRelease
	case theirs.VendorOptions != ours.VendorOptions: // rule: TestServerChecksConfirm
		return clc.DiagRelease // SMCv2 p.74, note 6
	case c.R != nil && theirs.MaxConns != ours.MaxConns: // rule: TestServerChecksConfirm
		return clc.DiagMaxConns
	case c.R != nil && theirs.MaxLinks != ours.MaxLinks: // rule: TestServerChecksConfirm
		return clc.DiagMaxLinks
	}
	return clc.DiagNone
}

var (
	errNotAsAccepted = errors.New("differs from the Accept")
	errForeignGID    = errors.New("GID differs from the one in the Proposal")
	errForeignPeer   = errors.New("peer ID differs from the one in the Proposal")
)

// zeroPeer is the peer ID that a host without an RNIC sends.
var zeroPeer wire.PeerID
