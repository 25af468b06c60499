package clc

import "github.com/gosmc/smc/wire"

// An Accept is the server's answer to a [Proposal]: it chooses one SMC type and version, and says
// how the server's receive buffer can be reached.
//
// The client answers with a [Confirm] of the same layout; both are described here. Exactly one of
// R and D is set.
//
// SMC-R:
//
//	offset  size  field
//	     0     4  eyecatcher      "SMCR" in EBCDIC: e2 d4 c3 d9
//	     4     1  type            0x02 Accept, 0x03 Confirm
//	     5     2  length
//	     7     1  flags           version (4 bits), first contact (1), reason kept (1), SMC type 0 (2)
//	     8    56  parameters      see [ParamsR]
//	    64    32  EID             version 2 only, as all that follows
//	    96     8  reserved
//	   104     f  FCE             on first contact; 36 bytes in release 0, 52 in release 1; see [FCE]
//	   156   4+n  client's GIDs   in a Confirm on first contact; see [Confirm]
//	   end     4  eyecatcher      as at offset 0
//
// SMC-D:
//
//	offset  size  field
//	     0     4  eyecatcher      "SMCD" in EBCDIC: e2 d4 c3 c4
//	     4     1  type            0x02 Accept, 0x03 Confirm
//	     5     2  length
//	     7     1  flags           version (4 bits), first contact (1), reserved (1), SMC type 1 (2)
//	     8    24  parameters      see [ParamsD]
//	    32    12  reserved        version 1 only: the final eyecatcher follows
//	    32     2  CHID            version 2 only, as all that follows
//	    34    32  EID
//	    66     8  GID, part 2     of an Emulated-ISM device, else zero
//	    74     f  FCE             on first contact; 36 bytes in release 0, 52 in release 1; see [FCE]
//	   end     4  eyecatcher      as at offset 0
//
// A version 1 message has exactly 68 bytes (SMC-R) or 48 (SMC-D). A version 2 message may be
// longer than described, and is then read without its tail.
//
// Layout: RFC 7609 p.98, SMCv2 pp.63, 66.
type Accept struct {
	Version      Version
	FirstContact bool // the server made a new link group for this connection
	R            *ParamsR
	D            *ParamsD
	EID          wire.EID // the server's choice; version 2 only
	FCE          *FCE     // version 2 only: set if and only if FirstContact

	// ReasonKept is "SMC Type RC Saved": the client offered SMC-D too, and the server knows why it
	// did not take that; ask its operator. SMC-R in version 2 only. Linux net/smc neither sends
	// nor reads it. SMCv2 p.66.
	ReasonKept bool
}

// Type returns [TypeAccept].
func (a Accept) Type() Type { return TypeAccept }

// Validate implements [Message].
func (a Accept) Validate() error {
	if a.ReasonKept && (a.R == nil || a.Version != V2) {
		return invalid("Accept", "a reason why it is not SMC-D, and it is not SMC-R in version 2")
	}
	return validateExchange(a.exchange(), TypeAccept)
}

// Append implements [Message].
func (a Accept) Append(b []byte) []byte {
	mustValidate(a)
	start := len(b)
	b = appendExchange(b, a.exchange(), TypeAccept)
	if a.ReasonKept {
		b[start+flagsOffset] |= flagReasonKept // rule: TestVectors
	}
	return b
}

// ParseAccept decodes the Accept at the start of b. A reserved SMC type, and on first contact a
// reserved MTU, is answered with [wire.ErrReservedEnum]. Errors are of type [*wire.DecodeError].
func ParseAccept(b []byte) (Accept, error) {
	c, err := parseExchange("clc.Accept", TypeAccept, b)
	if err != nil {
		return Accept{}, err
	}
	return Accept{
		Version: c.Version, FirstContact: c.FirstContact, R: c.R, D: c.D, EID: c.EID, FCE: c.FCE,
		ReasonKept: c.R != nil && c.Version > V1 && b[flagsOffset]&flagReasonKept != 0, // rule: TestReserved: c.R != nil -> true
	}, nil
}

// String implements [Message].
func (a Accept) String() string {
	s := a.exchange().text(TypeAccept)
	if a.ReasonKept {
		s += " reason-kept"
	}
	return s
}

// exchange returns a as the Confirm with the same contents, for the code that both have in common.
func (a Accept) exchange() Confirm {
	return Confirm{
		Version: a.Version, FirstContact: a.FirstContact, R: a.R, D: a.D, EID: a.EID, FCE: a.FCE,
	}
}
