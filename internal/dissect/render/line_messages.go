package render

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// The append functions below write the main fields of a message of the handshake or about links.
// These messages are rare, so that the words may cost something; all fields are in [Fields].

// appendCLC appends a message of the handshake.
func appendCLC(b []byte, message clc.Message) []byte {
	switch m := message.(type) {
	case clc.Proposal:
		return appendProposal(b, &m)
	case *clc.Proposal:
		return appendProposal(b, m)
	case clc.Accept:
		return appendAccept(b, &m)
	case *clc.Accept:
		return appendAccept(b, m)
	case clc.Confirm:
		return appendConfirm(b, &m)
	case *clc.Confirm:
		return appendConfirm(b, m)
	case clc.Decline:
		return appendDecline(b, &m)
	case *clc.Decline:
		return appendDecline(b, m)
	}
	return b
}

func appendProposal(b []byte, p *clc.Proposal) []byte {
	b = appendVersion(b, p.Version, p.Ext != nil, proposalRelease(p))
	b = append(b, " offers "...)
	b = append(b, offers(p)...)
	if p.V1.HasR() {
		b = fmt.Appendf(b, " gid=%v", p.GID)
	}
	if p.IP != nil {
		b = fmt.Appendf(b, " net=%v", p.IP)
	}
	if p.ISMGID != 0 || p.ISMCHID != 0 {
		b = fmt.Appendf(b, " ism=%v/%016x", p.ISMCHID, p.ISMGID)
	}
	x := p.Ext
	if x == nil {
		return appendVendor(b, p.VendorOUI[:], p.VendorOptions[:])
	}
	if !x.GID.IsZero() {
		b = fmt.Appendf(b, " gid=%v", x.GID)
	}
	b = appendEIDs(b, " eids=", x.UEIDs)
	if x.D != nil {
		if x.D.HasSEID {
			b = appendEIDs(b, " seid=", []wire.EID{x.D.SEID})
		}
		for _, d := range x.D.Devices {
			b = fmt.Appendf(b, " ism=%v/%v", d.CHID, d.GID)
		}
	}
	b = appendLimits(b, x.MaxConns, x.MaxLinks, x.Features)
	return appendVendor(b, p.VendorOUI[:], p.VendorOptions[:])
}

func proposalRelease(p *clc.Proposal) clc.Release {
	if p.Ext == nil {
		return clc.Release0
	}
	return p.Ext.Release
}

// appendVersion appends "v1", "v2", or "v2.1" if the message says the release.
func appendVersion(b []byte, v clc.Version, hasRelease bool, r clc.Release) []byte {
	b = appendNumber(b, " v", uint64(v))
	if v > clc.V1 && hasRelease {
		b = appendNumber(b, ".", uint64(r))
	}
	return b
}

// offers lists the SMC types in a proposal, such as "SMC-Rv1,SMC-Rv2".
func offers(p *clc.Proposal) string {
	var list []string
	for _, o := range []struct {
		offered bool
		name    string
	}{
		{p.V2.HasD(), "SMC-Dv2"}, {p.V1.HasD(), "SMC-Dv1"}, {p.V2.HasR(),
			"SMC-Rv2"}, {p.V1.HasR(), "SMC-Rv1"},
	} {
		if o.offered {
			list = append(list, o.name)
		}
	}
	if list == nil {
		return "nothing"
	}
	return strings.Join(list, ",")
}

// appendEIDs appends names that a peer has sent; EID.String lets no byte through that is not
// printable.
func appendEIDs(b []byte, label string, eids []wire.EID) []byte {
	for i, e := range eids {
		if i == 0 {
			b = append(b, label...)
		} else {
			b = append(b, ',')
		}
		b = appendName(b, e.String())
	}
	return b
}

// appendName appends printable ASCII, in quotes where it could be taken for more than one word.
func appendName(b []byte, name string) []byte {
	if name == "" || strings.ContainsAny(name, " ,\"=!") {
		return strconv.AppendQuote(b, name)
	}
	return append(b, name...)
}

func appendLimits(b []byte, conns, links uint8, f clc.Features) []byte {
	if conns != 0 {
		b = appendNumber(b, " max-conns=", uint64(conns))
	}
	if links != 0 {
		b = appendNumber(b, " max-links=", uint64(links))
	}
	if f != 0 {
		b = appendName(append(b, " features="...), featureText(uint64(f)))
	}
	return b
}

func appendVendor(b []byte, parts ...[]byte) []byte {
	for _, p := range parts {
		for _, c := range p {
			if c != 0 {
				return fmt.Appendf(b, " vendor=%x", parts)
			}
		}
	}
	return b
}

