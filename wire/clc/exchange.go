package clc

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/gosmc/smc/wire"
)

// This file has the code that [Accept] and [Confirm] share. An Accept is handled as a Confirm
// without a list of GIDs.

const (
	acceptRV1Len     = 68
	acceptDV1Len     = 48
	acceptRV2Len     = 108 // without FCE
	acceptDV2Len     = 78  // without FCE
	fceROffset       = 104
	fceDOffset       = 74
	gidListOffset    = 156
	gidsOffset       = 160
	gidLen           = 16
	flagsOffset      = 7
	flagFirstContact = 1 << 3
	flagReasonKept   = 1 << 2 // of an Accept
)

func validateExchange(c Confirm, t Type) error {
	message := t.String()
	needsGIDs := t == TypeConfirm && c.R != nil && c.FCE != nil
	switch {
	case c.Version != V1 && c.Version != V2:
		return invalid(message, "version %d", c.Version)
	case (c.R == nil) == (c.D == nil):
		return invalid(message, "not exactly one of R and D is set")
	case c.Version == V1 && c.FCE != nil:
		return invalid(message, "FCE in version 1")
	case c.Version == V2 && c.FirstContact != (c.FCE != nil):
		return invalid(message, "FCE and first contact do not go together")
	case needsGIDs && (len(c.ClientGIDs) == 0 || len(c.ClientGIDs) > MaxClientGIDs): // rule: TestValidate
		return invalid(message, "%d client GIDs, need 1 to %d", len(c.ClientGIDs), MaxClientGIDs)
	case !needsGIDs && len(c.ClientGIDs) > 0:
		return invalid(message, "client GIDs without first contact of SMC-R version 2")
	}
	if c.FCE != nil {
		if err := c.FCE.validate(message); err != nil {
			return err
		}
	}
	if c.R != nil {
		return c.R.validate(message)
	}
	return c.D.validate(message, c.Version)
}

// appendExchange appends a message that validateExchange has found to be good.
func appendExchange(b []byte, c Confirm, t Type) []byte {
	var flags byte
	if c.FirstContact && (c.Version > V1 || t == TypeAccept) {
		flags |= flagFirstContact
	}
	if c.R != nil {
		return appendExchangeR(b, c, t, flags)
	}
	return appendExchangeD(b, c, t, flags)
}

func appendExchangeR(b []byte, c Confirm, t Type, flags byte) []byte {
	start := len(b)
	b = begin(b, eyecatcherSMCR, t, c.Version, flags|byte(TypesR))
	b = c.R.append(b)
	if c.Version > V1 {
		b = append(b, c.EID[:]...)
		b = appendZeros(b, 8)
	}
	if c.FCE != nil {
		b = c.FCE.append(b, true)
	}
	if len(c.ClientGIDs) > 0 {
		b = appendZeros(b, gidListOffset-(len(b)-start)) // none in release 1
		b = append(b, byte(len(c.ClientGIDs)), 0, 0, 0)
		for _, g := range c.ClientGIDs {
			b = append(b, g[:]...)
		}
	}
	return end(b, start, eyecatcherSMCR)
}

func appendExchangeD(b []byte, c Confirm, t Type, flags byte) []byte {
	start := len(b)
	b = begin(b, eyecatcherSMCD, t, c.Version, flags|byte(TypesD))
	b = c.D.append(b)
	if c.Version == V1 {
		b = appendZeros(b, 12)
		return end(b, start, eyecatcherSMCD)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(c.D.CHID))
	b = append(b, c.EID[:]...)
	b = binary.BigEndian.AppendUint64(b, c.D.GID.Lo)
	if c.FCE != nil {
		b = c.FCE.append(b, false)
	}
	return end(b, start, eyecatcherSMCD)
}

