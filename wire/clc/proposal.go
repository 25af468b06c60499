package clc

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/gosmc/smc/wire"
)

// A Proposal is the client's first message: it offers SMC types and has the values that the server
// needs in order to choose.
//
//	offset  size  field
//	     0     4  eyecatcher      "SMCR" in EBCDIC: e2 d4 c3 d9
//	     4     1  type            0x01
//	     5     2  length
//	     7     1  flags           version (4 bits), version 2 types (2), version 1 types (2)
//	     8     8  peer ID
//	    16    16  GID             for SMC-Rv1
//	    32     6  MAC
//	    38     2  IP offset       bytes between offset 40 and the IP area, zero if there is none
//	    40     8  ISM GID         of the device on the TCP connection's network
//	    48     2  ISM CHID        likewise
//	    50     2  v2 offset       bytes between offset 52 and the version 2 extension, or zero
//	    52     3  vendor OUI      release 1
//	    55     5  vendor options  release 1
//	    60    20  reserved
//	    80     *  IP area         if a version 1 type is offered; see [IPArea]
//	     *     *  v2 extension    if a version 2 type is offered; see [ProposalV2]
//	   end     4  eyecatcher      as at offset 0
//
// In header version 1 the bytes from 40 to 79 are missing unless SMC-D is offered.
//
// An extension that is offered with offset zero is taken for absent; its pointer is then nil.
// Extensions have to be in this order and must not overlap.
//
// Layout: RFC 7609 p.94, SMCv2 p.53.
type Proposal struct {
	Version Version  // of the header; V2 since Linux 5.10, even if only version 1 types are offered
	V1      SMCTypes // offered in version 1
	V2      SMCTypes // offered in version 2; TypesNone if Version is V1

	PeerID wire.PeerID // zero from Linux unless SMC-Rv1 is offered
	GID    wire.GID    // likewise
	MAC    wire.MAC    // likewise

	// ISMGID is the 64-bit GID of a native ISM device, zero for none; ISMCHID is its CHID, zero
	// for a device that can do version 1 only. They are sent if V1 has SMC-D: Linux takes other
	// contents of these bytes for a broken message. They are read if V1 or V2 has SMC-D.
	ISMGID  uint64
	ISMCHID wire.CHID

	VendorOUI     [3]byte // release 1; zero means no options
	VendorOptions [5]byte // release 1; zero if VendorOUI is

	IP  *IPArea     // nil if and only if no version 1 type is offered
	Ext *ProposalV2 // nil if no version 2 type is offered; a peer may omit it even so
}

const (
	proposalBaseV1Len = 40 // up to and including the IP offset
	proposalBaseV2Len = 80 // with the area that version 2 and SMC-D have added
	ipOffsetEnd       = 40 // the IP offset counts from here
	ismGIDEnd         = 48
	ismCHIDEnd        = 50
	v2OffsetEnd       = 52 // the v2 offset counts from here
)

// Type returns [TypeProposal].
func (p Proposal) Type() Type { return TypeProposal }

// Validate implements [Message].
func (p Proposal) Validate() error {
	const message = "Proposal"
	switch {
	case p.Version != V1 && p.Version != V2:
		return invalid(message, "version %d", p.Version)
	case p.V1 > TypesBoth || p.V2 > TypesBoth:
		return invalid(message, "types %d and %d", uint8(p.V1), uint8(p.V2))
	case p.Version == V1 && p.V2 != TypesNone:
		return invalid(message, "version 2 types in version 1")
	case p.V1 == TypesNone && p.V2 == TypesNone:
		return invalid(message, "nothing offered")
	case (p.V1 != TypesNone) != (p.IP != nil):
		return invalid(message, "IP area and version 1 types do not go together")
	case (p.V2 != TypesNone) != (p.Ext != nil):
		return invalid(message, "version 2 extension and types do not go together")
	case (p.ISMGID != 0 || p.ISMCHID != 0) && !p.V1.HasD():
		return invalid(message, "ISM GID or CHID without SMC-Dv1")
	}
	if p.IP != nil {
		if err := p.IP.validate(); err != nil {
			return err
		}
	}
	if p.Ext != nil {
		return p.Ext.validate(p.V2.HasD())
	}
	return nil
}

// Append implements [Message].
func (p Proposal) Append(b []byte) []byte {
	mustValidate(p)
	start := len(b)
	flags := byte(p.V1)
	if p.Version > V1 {
		flags |= byte(p.V2) << 2
	}
	b = begin(b, eyecatcherSMCR, TypeProposal, p.Version, flags)
	b = append(b, p.PeerID[:]...)
	b = append(b, p.GID[:]...)
	b = append(b, p.MAC[:]...)
	long := p.Version > V1 || p.V1.HasD()
	var ipOffset uint16
	if p.IP != nil && long {
		ipOffset = proposalBaseV2Len - ipOffsetEnd
	}
	b = binary.BigEndian.AppendUint16(b, ipOffset)
	if long {
		b = p.appendLongBase(b)
	}
	if p.IP != nil {
		b = p.IP.append(b)
	}
	if p.Ext != nil {
		binary.BigEndian.PutUint16(b[start+ismCHIDEnd:], uint16(len(b)-start-v2OffsetEnd))
		b = p.Ext.append(b, p.V2.HasD())
	}
	return end(b, start, eyecatcherSMCR)
}

