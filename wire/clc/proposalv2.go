package clc

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/gosmc/smc/wire"
)

// A ProposalV2 is the extension of a [Proposal] that offers version 2.
//
//	offset  size  field
//	     0     1  number of UEIDs        0 to 8
//	     1     1  number of ISM entries  0 to 8, in the SMC-Dv2 extension
//	     2     1  reserved
//	     3     1  release (4 bits), reserved (3), SEID present (1)
//	     4     2  reserved
//	     6     2  SMC-Dv2 offset         bytes between offset 8 and that extension, or zero
//	     8    16  RoCEv2 GID
//	    24     1  max conns              release 1
//	    25     1  max links              release 1
//	    26     2  features               release 1
//	    28    12  reserved
//	    40  32*n  UEIDs
//	     *     *  SMC-Dv2 extension, see [ProposalDv2]
//
// Fields of release 1 are zero, and not sent, in release 0.
//
// Layout: SMCv2 p.57.
type ProposalV2 struct {
	Release  Release
	UEIDs    []wire.EID // in the client's order of preference, at most MaxUEIDs
	GID      wire.GID   // for SMC-Rv2; an IP address, see wire.GID.Addr
	MaxConns uint8      // per link group, 16 to 255; SMC-R only
	MaxLinks uint8      // per link group, 1 or 2; SMC-R only
	Features Features

	// D is nil if SMC-D is not offered in version 2. It is needed if it is, though a peer that
	// offers only the ISM device of the base message may omit it.
	D *ProposalDv2
}

// A ProposalDv2 is the extension of a [ProposalV2] that offers SMC-D.
//
//	offset  size  field
//	     0    32  SEID      if the flag in the extension above is set, else zero
//	    32    16  reserved
//	    48  10*n  entries   8 bytes GID, 2 bytes CHID
//
// An Emulated-ISM device takes two entries with the same CHID: the first has the high half of its
// Extended GID, the second the low half. A message in which the second is missing is broken:
// "the error must be rejected by an SMC-Dv2.1 server" (SMCv2, "Emulated-ISM", item 13c).
//
// Layout: SMCv2 p.60.
type ProposalDv2 struct {
	HasSEID bool
	SEID    wire.EID    // zero unless HasSEID
	Devices []ISMDevice // in the client's order; at most MaxISMEntries entries
}

// An ISMDevice is one device on offer. Its GID has 128 bits if and only if the CHID belongs to an
// Emulated-ISM device.
type ISMDevice struct {
	GID  wire.ISMGID
	CHID wire.CHID
}

// Largest counts in a [Proposal]: SMCv2 pp.57, 60.
const (
	MaxUEIDs      = 8
	MaxISMEntries = 8 // an Emulated-ISM device counts twice
)

// Entries returns how many entries of a Proposal the device takes: 2 if it is emulated, else 1.
func (d ISMDevice) Entries() int {
	if d.CHID.IsEmulated() {
		return 2
	}
	return 1
}

const (
	proposalV2Len  = 40 // without UEIDs
	dv2OffsetEnd   = 8  // the SMC-Dv2 offset counts from here
	eidLen         = 32
	proposalDv2Len = 48 // without entries
	ismEntryLen    = 10
	flagSEID       = 1 << 0
)

func (x *ProposalV2) validate(offersD bool) error {
	const message = "Proposal"
	switch {
	case x.Release > 15:
		return invalid(message, "release %d has more than 4 bits", x.Release)
	case len(x.UEIDs) > MaxUEIDs: // rule: TestValidate
		return invalid(message, "%d UEIDs, at most %d", len(x.UEIDs), MaxUEIDs)
	case offersD != (x.D != nil):
		return invalid(message, "SMC-Dv2 extension and types do not go together")
	case x.D != nil:
		if n := x.D.entries(); n > MaxISMEntries {
			return invalid(message, "%d ISM entries, at most %d", n, MaxISMEntries)
		}
		for _, d := range x.D.Devices {
			if d.GID.Lo != 0 && !d.CHID.IsEmulated() {
				return invalid(message, "Extended GID %v with CHID %v of a native ISM device", d.GID, d.CHID)
			}
		}
	}
	return nil
}

// entries returns the number of entries that all devices take together.
func (x *ProposalDv2) entries() int {
	n := 0
	for _, d := range x.Devices {
		n += d.Entries()
	}
	return n
}

func (x *ProposalV2) append(b []byte, offersD bool) []byte {
	var entries, flags byte
	var dv2Offset int
	if offersD {
		entries = byte(x.D.entries())
		dv2Offset = proposalV2Len - dv2OffsetEnd + len(x.UEIDs)*eidLen
		if x.D.HasSEID {
			flags |= flagSEID
		}
	}
	b = append(b, byte(len(x.UEIDs)), entries, 0, byte(x.Release)<<4|flags, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(dv2Offset))
	b = append(b, x.GID[:]...)
	if x.Release > Release0 {
		b = append(b, x.MaxConns, x.MaxLinks)
		b = binary.BigEndian.AppendUint16(b, uint16(x.Features))
	} else {
		b = appendZeros(b, 4)
	}
	b = appendZeros(b, 12)
	for _, e := range x.UEIDs {
		b = append(b, e[:]...)
	}
	if offersD {
		b = x.D.append(b)
	}
	return b
}