func appendAccept(b []byte, a *clc.Accept) []byte {
	b = appendExchange(b, a.Version, a.FirstContact, a.R, a.D, a.EID, a.FCE)
	if a.ReasonKept {
		b = append(b, " reason-kept"...)
	}
	return b
}

func appendExchange(b []byte, v clc.Version, first bool, r *clc.ParamsR, d *clc.ParamsD, eid wire.EID,
	f *clc.FCE) []byte {
	var release clc.Release
	if f != nil {
		release = f.Release
	}
	b = appendVersion(b, v, f != nil, release)
	if r != nil {
		b = append(b, " SMC-R"...)
	} else {
		b = append(b, " SMC-D"...)
	}
	if first {
		b = append(b, " first-contact"...)
	}
	if r != nil {
		b = fmt.Appendf(b, " gid=%v", r.GID)
		b = appendHex(b, " qpn=", uint64(r.QPN))
		b = appendHex(b, " psn=", uint64(r.PSN))
		b = appendHex(b, " rkey=", uint64(r.RKey))
		b = appendHex(b, " va=", r.RMBAddr)
		b = appendNumber(b, " rmbe=", uint64(r.RMBEIndex))
		b = appendHex(b, " token=", uint64(r.AlertToken))
		b = fmt.Appendf(b, " size=%v mtu=%v peer=%v", r.RMBESize, r.MTU, r.PeerID)
	} else if d != nil {
		b = fmt.Appendf(b, " gid=%v", d.GID)
		if v > clc.V1 {
			b = fmt.Appendf(b, " chid=%v", d.CHID)
		}
		b = fmt.Appendf(b, " token=%v dmbe=%d size=%v linkid=%v", d.Token, d.DMBEIndex, d.DMBESize, d.LinkID)
	}
	if v > clc.V1 {
		b = appendEIDs(b, " eid=", []wire.EID{eid})
	}
	if f == nil {
		return b
	}
	b = fmt.Appendf(b, " os=%v", f.OS)
	if f.HostName != "" {
		b = appendName(append(b, " host="...), f.HostName)
	}
	if r != nil && f.Direct {
		b = append(b, " direct"...)
	}
	if r != nil {
		b = appendLimits(b, f.MaxConns, f.MaxLinks, f.Features)
	} else {
		b = appendLimits(b, 0, 0, f.Features)
	}
	return appendVendor(b, f.VendorOptions[:])
}

func appendConfirm(b []byte, c *clc.Confirm) []byte {
	b = appendExchange(b, c.Version, c.FirstContact, c.R, c.D, c.EID, c.FCE)
	return appendGIDs(b, c.ClientGIDs)
}

func appendGIDs(b []byte, gids []wire.GID) []byte {
	for i, g := range gids {
		if i == 0 {
			b = append(b, " gids="...)
		} else {
			b = append(b, ',')
		}
		b = append(b, g.String()...)
	}
	return b
}

func appendDecline(b []byte, d *clc.Decline) []byte {
	b = appendVersion(b, d.Version, false, 0)
	b = append(b, ' ')
	b = append(b, d.Reason().String()...)
	if d.OutOfSync {
		b = append(b, " out-of-sync"...)
	}
	if d.OS != clc.OSUnspecified {
		b = fmt.Appendf(b, " os=%v", d.OS)
	}
	if d.PeerID != (wire.PeerID{}) {
		b = fmt.Appendf(b, " peer=%v", d.PeerID)
	}
	for _, t := range []struct {
		label string
		code  clc.Diagnosis
	}{
		{" smc-dv2=", d.ByType.SMCDv2}, {" smc-dv1=", d.ByType.SMCDv1},
		{" smc-rv2=", d.ByType.SMCRv2}, {" smc-rv1=", d.ByType.SMCRv1},
	} {
		if t.code != 0 {
			b = fmt.Appendf(b, "%s0x%08x", t.label, uint32(t.code))
		}
	}
	return b
}