func parseExchange(message string, t Type, b []byte) (Confirm, error) {
	fail := func(field string, offset int, err error) (Confirm, error) {
		return Confirm{}, &wire.DecodeError{Message: message, Field: field, Offset: offset, Err: err}
	}
	h, b, err := frame(message, t, b)
	if err != nil {
		return Confirm{}, err
	}
	c := Confirm{
		Version:      h.Version,
		FirstContact: h.flags&flagFirstContact != 0 && (h.Version > V1 || t == TypeAccept),
	}
	// body is the version 2 message without its final eyecatcher, fceOffset where its FCE starts.
	body := b[:h.Len-eyecatcherLen]
	var fceOffset int
	switch SMCTypes(h.flags & 3) {
	case TypesR:
		if !exchangeLenOK(h, acceptRV1Len, acceptRV2Len) {
			return fail("length", 5, wire.ErrLength)
		}
		c.R = parseParamsR(b)
		if c.FirstContact && !c.R.MTU.Valid() { // rule: TestLies
			return fail("MTU", 50, wire.ErrReservedEnum)
		}
		if c.Version > V1 {
			c.EID = wire.EID(b[64:96])
		}
		fceOffset = fceROffset
	case TypesD:
		if !exchangeLenOK(h, acceptDV1Len, acceptDV2Len) {
			return fail("length", 5, wire.ErrLength)
		}
		c.D = parseParamsD(b)
		if c.Version > V1 {
			c.D.CHID = wire.CHID(binary.BigEndian.Uint16(b[32:]))
			c.EID = wire.EID(b[34:66])
			if c.D.CHID.IsEmulated() { // rule: TestVectors
				c.D.GID.Lo = binary.BigEndian.Uint64(b[66:])
			}
		}
		fceOffset = fceDOffset
	case TypesNone, TypesBoth: // reserved here: only a Proposal has them
		return fail("SMC type", flagsOffset, wire.ErrReservedEnum) // rule: TestLies: wire.ErrReservedEnum -> wire.ErrValue
	}
	if c.Version == V1 || !c.FirstContact {
		return c, nil // an FCE without first contact is to be ignored: SMCv2 p.61
	}
	if len(body) < fceOffset+fceLen {
		return fail("length", 5, wire.ErrLength)
	}
	c.FCE = parseFCE(body[fceOffset:], c.R != nil)
	if t == TypeConfirm && c.R != nil && len(body) >= gidsOffset {
		n := int(body[gidListOffset])
		if n == 0 || n > MaxClientGIDs || len(body) < gidsOffset+n*gidLen { // rule: TestNineGIDs: n > MaxClientGIDs -> false
			return fail("number of GIDs", gidListOffset, wire.ErrValue)
		}
		c.ClientGIDs = make([]wire.GID, n)
		for i := range c.ClientGIDs {
			c.ClientGIDs[i] = wire.GID(body[gidsOffset+i*gidLen:][:gidLen])
		}
	}
	return c, nil
}

// exchangeLenOK reports whether the length fits: exactly v1Len in version 1, at least v2Len in
// version 2.
func exchangeLenOK(h Header, v1Len, v2Len int) bool {
	if h.Version == V1 {
		return h.Len == v1Len // rule: TestLengths: h.Len == v1Len -> h.Len >= v1Len
	}
	return h.Len >= v2Len
}

// text is String of both messages.
func (c Confirm) text(t Type) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%v v%d", t, c.Version)
	if c.FirstContact {
		s.WriteString(" first-contact")
	}
	if p := c.R; p != nil {
		fmt.Fprintf(&s, " SMC-R peer=%v gid=%v mac=%v qpn=%v psn=%v rkey=%v rmbe=%d token=%v size=%v mtu=%v addr=%#x",
			p.PeerID, p.GID, p.MAC, p.QPN, p.PSN, p.RKey, p.RMBEIndex, p.AlertToken, p.RMBESize, p.MTU, p.RMBAddr)
	}
	if p := c.D; p != nil {
		fmt.Fprintf(&s, " SMC-D gid=%v chid=%v token=%v dmbe=%d size=%v link=%v",
			p.GID, p.CHID, p.Token, p.DMBEIndex, p.DMBESize, p.LinkID)
	}
	if c.Version > V1 {
		fmt.Fprintf(&s, " eid=%q", c.EID.String())
	}
	if f := c.FCE; f != nil {
		fmt.Fprintf(&s, " os=%v release=%d host=%q features=%#04x", f.OS, f.Release, f.HostName,
			uint16(f.Features))
		if c.R != nil {
			fmt.Fprintf(&s, " direct=%t max-conns=%d max-links=%d", f.Direct, f.MaxConns, f.MaxLinks)
		}
		if f.VendorOptions != ([4]byte{}) {
			fmt.Fprintf(&s, " vendor=%x", f.VendorOptions)
		}
	}
	if c.ClientGIDs != nil {
		fmt.Fprintf(&s, " gids=%v", c.ClientGIDs)
	}
	return s.String()
}
