package clc

import "github.com/gosmc/smc/wire"

// A Confirm is the client's answer to an [Accept], and has the same layout: it says how the
// client's receive buffer can be reached. Exactly one of R and D is set.
//
// On first contact of SMC-R in version 2 it also lists the addresses that the client can use for
// further links, the address of this first link first:
//
//	offset  size  field
//	   156     1  number of GIDs  1 to 8
//	   157     3  reserved
//	   160  16*n  GIDs
//
// The list is at offset 156 in every release: in release 0 the FCE has 36 bytes, and 16 reserved
// bytes follow it.
//
// Layout: RFC 7609 p.102, SMCv2 pp.70, 73, 76.
type Confirm struct {
	Version      Version
	FirstContact bool // version 2 only: RFC 7609 p.102 has no such flag in a Confirm
	R            *ParamsR
	D            *ParamsD
	EID          wire.EID // as in the Accept; version 2 only
	FCE          *FCE     // version 2 only: set if and only if FirstContact

	// ClientGIDs has 1 to 8 addresses in an SMC-R version 2 Confirm on first contact, and is
	// nil in all others. It is also nil in a received one that ends before the list.
	ClientGIDs []wire.GID
}

// MaxClientGIDs is the largest number of GIDs in a Confirm: SMCv2 pp.76-77, note 3.
const MaxClientGIDs = 8

// Type returns [TypeConfirm].
func (c Confirm) Type() Type { return TypeConfirm }

// Validate implements [Message].
func (c Confirm) Validate() error { return validateExchange(c, TypeConfirm) }

// Append implements [Message].
func (c Confirm) Append(b []byte) []byte {
	mustValidate(c)
	return appendExchange(b, c, TypeConfirm)
}

// ParseConfirm decodes the Confirm at the start of b. A reserved SMC type, and on first contact a
// reserved MTU, is answered with [wire.ErrReservedEnum]; in version 1, where a Confirm does not say
// whether it is a first contact, the caller has to look at [wire.MTU.Valid]. Errors are of type
// [*wire.DecodeError].
func ParseConfirm(b []byte) (Confirm, error) { return parseExchange("clc.Confirm", TypeConfirm, b) }

// String implements [Message].
func (c Confirm) String() string { return c.text(TypeConfirm) }