// appendLLC appends a message about links.
func appendLLC(b []byte, message llc.Message) []byte {
	h := message.Head()
	b = appendNumber(b, " v", uint64(h.Form.Version()))
	if h.Reply {
		b = append(b, " reply"...)
	} else {
		b = append(b, " request"...)
	}
	switch m := message.(type) {
	case llc.ConfirmLink:
		b = appendNumber(b, " link=", uint64(m.Link))
		b = fmt.Appendf(b, " gid=%v", m.GID)
		b = appendHex(b, " qpn=", uint64(m.QPN))
		b = fmt.Appendf(b, " userid=%v", m.LinkUserID)
		if h.Form.Version() == 1 { // which does not have it
			m.MaxConns = 0
		}
		b = appendLimits(b, m.MaxConns, m.MaxLinks, 0)
	case llc.AddLink:
		if m.Rejected {
			return fmt.Appendf(b, " rejected (%v)", m.Reason)
		}
		b = appendNumber(b, " link=", uint64(m.Link))
		b = fmt.Appendf(b, " gid=%v", m.GID)
		b = appendHex(b, " qpn=", uint64(m.QPN))
		b = appendHex(b, " psn=", uint64(m.PSN))
		b = fmt.Appendf(b, " mtu=%v", m.MTU)
		if h.Form.Version() == 2 {
			if m.Direct {
				b = append(b, " direct"...)
			}
			if !m.TargetGID.IsZero() {
				b = fmt.Appendf(b, " target=%v", m.TargetGID)
			}
			b = appendPairs(b, m.RKeys)
		}
		if m.Missing > 0 {
			b = appendNumber(b, " missing=", uint64(m.Missing))
		}
	case llc.AddLinkCont:
		b = appendNumber(b, " link=", uint64(m.Link))
		b = appendNumber(b, " remaining=", uint64(m.Remaining))
		b = appendPairs(b, m.RKeys)
	case llc.DeleteLink:
		if m.All {
			b = append(b, " all"...)
		} else {
			b = appendNumber(b, " link=", uint64(m.Link))
		}
		if m.Orderly {
			b = append(b, " orderly"...)
		}
		b = fmt.Appendf(b, " reason=%v", m.Reason)
	case llc.RequestAddLink:
		if m.Rejected {
			return fmt.Appendf(b, " rejected (%v)", m.Reason)
		}
		b = appendGIDs(b, m.GIDs)
	case llc.ConfirmRKey:
		b = appendOutcome(b, m.Negative, m.Retry)
		b = fmt.Appendf(b, " rtoken=%v", m.RToken)
		b = appendTokens(b, m.Others, int(m.Remaining))
	case llc.ConfirmRKeyCont:
		b = appendOutcome(b, m.Negative, false)
		b = appendTokens(b, m.RTokens, int(m.Remaining))
	case llc.DeleteRKey:
		b = appendOutcome(b, m.Negative, false)
		b = appendDeleted(b, &m)
	case llc.TestLink:
		if m.UserData != [16]byte{} {
			b = fmt.Appendf(b, " data=%x", m.UserData)
		}
	}
	return b
}

func appendOutcome(b []byte, negative, retry bool) []byte {
	if negative {
		b = append(b, " negative"...)
	}
	if retry {
		b = append(b, " retry"...)
	}
	return b
}

// maxListed is how many elements of an array are in a line. The others are counted.
const maxListed = 4

// appendMore says how many elements of an array of n are not in the line.
func appendMore(b []byte, n int) []byte {
	if n > maxListed {
		b = appendNumber(b, " and ", uint64(n-maxListed))
		b = append(b, " more"...)
	}
	return b
}

func appendPairs(b []byte, pairs []llc.RKeyPair) []byte {
	for _, p := range pairs[:min(len(pairs), maxListed)] {
		b = fmt.Appendf(b, " rkey=%v>%v", p.Reference, p.New)
	}
	return appendMore(b, len(pairs))
}

func appendTokens(b []byte, tokens []llc.LinkRToken, remaining int) []byte {
	for _, t := range tokens {
		b = fmt.Appendf(b, " link%d=%v", t.Link, t.RToken)
	}
	if remaining > len(tokens) {
		b = appendNumber(b, " and ", uint64(remaining-len(tokens)))
		b = append(b, " to follow"...)
	}
	return b
}

func appendDeleted(b []byte, d *llc.DeleteRKey) []byte {
	if d.Reply && d.Form.Version() == 2 {
		b = appendNumber(b, " count=", uint64(d.Count))
		if d.Negative {
			b = appendNumber(b, " not-deleted=", uint64(d.Invalid))
		}
	}
	for _, k := range d.RKeys[:min(len(d.RKeys), maxListed)] {
		b = fmt.Appendf(b, " rkey=%v", k)
	}
	b = appendMore(b, len(d.RKeys))
	if d.ErrorMask != 0 {
		b = fmt.Appendf(b, " error-mask=%08b", d.ErrorMask)
	}
	return b
}
