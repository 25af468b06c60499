package core

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gosmc/smc/wire/clc"
)

// This file is the client's side of a [Handshake].

// startClient sends the Proposal, or a Decline in its place: the server expects one of the two.
func (h *Handshake) startClient(now time.Time, out []HandshakeOutput) []HandshakeOutput {
	if h.caps.Refuse != clc.DiagNone {
		return h.decline(now, h.caps.Refuse, out)
	}
	p, ok := h.caps.proposal()
	if !ok {
		return h.decline(now, clc.DiagConfig, out)
	}
	if p.Validate() != nil {
		return h.decline(now, clc.DiagInternal, out) // capabilities that cannot be
	}
	h.proposal = p
	out = append(out, SendCLC{p})
	return h.setState(now, HandshakeAwaitAccept, out)
}

// proposal returns the Proposal that offers the contents of c, and whether there is anything to
// offer. The Proposal has the form of Linux net/smc: header version 2 even if version 1 alone is
// offered.
func (c *Capabilities) proposal() (clc.Proposal, bool) {
	p := clc.Proposal{Version: clc.V2, IP: c.ipArea()}
	// Version 2 needs an EID: any for SMC-D, a UEID for SMC-R (SMCv2 p.57, note 2).
	dv2 := len(c.ISM) > 0 && (!c.SEID.IsZero() || len(c.UEIDs) > 0) // rule: TestClientOffers: && -> ||
	rv2 := c.RoCEv2 != nil && len(c.UEIDs) > 0                      // rule: TestClientOffers: len(c.UEIDs) > 0 -> true
	if p.IP != nil {
		p.V1 = clc.MakeSMCTypes(c.RoCEv1 != nil, c.ISMv1 != nil)
	} else {
		p.V1 = clc.TypesNone
	}
	p.V2 = clc.MakeSMCTypes(rv2, dv2)
	if p.V1 == clc.TypesNone {
		p.IP = nil
	}
	if p.V1.HasR() {
		p.PeerID, p.GID, p.MAC = c.PeerID, c.RoCEv1.GID, c.RoCEv1.MAC
	} else if rv2 {
		// Linux net/smc leaves both zero here. "The MAC address field is always required"
		// (SMCv2 p.54, note 7), and no receiver minds.
		p.PeerID, p.MAC = c.PeerID, c.RoCEv2.MAC
	}
	if p.V1.HasD() {
		p.ISMGID, p.ISMCHID = c.ISMv1.GID.Hi, c.ISMv1.CHID
	}
	if p.V2 == clc.TypesNone {
		return p, p.V1 != clc.TypesNone
	}
	x := &clc.ProposalV2{Release: c.Release, UEIDs: c.UEIDs}
	p.Ext = x
	if c.Release >= clc.Release1 {
		x.Features = c.Features
		p.VendorOUI, p.VendorOptions = c.VendorOUI, c.VendorOffer
	}
	if rv2 {
		x.GID = c.RoCEv2.GID
		if c.Release >= clc.Release1 {
			x.MaxConns, x.MaxLinks = c.MaxConns, c.MaxLinks
		}
	}
	if dv2 {
		x.D = &clc.ProposalDv2{HasSEID: !c.SEID.IsZero(), SEID: c.SEID, Devices: c.ISM}
	}
	return p, true
}