func (x *ProposalDv2) append(b []byte) []byte {
	if x.HasSEID {
		b = append(b, x.SEID[:]...)
	} else {
		b = appendZeros(b, eidLen)
	}
	b = appendZeros(b, 16)
	for _, d := range x.Devices {
		b = binary.BigEndian.AppendUint64(b, d.GID.Hi)
		b = binary.BigEndian.AppendUint16(b, uint16(d.CHID))
		if d.CHID.IsEmulated() {
			b = binary.BigEndian.AppendUint64(b, d.GID.Lo)
			b = binary.BigEndian.AppendUint16(b, uint16(d.CHID))
		}
	}
	return b
}

// parseProposalV2 decodes the extension at start.
func parseProposalV2(r reader, start int, offersD bool) (*ProposalV2, error) {
	head, ok := r.at(start, proposalV2Len)
	if !ok {
		return nil, r.fail("v2 offset", 50)
	}
	ueids, entries := int(head[0]), int(head[1])
	array, ok := r.at(start+proposalV2Len, ueids*eidLen)
	if ueids > MaxUEIDs || !ok { // rule: TestLies
		return nil, r.fail("number of UEIDs", start)
	}
	if entries > MaxISMEntries { // rule: TestNineEntries
		return nil, r.fail("number of ISM entries", start+1)
	}
	x := &ProposalV2{Release: Release(head[3] >> 4), GID: wire.GID(head[8:24])}
	if x.Release > Release0 {
		x.MaxConns, x.MaxLinks = head[24], head[25]
		x.Features = Features(binary.BigEndian.Uint16(head[26:]))
	}
	if ueids > 0 {
		x.UEIDs = make([]wire.EID, ueids)
		for i := range x.UEIDs {
			x.UEIDs[i] = wire.EID(array[i*eidLen:][:eidLen])
		}
	}
	if !offersD {
		return x, nil
	}
	dv2Offset := int(binary.BigEndian.Uint16(head[6:]))
	if dv2Offset == 0 {
		if entries > 0 {
			return nil, r.fail("number of ISM entries", start+1)
		}
		return x, nil
	}
	dv2Start := start + dv2OffsetEnd + dv2Offset
	if dv2Start < start+proposalV2Len+ueids*eidLen {
		return nil, r.fail("SMC-Dv2 offset", start+6)
	}
	hasSEID := head[3]&flagSEID != 0
	var err error
	if x.D, err = parseProposalDv2(r, start, dv2Start, entries, hasSEID); err != nil {
		return nil, err
	}
	return x, nil
}

// parseProposalDv2 decodes the extension at start with its number of entries, which was said at
// v2Start.
func parseProposalDv2(r reader, v2Start, start, entries int, hasSEID bool) (*ProposalDv2, error) {
	head, ok := r.at(start, proposalDv2Len)
	if !ok {
		return nil, r.fail("SMC-Dv2 offset", v2Start+6)
	}
	array, ok := r.at(start+proposalDv2Len, entries*ismEntryLen)
	if !ok {
		return nil, r.fail("number of ISM entries", v2Start+1)
	}
	x := &ProposalDv2{HasSEID: hasSEID}
	if hasSEID {
		x.SEID = wire.EID(head[:eidLen])
	}
	for i := 0; i < entries; i++ {
		gid, chid := ismEntry(array, i)
		d := ISMDevice{GID: wire.ISMGID{Hi: gid}, CHID: chid}
		if chid.IsEmulated() {
			i++
			if i == entries { // rule: TestLies
				return nil, r.fail("ISM entry", start+proposalDv2Len+(i-1)*ismEntryLen)
			}
			lo, again := ismEntry(array, i)
			if again != chid { // rule: TestLies
				return nil, r.fail("ISM entry", start+proposalDv2Len+i*ismEntryLen)
			}
			d.GID.Lo = lo
		}
		x.Devices = append(x.Devices, d)
	}
	return x, nil
}

// ismEntry returns entry i of the array.
func ismEntry(array []byte, i int) (gid uint64, chid wire.CHID) {
	e := array[i*ismEntryLen:][:ismEntryLen]
	return binary.BigEndian.Uint64(e), wire.CHID(binary.BigEndian.Uint16(e[8:]))
}

// text appends the extension's part of the Proposal's String.
func (x *ProposalV2) text(s *strings.Builder) {
	fmt.Fprintf(s, " release=%d", x.Release)
	if !x.GID.IsZero() {
		fmt.Fprintf(s, " gid=%v", x.GID)
	}
	fmt.Fprintf(s, " max-conns=%d max-links=%d features=%#04x ueids=%q", x.MaxConns, x.MaxLinks,
		uint16(x.Features), x.UEIDs)
	if x.D == nil {
		return
	}
	if x.D.HasSEID {
		fmt.Fprintf(s, " seid=%q", x.D.SEID.String())
	}
	s.WriteString(" devices=[")
	for i, d := range x.D.Devices {
		if i > 0 {
			s.WriteByte(' ')
		}
		fmt.Fprintf(s, "%v/%v", d.CHID, d.GID)
	}
	s.WriteByte(']')
}
