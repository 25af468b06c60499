package llc

import (
	"fmt"

	"github.com/gosmc/smc/wire"
)

// An AddLink asks for a new link. The server sends the request over a link that exists, with its
// end of the new one; the client replies with its own end, or with a rejection. A request from a
// client, in version 1 only, just asks the server to send one; see [RequestAddLink] for version 2.
//
//	offset  size  field
//	     0     4  header           see [Header]; type 2
//	     2     1  version 1: reserved (4 bits), reason (4)
//	     3     1  flags            reply (1 bit), rejected (1), reserved (2), version 2: reason (4)
//	     4     6  MAC              of the sender's end of the new link, as are the next ones
//	    10     2  reserved
//	    12    16  GID
//	    28     3  QPN
//	    31     1  link number      of the new link
//	    32     1  reserved (4 bits), MTU (4)
//	    33     3  initial PSN
//	    36     8  reserved
//
// In version 2, unless it is a rejection, this follows:
//
//	44     1  direct (1 bit), reserved (7)
//	45     1  reserved
//	46    16  target GID
//	62     8  reserved
//	70     2  number of RKeys  in the byte order of the form
//	72    16  for each of them, see [RKeyPair]
//
// RFC 7609 p.109 has no gap after the MAC: in its picture the GID is at 10, and all that follows is
// 2 bytes earlier too. Linux net/smc has the gap in both versions, SMCv2 in the one that it
// describes; so do we.
//
// Linux net/smc sends a rejection as an echo of the request's first 44 bytes, in version 1 always
// with [RejectNoPath] and in version 2 without a reason.
//
// Layout: RFC 7609 pp.109-111, SMCv2 p.85.
type AddLink struct {
	Header
	Rejected bool         // in a reply: there will be no new link
	Reason   RejectReason // why it was rejected; 0 if the sender does not say
	MAC      wire.MAC     // next hop on a direct link, else informational
	GID      wire.GID
	QPN      wire.QPN
	Link     LinkNum // the server's choice, echoed by the client
	// MTU has 4 bits. One that is reserved is answered with [RejectMTU]: RFC 7609 C.7.1.
	MTU wire.MTU
	PSN wire.PSN

	// The rest is in version 2 only, and not in a rejection.

	Direct bool // in a reply: the peers share a subnet on the new link
	// TargetGID is the address, of those that the client has named, which the server would
	// like it to use; it may be zero. In a reply it counts for nothing. Linux net/smc sends
	// its own GID, and does not look at the peer's.
	TargetGID wire.GID
	RKeys     []RKeyPair // all RMBs of the sender, at most [MaxRKeys]; version 1 has [AddLinkCont]
	// Missing is how many RKeys more the message announces than it has. Linux net/smc counts
	// its connections, and may have fewer RMBs. It is not sent.
	Missing int
}

// A RejectReason says why there will be no new link, 4 bits.
type RejectReason uint8

// All reasons: RFC 7609 p.110.
const (
	RejectNoPath RejectReason = 1 // the client has no other RNIC, and the server's is not new
	RejectMTU    RejectReason = 2 // the MTU is a reserved value
)