// appendLongBase appends the bytes from offset 40 to 79, with a v2 offset of zero.
func (p Proposal) appendLongBase(b []byte) []byte {
	if p.V1.HasD() {
		b = binary.BigEndian.AppendUint64(b, p.ISMGID)
		b = binary.BigEndian.AppendUint16(b, uint16(p.ISMCHID))
	} else {
		b = appendZeros(b, ismCHIDEnd-ipOffsetEnd)
	}
	b = append(b, 0, 0)
	if p.Ext != nil && p.Ext.Release > Release0 && p.VendorOUI != ([3]byte{}) {
		b = append(b, p.VendorOUI[:]...)
		b = append(b, p.VendorOptions[:]...)
	} else {
		b = appendZeros(b, 8)
	}
	return appendZeros(b, 20)
}

// ParseProposal decodes the Proposal at the start of b.
// Errors are of type [*wire.DecodeError].
func ParseProposal(b []byte) (Proposal, error) {
	const message = "clc.Proposal"
	fail := func(field string, offset int, err error) (Proposal, error) {
		return Proposal{}, &wire.DecodeError{Message: message, Field: field, Offset: offset, Err: err}
	}
	h, b, err := frame(message, TypeProposal, b)
	if err != nil {
		return Proposal{}, err
	}
	p := Proposal{
		Version: h.Version,
		V1:      SMCTypes(h.flags & 3),
		V2:      TypesNone,
		PeerID:  wire.PeerID(b[8:16]),
		GID:     wire.GID(b[16:32]),
		MAC:     wire.MAC(b[32:38]),
	}
	if h.Version > V1 {
		p.V2 = SMCTypes(h.flags >> 2)
	} else if p.V1 == TypesNone {
		return fail("version 1 types", 7, wire.ErrValue)
	}
	r := reader{message: message, b: b[:h.Len-eyecatcherLen]}
	// next is where the next extension may start at the earliest.
	next := proposalBaseV1Len
	if h.Version > V1 {
		next = proposalBaseV2Len
	}
	ipStart := ipOffsetEnd + int(binary.BigEndian.Uint16(b[38:]))
	if p.V1 != TypesNone {
		if ipStart < next { // rule: TestLies
			return fail("IP offset", 38, wire.ErrValue)
		}
		if p.IP, next, err = parseIPArea(r, ipStart); err != nil {
			return Proposal{}, err
		}
		if h.Version == V1 && next != len(r.b) {
			return fail("length", 5, wire.ErrLength)
		}
	}
	if p.V1.HasD() || p.V2.HasD() {
		// In header version 1 the IP area may start before the ISM fields end.
		if h.Version == V1 && ipStart < ismGIDEnd {
			return fail("IP offset", 38, wire.ErrValue)
		}
		p.ISMGID = binary.BigEndian.Uint64(b[40:])
		if h.Version > V1 || ipStart >= ismCHIDEnd {
			p.ISMCHID = wire.CHID(binary.BigEndian.Uint16(b[48:]))
		}
	}
	if p.V2 == TypesNone {
		return p, nil
	}
	v2Offset := int(binary.BigEndian.Uint16(b[50:]))
	if v2Offset == 0 {
		return p, nil
	}
	if v2OffsetEnd+v2Offset < next { // rule: TestLies
		return fail("v2 offset", 50, wire.ErrValue)
	}
	if p.Ext, err = parseProposalV2(r, v2OffsetEnd+v2Offset, p.V2.HasD()); err != nil {
		return Proposal{}, err
	}
	if oui := [3]byte(b[52:55]); p.Ext.Release > Release0 && oui != ([3]byte{}) { // rule: TestVectors
		p.VendorOUI, p.VendorOptions = oui, [5]byte(b[55:60])
	}
	return p, nil
}

// String implements [Message].
func (p Proposal) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "Proposal v%d v1=%v v2=%v peer=%v", p.Version, p.V1, p.V2, p.PeerID)
	if p.V1.HasR() {
		fmt.Fprintf(&s, " gid=%v", p.GID)
	}
	fmt.Fprintf(&s, " mac=%v", p.MAC)
	if p.ISMGID != 0 || p.ISMCHID != 0 {
		fmt.Fprintf(&s, " ism=%v/%016x", p.ISMCHID, p.ISMGID)
	}
	if p.IP != nil {
		fmt.Fprintf(&s, " prefixes=%v", p.IP)
	}
	if p.Ext != nil {
		p.Ext.text(&s)
	}
	if p.VendorOUI != ([3]byte{}) {
		fmt.Fprintf(&s, " vendor=%x/%x", p.VendorOUI, p.VendorOptions)
	}
	return s.String()
}

// A reader is the message from its first byte up to its final eyecatcher, for parsers of extensions
// at a place that the sender chooses.
type reader struct {
	message string
	b       []byte
}

// at returns the n bytes at offset, and whether the message has them all.
func (r reader) at(offset, n int) ([]byte, bool) {
	if offset < 0 || n < 0 || offset > len(r.b) || n > len(r.b)-offset {
		return nil, false
	}
	return r.b[offset : offset+n], true
}

// fail returns the error for a field at offset.
func (r reader) fail(field string, offset int) error {
	return &wire.DecodeError{Message: r.message, Field: field, Offset: offset, Err: wire.ErrValue}
}