// handleAccept takes the server's choice. It must be one that we offered.
func (h *Handshake) handleAccept(now time.Time, a clc.Accept, out []HandshakeOutput) []HandshakeOutput {
	broken := func(format string, args ...any) []HandshakeOutput {
		return h.protocolError(now, "CLC Accept", fmt.Errorf(format, args...), out)
	}
	offered := h.proposal.V1
	if a.Version == clc.V2 {
		offered = h.proposal.V2
	}
	h.accept = a // from here on a Decline has its version
	switch {
	case (a.R == nil) == (a.D == nil):
		return broken("not exactly one of SMC-R and SMC-D")
	case a.R != nil && !offered.HasR(), a.D != nil && !offered.HasD(): // rule: TestClientChecksAccept
		return h.decline(now, clc.DiagMode, out) // as Linux net/smc
	case a.Version == clc.V2 && a.FirstContact != (a.FCE != nil): // rule: TestClientChecksAccept
		return broken("first contact without its extension")
	}
	if a.Version == clc.V2 && !h.offeredEID(a) { // rule: TestClientChecksAccept
		return broken("EID %q was not offered", a.EID)
	}
	choice := Choice{
		Version: a.Version, EID: a.EID, FirstContact: a.FirstContact, D: a.D, R: a.R,
	}
	if a.D != nil {
		choice.Mode = SMCD
		local, ok := h.offeredDevice(a)
		if !ok {
			return broken("CHID %v was not offered", a.D.CHID)
		}
		if a.D.GID.IsZero() { // rule: TestClientChecksAccept
			return broken("no GID")
		}
		choice.Local = local
		choice.Remote = clc.ISMDevice{GID: a.D.GID, CHID: local.CHID}
	} else {
		choice.Mode = SMCR
		choice.PeerID, choice.GID, choice.MAC = a.R.PeerID, a.R.GID, a.R.MAC
		choice.ReasonKept = a.ReasonKept
		if a.Version == clc.V1 && a.R.GID.Addr().Is4() != h.caps.RoCEv1.GID.Addr().Is4() { // rule: TestClientChecksAccept
			return h.decline(now, clc.DiagNoSMCRDevice, out) // there are no packets between the two
		}
		if err := h.checkParamsR(a.Version, a.R); err != nil {
			return broken("%w", err)
		}
	}
	if a.Version == clc.V2 && a.FirstContact {
		if why := h.checkFCE(a); why != clc.DiagNone {
			return h.decline(now, why, out)
		}
		choice.Release, choice.PeerOS = a.FCE.Release, a.FCE.OS
		choice.Direct = a.FCE.Direct
	}
	h.choice = choice
	out = h.setState(now, HandshakePreparing, out)
	return append(out, Prepare{choice})
}

// offeredEID reports whether the Accept's EID is one that we offered for its type: "the SEID
// (System EID) applies to SMCDv2 only" (SMCv2 p.60, note 2).
func (h *Handshake) offeredEID(a clc.Accept) bool {
	if a.EID.IsZero() {
		return false
	}
	return h.caps.hasUEID(a.EID) || a.D != nil && a.EID == h.caps.SEID // rule: TestClientChecksAccept: a.D != nil -> true
}

// offeredDevice returns the device of ours that the Accept names by its CHID. A version 1 Accept
// names none, as we offer one at most.
func (h *Handshake) offeredDevice(a clc.Accept) (clc.ISMDevice, bool) {
	if a.Version == clc.V1 {
		return *h.caps.ISMv1, true
	}
	if d, ok := h.caps.device(a.D.CHID); ok {
		return d, true
	}
	if d := h.caps.ISMv1; h.proposal.V1.HasD() && d.CHID != 0 && d.CHID == a.D.CHID {
		return *d, true // the associated device: SMCv2 p.54, note 4
	}
	return clc.ISMDevice{}, false
}

// checkFCE checks the values that the server has negotiated: "the client must accept the values
// or DECLINE the connection" (SMCv2, notes on the v2.1 handshake examples, item 3).
func (h *Handshake) checkFCE(a clc.Accept) clc.Diagnosis {
	switch f := a.FCE; {
	case f.Release > h.caps.Release: // rule: TestClientChecksAccept
		return clc.DiagRelease
	// rule: TestClientChecksAccept
	case a.D != nil && a.D.CHID.IsEmulated() && (f.Release < clc.Release1 || f.Features&clc.FeatureEmulatedISM == 0):
		return clc.DiagRelease // a feature needs both hosts' bits (SMCv2 p.44, 4.a.iii)
	case f.Release == clc.Release0 || a.R == nil:
		return clc.DiagNone
	case f.MaxConns < maxConnsFloor: // rule: TestClientChecksAccept
		return clc.DiagMaxConns
	case f.MaxLinks < maxLinksFloor || f.MaxLinks > maxLinksCeiling: // rule: TestClientChecksAccept
		return clc.DiagMaxLinks
	}
	return clc.DiagNone
}