// String returns a few words.
func (r RejectReason) String() string {
	switch r {
	case 0:
		return "no reason"
	case RejectNoPath:
		return "no alternate path available"
	case RejectMTU:
		return "invalid MTU value"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

const (
	flagRejected = 0x40 // in flags, of REQUEST ADD LINK too
	flagDirect   = 0x80 // in the version 2 flags
	mtuMask      = 0x0f
	addLinkV2Len = 72 // without RKeys
)

// outcome returns the flags for a rejection.
func outcome(rejected bool) byte {
	if rejected {
		return flagRejected
	}
	return 0
}

// hasV2 reports whether there is more than the 44 bytes.
func (a AddLink) hasV2() bool { return a.Form.Version() == 2 && !a.Rejected }

// Type returns [TypeAddLink].
func (a AddLink) Type() Type { return TypeAddLink }

// Validate implements [Message].
func (a AddLink) Validate() error {
	if err := a.valid(TypeAddLink); err != nil {
		return err
	}
	switch {
	case a.Rejected && !a.Reply:
		return invalid(TypeAddLink, "a request cannot reject")
	case a.Reason > reasonMask:
		return invalid(TypeAddLink, "reason %d has more than 4 bits", a.Reason)
	case a.QPN > wire.MaxQPN:
		return invalid(TypeAddLink, "QPN %v has more than 24 bits", a.QPN)
	case a.PSN > wire.MaxPSN:
		return invalid(TypeAddLink, "PSN %v has more than 24 bits", a.PSN)
	case a.MTU > mtuMask:
		return invalid(TypeAddLink, "MTU %d has more than 4 bits", uint8(a.MTU))
	case len(a.RKeys) > MaxRKeys:
		return invalid(TypeAddLink, "%d RKeys are more than %d", len(a.RKeys), MaxRKeys)
	case !a.Reply && a.isEmpty(): // rule: TestValidate
		return invalid(TypeAddLink, "a request of zeros")
	}
	return nil
}

// isEmpty reports whether the 40 bytes after the header would be zero. Linux net/smc takes such a
// request for one of its own.
func (a AddLink) isEmpty() bool {
	return a.MAC == wire.MAC{} && a.GID.IsZero() && a.QPN == 0 && a.Link == 0 && a.MTU == 0 && a.PSN == 0
}

// Append implements [Message]. The encoding has 44 bytes, or in version 2 72 and 16 for each RKey.
func (a AddLink) Append(b []byte) []byte {
	mustValidate(a)
	start := len(b)
	b, e := begin(b, TypeAddLink, a.Header, outcome(a.Rejected))
	if a.Rejected {
		if a.Form == V1 {
			e[2] = byte(a.Reason)
		} else {
			e[3] |= byte(a.Reason)
		}
	}
	copy(e[4:], a.MAC[:])
	copy(e[12:], a.GID[:])
	putUint24(e[28:], uint32(a.QPN))
	e[31] = byte(a.Link)             // rule: TestVectors
	e[32] = byte(a.MTU)              // rule: TestVectors
	putUint24(e[33:], uint32(a.PSN)) // rule: TestVectors
	if !a.hasV2() {
		return b
	}
	var direct byte
	if a.Direct {
		direct = flagDirect
	}
	b = append(b, direct, 0)
	b = append(b, a.TargetGID[:]...)
	b = append(b, make([]byte, 8+2)...)                  // reserved, number of RKeys
	a.Form.putUint16(b[len(b)-2:], uint16(len(a.RKeys))) // rule: TestVectors
	for _, p := range a.RKeys {
		b = p.append(b)
	}
	return end(b, start, a.Form)
}

// ParseAddLink decodes the ADD LINK in b, see [Parse]. In version 2 it accepts the number of RKeys
// in either byte order: of 1 to 255 only one is possible.
// Errors are of type [*wire.DecodeError].
func ParseAddLink(b []byte) (AddLink, error) {
	h, b, fail, err := frame("llc.AddLink", TypeAddLink, b)
	if err != nil {
		return AddLink{}, err
	}
	a := AddLink{
		Header:   h,
		Rejected: h.Reply && b[3]&flagRejected != 0,
		MAC:      wire.MAC(b[4:10]),
		GID:      wire.GID(b[12:28]),
		QPN:      wire.QPN(uint24(b[28:])),
		Link:     LinkNum(b[31]),
		MTU:      wire.MTU(b[32] & mtuMask),
		PSN:      wire.PSN(uint24(b[33:])),
	}
	switch {
	case a.Rejected && a.Form == V1:
		a.Reason = RejectReason(b[2] & reasonMask)
	case a.Rejected:
		a.Reason = RejectReason(b[3] & reasonMask)
	}
	switch {
	case !a.hasV2():
		return a, nil
	case len(b) < addLinkV2Len:
		return AddLink{}, fail("length", 1, wire.ErrLength)
	// rule: TestLies, TestFewerThanAnnounced
	case b[70] != 0 && b[71] != 0: // above 255 in either byte order
		return AddLink{}, fail("number of RKeys", 70, wire.ErrValue)
	}
	if b[1] == b[2] && b[70] != 0 { // a length that does not tell the byte order
		a.Form = V2Little
	}
	a.Direct = b[44]&flagDirect != 0
	a.TargetGID = wire.GID(b[46:62])
	count := int(b[70]) + int(b[71]) // one of them is zero
	present := min(count, (len(b)-addLinkV2Len)/rkeyPairLen)
	a.RKeys = parseRKeyPairs(b[addLinkV2Len:], present)
	a.Missing = count - present
	return a, nil
}

// String implements [Message].
func (a AddLink) String() string {
	s := a.describe(TypeAddLink)
	if a.Rejected {
		s += fmt.Sprintf(" rejected (%v)", a.Reason)
	}
	s += fmt.Sprintf(" link=%d gid=%v mac=%v qpn=%v psn=%v mtu=%v", a.Link, a.GID, a.MAC, a.QPN, a.PSN, a.MTU)
	if a.hasV2() {
		s += fmt.Sprintf(" direct=%v target=%v rkeys=%v", a.Direct, a.TargetGID, a.RKeys)
	}
	if a.Missing > 0 {
		s += fmt.Sprintf(" missing=%d", a.Missing)
	}
	return s
}

// An AddLinkCont tells where the sender's RMBs are on a link that ADD LINK has agreed on, two of
// them at a time. The server sends requests and the client replies until both have told of all
// theirs; the side that is done first sends messages with none. Version 1 only.
//
//	offset  size  field
//	     0     4  header           see [Header]; type 3
//	     4     1  link number      of the new link
//	     5     1  number of RKeys  that remain to be told of, with those here
//	     6     2  reserved
//	     8    16  RKey pair        see [RKeyPair]; zeros if there are no more
//	    24    16  RKey pair        likewise
//	    40     4  reserved
//
// Linux net/smc starts the count at the number of its connections. If it has fewer RMBs, it sends
// zeros in place of the others that the count announces.
//
// Layout: RFC 7609 pp.112-114.
type AddLinkCont struct {
	Header
	Link      LinkNum
	Remaining uint8      // RKeys to be told of, with those here
	RKeys     []RKeyPair // 2, or Remaining if that is less
}

const maxContRKeys = 2

// Type returns [TypeAddLinkCont].
func (a AddLinkCont) Type() Type { return TypeAddLinkCont }

// Validate implements [Message].
func (a AddLinkCont) Validate() error {
	if err := a.valid(TypeAddLinkCont); err != nil {
		return err
	}
	if want := min(int(a.Remaining), maxContRKeys); len(a.RKeys) != want {
		return invalid(TypeAddLinkCont, "%d RKeys where %d remain", len(a.RKeys), a.Remaining)
	}
	return nil
}

// Append implements [Message]. The encoding has 44 bytes.
func (a AddLinkCont) Append(b []byte) []byte {
	mustValidate(a)
	b, e := begin(b, TypeAddLinkCont, a.Header, 0)
	e[4], e[5] = byte(a.Link), a.Remaining // rule: TestVectors
	pairs := e[8:8]
	for _, p := range a.RKeys {
		pairs = p.append(pairs)
	}
	return b
}

// ParseAddLinkCont decodes the ADD LINK CONTINUATION in b, see [Parse].
// Errors are of type [*wire.DecodeError].
func ParseAddLinkCont(b []byte) (AddLinkCont, error) {
	h, b, _, err := frame("llc.AddLinkCont", TypeAddLinkCont, b)
	if err != nil {
		return AddLinkCont{}, err
	}
	return AddLinkCont{
		Header:    h,
		Link:      LinkNum(b[4]),
		Remaining: b[5],
		RKeys:     parseRKeyPairs(b[8:], min(int(b[5]), maxContRKeys)),
	}, nil
}

// String implements [Message].
func (a AddLinkCont) String() string {
	return fmt.Sprintf("%s link=%d remaining=%d rkeys=%v", a.describe(TypeAddLinkCont), a.Link,
		a.Remaining, a.RKeys)
}
