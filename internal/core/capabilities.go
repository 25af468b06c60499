package core

import (
	"net/netip"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// Capabilities lists the functions that this host supports, and may use, for one TCP connection. A
// type is offered or accepted if its device is there: leave a device out to switch the type off.
// The zero value offers and accepts nothing. It is read only; slices are shared, not copied.
type Capabilities struct {
	// Refuse, if not zero, makes the handshake end in a Decline with this reason, in the order
	// that the protocol asks for: a client sends it in place of its Proposal, a server in
	// place of its Accept. For a limit that is reached, or a rule of the user.
	Refuse clc.Diagnosis

	PeerID   wire.PeerID // zero without an RNIC
	OS       clc.OS      // told to the peer in version 2
	HostName string      // told to the peer on first contact in version 2; 32 bytes are used
	Release  clc.Release // the highest of version 2 that is spoken; above clc.Release1 counts as that

	SEID  wire.EID   // SMC-D only; zero: none, or switched off
	UEIDs []wire.EID // in order of preference; at most clc.MaxUEIDs are used

	ISM    []clc.ISMDevice // for SMC-Dv2, in order of preference; Emulated-ISM devices need Release1
	ISMv1  *clc.ISMDevice  // for SMC-Dv1: a native device on the TCP connection's network; nil if none
	RoCEv1 *RNIC           // for SMC-Rv1: with a RoCEv1 GID; nil if none
	RoCEv2 *RNIC           // for SMC-Rv2: with an IP address as GID; nil if none

	// Networks holds the IP networks of the interface that the TCP connection uses, all of the
	// connection's address family. Version 1 works within one network only; without networks
	// it is neither offered nor accepted.
	Networks []netip.Prefix

	MaxConns uint8 // connections per link group of SMC-R, 16 to 255; less counts as 16
	MaxLinks uint8 // links per link group of SMC-R, 1 or 2; other values count as the nearer one

	// Peer is the peer's address on the TCP connection. A GID of SMC-Rv2 has to be of the same
	// version of IP: "the IP version must match the IP version of the associated TCP connection"
	// (SMCv2 p.58, note 4). Zero: that is not looked at.
	Peer netip.Addr

	// Features has clc.FeatureEmulatedISM added in Release1, where a host sets it "even when an
	// Emulated-ISM device is not offered" (SMCv2, v2.1 handshake examples, note 10).
	Features clc.Features

	VendorOUI     [3]byte // zero: no vendor options
	VendorOffer   [5]byte // sent in a Proposal
	VendorOptions [4]byte // sent in an Accept, if the Proposal has the same OUI
}

// An RNIC is a port of a RoCE adapter as a peer addresses it.
type RNIC struct {
	GID wire.GID
	MAC wire.MAC
}

// normalized returns c within the limits of the protocol.
func (c Capabilities) normalized() Capabilities {
	c.Release = min(c.Release, clc.Release1)
	c.UEIDs = c.UEIDs[:min(len(c.UEIDs), clc.MaxUEIDs)]
	c.MaxConns = max(c.MaxConns, maxConnsFloor)                       // rule: TestOfferedDevices
	c.MaxLinks = min(max(c.MaxLinks, maxLinksFloor), maxLinksCeiling) // rule: TestOfferedDevices
	if c.VendorOUI == ([3]byte{}) {
		c.VendorOffer, c.VendorOptions = [5]byte{}, [4]byte{}
	}
	var ism []clc.ISMDevice
	entries := 0
	for _, d := range c.ISM {
		if d.CHID.IsEmulated() && c.Release < clc.Release1 { // rule: TestOfferedDevices
			continue
		}
		if entries+d.Entries() > clc.MaxISMEntries { // rule: TestOfferedDevices
			continue // one that takes fewer entries may still fit
		}
		entries += d.Entries()
		ism = append(ism, d)
	}
	c.ISM = ism
	if c.Release >= clc.Release1 {
		c.Features |= clc.FeatureEmulatedISM // rule: TestOfferedDevices
	}
	if c.RoCEv2 != nil && !c.rightFamily(c.RoCEv2.GID) { // rule: TestClientOffers
		c.RoCEv2 = nil
	}
	if len(c.Networks) == 0 {
		c.ISMv1, c.RoCEv1 = nil, nil
	}
	return c
}

// device returns our ISM device for version 2 with the given CHID.
func (c *Capabilities) device(chid wire.CHID) (clc.ISMDevice, bool) {
	for _, d := range c.ISM {
		if d.CHID == chid {
			return d, true
		}
	}
	return clc.ISMDevice{}, false
}

// rightFamily reports whether g is of the IP version of the TCP connection, as far as we know that.
func (c *Capabilities) rightFamily(g wire.GID) bool {
	return !c.Peer.IsValid() || g.Addr().Is4() == c.Peer.Unmap().Is4()
}

// hasUEID reports whether eid is one of our UEIDs.
func (c *Capabilities) hasUEID(eid wire.EID) bool {
	for _, e := range c.UEIDs {
		if e == eid {
			return true
		}
	}
	return false
}

// matchUEID returns the first of the client's UEIDs that is also ours: the order is the client's,
// as in Linux net/smc.
func (c *Capabilities) matchUEID(offered []wire.EID) (wire.EID, bool) {
	for _, e := range offered {
		if !e.IsZero() && c.hasUEID(e) {
			return e, true
		}
	}
	return wire.EID{}, false
}

// matchEID is matchUEID for SMC-D, where the SEID comes first.
func (c *Capabilities) matchEID(x *clc.ProposalV2) (wire.EID, bool) {
	if x.D != nil && x.D.HasSEID && !c.SEID.IsZero() && x.D.SEID == c.SEID { // rule: TestEIDOrder
		return c.SEID, true
	}
	return c.matchUEID(x.UEIDs) // rule: TestEIDOrder: c.matchUEID(x.UEIDs) -> wire.EID{}, false
}

// matchNetwork reports whether the client is on one of our networks: for IPv4 and IPv6 alike,
// both hosts must see the same network with the same length of prefix.
func (c *Capabilities) matchNetwork(a *clc.IPArea) bool {
	if a == nil {
		return false
	}
	offered := a.IPv6
	if len(offered) == 0 {
		offered = []netip.Prefix{a.IPv4}
	}
	for _, o := range offered {
		if o.Addr().Is6() && o.Addr().IsLinkLocalUnicast() { // rule: TestNetworks
			continue // every host is on that network
		}
		for _, n := range c.Networks {
			if o.IsValid() && o.Masked() == n.Masked() {
				return true
			}
		}
	}
	return false
}

// ipArea returns our networks as a Proposal carries them, nil if there are none.
func (c *Capabilities) ipArea() *clc.IPArea {
	var a clc.IPArea
	for _, n := range c.Networks {
		switch {
		case n.Addr().Is4():
			a.IPv4 = n.Masked()
			return &a // one is sent
		case n.Addr().Is6() && !n.Addr().IsLinkLocalUnicast() && len(a.IPv6) < clc.MaxPrefixes:
			a.IPv6 = append(a.IPv6, n.Masked())
		}
	}
	if a.IPv6 == nil {
		return nil
	}
	return &a
}

// fce returns our first contact extension for the negotiated release. In release 1 the fields
// for SMC-R are filled in by the caller.
func (c *Capabilities) fce(release clc.Release) *clc.FCE {
	return &clc.FCE{OS: c.OS, Release: release, HostName: c.HostName}
}
