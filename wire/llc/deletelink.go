package llc

import (
	"encoding/binary"
	"fmt"
)

// A DeleteLink ends a link, or the link group. From the server it is the request, which the client
// replies to. From the client it is a notice: the server answers with a request of its own.
// Linux net/smc as a client sends no reply to a request for all links, but a request for all.
//
//	offset  size  field
//	     0     4  header           see [Header]; type 4
//	     3     1  flags            reply (1 bit), all (1), orderly (1), reserved (5)
//	     4     1  link number      0 with the flag all
//	     5     4  reason
//	     9    35  reserved
//
// Layout: RFC 7609 pp.115-117, SMCv2 p.90.
type DeleteLink struct {
	Header
	All     bool // all links, and with them the link group
	Orderly bool // nothing is broken: "generally caused by an operator command"
	Link    LinkNum
	Reason  DeleteReason
}

// A DeleteReason says why a link ends, or in a reply why the request is wrong. Zero in a reply
// means that it is not wrong.
type DeleteReason uint32

// All reasons: RFC 7609 pp.116-117. The last is Linux net/smc's, which defines it but does not send
// it.
const (
	DeleteLostPath   DeleteReason = 0x00010000 // the path does not work
	DeleteOperator   DeleteReason = 0x00020000 // an operator wants it
	DeleteProgram    DeleteReason = 0x00030000 // a program wants it: no connection is left
	DeleteViolation  DeleteReason = 0x00040000 // the peer broke the LLC protocol
	DeleteAsymmetric DeleteReason = 0x00050000 // an asymmetric link is no longer needed

	DeleteUnknownLink  DeleteReason = 0x00100000 // reply: there is no such link
	DeleteUnknownGroup DeleteReason = 0x00200000 // reply: there is no such link group
)

// String returns a few words and the number.
func (r DeleteReason) String() string {
	words := "unknown reason"
	switch r {
	case 0:
		words = "no reason"
	case DeleteLostPath:
		words = "lost path"
	case DeleteOperator:
		words = "operator initiated"
	case DeleteProgram:
		words = "program initiated"
	case DeleteViolation:
		words = "protocol violation"
	case DeleteAsymmetric:
		words = "asymmetric link no longer needed"
	case DeleteUnknownLink:
		words = "unknown link"
	case DeleteUnknownGroup:
		words = "unknown link group"
	}
	return fmt.Sprintf("%s (0x%08x)", words, uint32(r))
}

const (
	flagAll     = 0x40
	flagOrderly = 0x20
)

// Type returns [TypeDeleteLink].
func (d DeleteLink) Type() Type { return TypeDeleteLink }

// Validate implements [Message].
func (d DeleteLink) Validate() error { return d.valid(TypeDeleteLink) }

// Append implements [Message]. The encoding has 44 bytes. With All, Link is not sent.
func (d DeleteLink) Append(b []byte) []byte {
	mustValidate(d)
	var flags byte
	if d.Orderly {
		flags |= flagOrderly // rule: TestVectors
	}
	if d.All {
		flags |= flagAll
		d.Link = 0 // rule: TestNotSent
	}
	b, e := begin(b, TypeDeleteLink, d.Header, flags)
	e[4] = byte(d.Link)                                 // rule: TestVectors
	binary.BigEndian.PutUint32(e[5:], uint32(d.Reason)) // rule: TestVectors
	return b
}

// ParseDeleteLink decodes the DELETE LINK in b, see [Parse].
// Errors are of type [*wire.DecodeError].
func ParseDeleteLink(b []byte) (DeleteLink, error) {
	h, b, _, err := frame("llc.DeleteLink", TypeDeleteLink, b)
	if err != nil {
		return DeleteLink{}, err
	}
	d := DeleteLink{
		Header:  h,
		All:     b[3]&flagAll != 0,
		Orderly: b[3]&flagOrderly != 0,
		Reason:  DeleteReason(binary.BigEndian.Uint32(b[5:])),
	}
	// rule: TestReserved
	if !d.All { // else "this field has no meaning"
		d.Link = LinkNum(b[4])
	}
	return d, nil
}

// String implements [Message].
func (d DeleteLink) String() string {
	s := d.describe(TypeDeleteLink)
	if d.All {
		s += " all"
	} else {
		s += fmt.Sprintf(" link=%d", d.Link)
	}
	if d.Orderly {
		s += " orderly"
	}
	return fmt.Sprintf("%s reason=%v", s, d.Reason)
}