// checkParamsR checks the peer's parameters for its end of SMC-R.
func (h *Handshake) checkParamsR(v clc.Version, p *clc.ParamsR) error {
	switch {
	case p.GID.IsZero() || p.QPN == 0: // rule: TestClientChecksAccept, TestServerChecksConfirm
		return errors.New("no GID or no queue pair")
	case v == clc.V2 && !h.caps.rightFamily(p.GID): // rule: TestClientChecksAccept, TestServerChecksConfirm
		return fmt.Errorf("GID %v is not of the TCP connection's IP version", p.GID) // SMCv2 pp.66, 73
	case p.RMBEIndex == 0: // rule: TestClientChecksAccept, TestServerChecksConfirm
		return errors.New("RMB element index 0") // "valid value range is 1-255" (RFC 7609 p.15)
	}
	return nil
}

// sendConfirm answers the Accept. SMC-D, and SMC-R in a link group that exists, is in use from
// here on.
func (h *Handshake) sendConfirm(now time.Time, r Resources, out []HandshakeOutput) []HandshakeOutput {
	c := clc.Confirm{
		Version: h.accept.Version, EID: h.choice.EID,
		FirstContact: h.accept.FirstContact && h.accept.Version == clc.V2,
	}
	c.R, c.D = h.ownParams(r)
	result := h.newResult(h.accept.D, h.accept.R)
	if c.FirstContact {
		server := h.accept.FCE
		result.learnFCE(server)
		c.FCE = h.caps.fce(server.Release)
		c.FCE.Direct = server.Direct
		if server.Release >= clc.Release1 {
			result.Features = server.Features & h.caps.Features // rule: TestHandshakeTypes: & h.caps.Features -> | h.caps.Features
			if h.caps.VendorOUI != ([3]byte{}) {
				result.VendorOptions = server.VendorOptions // rule: TestHandshakeVendor
			}
			c.FCE.Features = result.Features
			// rule: TestHandshakeVendor
			c.FCE.VendorOptions = result.VendorOptions // SMCv2 p.73, note 6: as in the Accept
			c.FCE.MaxConns, c.FCE.MaxLinks = server.MaxConns, server.MaxLinks
		}
		if h.choice.Mode == SMCR {
			c.ClientGIDs = slices.Clone(r.ClientGIDs)
			result.Direct = server.Direct
		}
	}
	if c.Validate() != nil {
		return h.decline(now, clc.DiagInternal, out)
	}
	h.result = result
	out = append(out, SendCLC{c})
	if h.choice.Mode == SMCR && h.accept.FirstContact {
		return append(h.setState(now, HandshakeLinkWait, out), StartLink{result})
	}
	return h.end(now, HandshakeEstablished, Established{result}, out)
}

// ownParams returns our buffer as a message carries it; both nil if the caller gave none that fits
// the choice.
func (h *Handshake) ownParams(r Resources) (*clc.ParamsR, *clc.ParamsD) {
	switch {
	case h.choice.Mode == SMCD && r.D != nil:
		d := *r.D
		d.GID, d.CHID = h.choice.Local.GID, h.choice.Local.CHID
		if h.choice.Version == clc.V1 {
			d.CHID = 0
		}
		return nil, &d
	case h.choice.Mode == SMCR && r.R != nil:
		p := *r.R
		p.PeerID = h.caps.PeerID
		return &p, nil
	}
	return nil, nil
}

// newResult returns the values that do not depend on first contact.
func (h *Handshake) newResult(d *clc.ParamsD, r *clc.ParamsR) Result {
	res := Result{
		Role: h.role, Mode: h.choice.Mode, Version: h.choice.Version,
		FirstContact: h.accept.FirstContact, EID: h.choice.EID, Local: h.choice.Local,
		ReasonKept: h.accept.ReasonKept,
	}
	if d != nil {
		p := *d
		p.CHID = h.choice.Local.CHID // a version 1 message has none
		res.D = &p
	}
	if r != nil {
		p := *r
		res.R = &p
		if h.choice.Version == clc.V1 {
			res.MaxConns, res.MaxLinks = defaultMaxConns, defaultMaxLinks
		}
	}
	return res
}

// learnFCE takes the peer's introduction, which has been checked.
func (res *Result) learnFCE(f *clc.FCE) {
	res.Release, res.PeerOS, res.PeerHostName = f.Release, f.OS, f.HostName
	if res.Mode != SMCR {
		return
	}
	res.MaxConns, res.MaxLinks = defaultMaxConns, defaultMaxLinks
	if f.Release >= clc.Release1 {
		res.MaxConns, res.MaxLinks = f.MaxConns, f.MaxLinks
	}
}
