// Package llc encodes and decodes the Link Layer Control messages, with which the two hosts of an
// SMC-R link group set up links, take them down, test them, and tell each other of receive buffers:
// all messages of version 1, 44 bytes each, and of version 2, some of which are longer.
//
// A message is the payload of one SEND on a queue pair of the link group, as are the messages of
// package cdc. The first byte tells them apart: cdc.TypeMessage is none of the types here.
//
// Encoded messages have the form that Linux accepts. Decoded messages may come from any Linux, z/OS
// or AIX, see [Form], and are not to be trusted: the parsers check lengths and counts, and nothing
// else. The reader has to check the links, queue pairs and buffers that a message names.
package llc

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A Type says which message it is. In version 2 the byte on the wire also has the version.
type Type uint8

// All message types: RFC 7609 pp.108-124, SMCv2 p.81. 5 exists in version 2 only, 3 and 8 in
// version 1 only.
const (
	TypeConfirmLink     Type = 1
	TypeAddLink         Type = 2
	TypeAddLinkCont     Type = 3
	TypeDeleteLink      Type = 4
	TypeRequestAddLink  Type = 5
	TypeConfirmRKey     Type = 6
	TypeTestLink        Type = 7
	TypeConfirmRKeyCont Type = 8
	TypeDeleteRKey      Type = 9
)

// String returns the specification's name, such as "CONFIRM LINK".
func (t Type) String() string {
	switch t {
	case TypeConfirmLink:
		return "CONFIRM LINK"
	case TypeAddLink:
		return "ADD LINK"
	case TypeAddLinkCont:
		return "ADD LINK CONTINUATION"
	case TypeDeleteLink:
		return "DELETE LINK"
	case TypeRequestAddLink:
		return "REQUEST ADD LINK"
	case TypeConfirmRKey:
		return "CONFIRM RKEY"
	case TypeTestLink:
		return "TEST LINK"
	case TypeConfirmRKeyCont:
		return "CONFIRM RKEY CONTINUATION"
	case TypeDeleteRKey:
		return "DELETE RKEY"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// In reports whether version 1 or version 2 has the type: SMCv2 p.81.
func (t Type) In(version int) bool {
	switch t {
	case TypeConfirmLink, TypeAddLink, TypeDeleteLink, TypeConfirmRKey, TypeTestLink, TypeDeleteRKey:
		return version == 1 || version == 2
	case TypeAddLinkCont, TypeConfirmRKeyCont:
		return version == 1
	case TypeRequestAddLink:
		return version == 2
	}
	return false
}

// A Form is how a message is laid out: in which version, and for version 2 in which byte order two
// of its fields are, the length and the number of RKeys in ADD LINK. Everything else is big-endian.
//
// SMCv2 has these two big-endian as well. Linux net/smc has them in the byte order of its machine,
// and reads as it writes: it takes the length in either order for a good one, but finds no RKeys
// where their number is in the other. So a sender should use the form in which the peer's first
// message came, which is a CONFIRM LINK.
type Form uint8

// All forms. The zero Form has no encoding.
const (
	V1       Form = 1 // version 1
	V2       Form = 2 // version 2 as specified: z/OS, AIX, Linux on s390x
	V2Little Form = 3 // version 2 as Linux on little-endian machines has it
)

// Version returns 1 or 2, and 0 for a value that is not defined.
func (f Form) Version() int {
	switch f {
	case V1:
		return 1
	case V2, V2Little:
		return 2
	}
	return 0
}

// String returns "v1", "v2" or "v2-little-endian".
func (f Form) String() string {
	switch f {
	case V1:
		return "v1"
	case V2:
		return "v2"
	case V2Little:
		return "v2-little-endian"
	}
	return fmt.Sprintf("form %d", uint8(f))
}

// putUint16 puts one of the two fields that have a byte order at the start of b.
func (f Form) putUint16(b []byte, v uint16) {
	if f == V2Little {
		binary.LittleEndian.PutUint16(b, v)
	} else {
		binary.BigEndian.PutUint16(b, v)
	}
}

// A Header is the start of every message. In version 1:
//
//	offset  size  field
//	     0     1  type        0x01 to 0x09
//	     1     1  length      44
//	     2     1  reserved    (4 bits), reason of ADD LINK (4)
//	     3     1  flags       reply (1 bit), then as the message says
//
// In version 2:
//
//	offset  size  field
//	     0     1  type        unsupported (1 bit), version (3): 2, type (4): 0x21 to 0x29
//	     1     2  length      44 to 8192; its byte order is the [Form]
//	     3     1  flags       reply (1 bit), then as the message says
//
// Messages are padded with zeros to 44 bytes. Reserved bits are sent as zero and not checked on
// receipt.
//
// Layout: RFC 7609 p.107, SMCv2 p.80.
type Header struct {
	Form  Form
	Reply bool // else it is a request
}

// Head returns h. All messages have it from the Header that they contain.
func (h Header) Head() Header { return h }

// describe returns the start of a message's line for traces.
func (h Header) describe(t Type) string {
	kind := "request"
	if h.Reply {
		kind = "reply"
	}
	return fmt.Sprintf("%v %s %v", t, kind, h.Form)
}

const (
	// MinLen is the length in bytes of all messages of version 1, and of most of version 2.
	MinLen = 44
	// MaxLen is the largest message of version 2 and the size of the buffer that a host has for
	// receiving it, in bytes: SMCv2 p.80. The largest that has an encoding is an ADD LINK with
	// [MaxRKeys], of 4152 bytes.
	MaxLen = 8192
)

const (
	flagReply   = 0x80
	versionTwo  = 0x20 // in the first byte
	typeMask    = 0x0f
	versionMask = 0xf0
	reasonMask  = 0x0f // in the third byte of version 1, in the flags of version 2
)

// ErrOptional is the cause of a [wire.DecodeError] for a message which is not known here and "must
// silently" be discarded: the two high-order bits of its type are b'10'. The link stays good. Any
// other error means that the link is out of sync with the peer. RFC 7609 p.106, C.7.1.
//
// In version 2 the highest bit also says "type code unsupported" (SMCv2 p.80), of a type that the
// other bits have. That no known host sends, and it calls for nothing either.
var ErrOptional = errors.New("optional message, to be discarded")

// ErrForeign is the cause of a [wire.DecodeError] for type 10, with which Linux kernels of
// OpenAnolis tell of receive credits. It is a [wire.ErrType], as it is in no specification; but to
// take the link for out of sync would cost those hosts their connections, and nothing is lost by
// discarding it, as Linux net/smc does with any type that it does not know.
var ErrForeign = fmt.Errorf("another vendor's message, to be discarded: %w", wire.ErrType)

// typeCredits is the type of [ErrForeign].
const typeCredits Type = 10

// A Message is one of [ConfirmLink], [AddLink], [AddLinkCont], [DeleteLink], [RequestAddLink],
// [ConfirmRKey], [ConfirmRKeyCont], [DeleteRKey] and [TestLink]. It is a value: it shares no memory
// with the bytes it was parsed from.
type Message interface {
	// Type returns the message type.
	Type() Type
	// Head returns the form, and whether it is a reply.
	Head() Header
	// Append appends the encoded message to b and returns the extended slice. Fields that the
	// message does not have in its version, or as a request or a reply, are not sent. Append
	// panics where Validate would return an error: check a message made from somebody else's
	// values first.
	Append(b []byte) []byte
	// Validate returns an error if the message has no encoding, such as for a count above the
	// maximum. A message which was parsed may lack parts that we must send.
	Validate() error
	// String returns one line for traces.
	String() string
}

// Parse decodes the message in b, which is the payload of one SEND. The type says which version it
// is: hosts accept both on any link. Bytes after a message of 44 bytes are left alone; a longer one
// has to fill its SEND, for its length can be read in two ways.
//
// In version 2 "all LLC messages are either exactly (padded to) 44 bytes ... or variable length greater
// than 44 bytes" (SMCv2 p.81, note 3). A message of the first kind that is longer all the same is read
// without its tail: Linux net/smc reads it so, a later release may add fields there as releases
// have done before, and to refuse it would cost the link for bytes that nobody asks for.
//
// Errors are of type [*wire.DecodeError]. [ErrOptional] among them means that the message is to be
// discarded. A type that does not exist in its version is [wire.ErrType], as is a CDC message, and a
// version above 2 is [wire.ErrVersion]; Linux net/smc ignores all of these.
func Parse(b []byte) (Message, error) {
	_, t, _, err := parseHeader("llc.Header", b)
	if err != nil {
		return nil, err
	}
	var m Message
	switch t {
	case TypeConfirmLink:
		m, err = ParseConfirmLink(b)
	case TypeAddLink:
		m, err = ParseAddLink(b)
	case TypeAddLinkCont:
		m, err = ParseAddLinkCont(b)
	case TypeDeleteLink:
		m, err = ParseDeleteLink(b)
	case TypeRequestAddLink:
		m, err = ParseRequestAddLink(b)
	case TypeConfirmRKey:
		m, err = ParseConfirmRKey(b)
	case TypeTestLink:
		m, err = ParseTestLink(b)
	case TypeConfirmRKeyCont:
		m, err = ParseConfirmRKeyCont(b)
	case TypeDeleteRKey:
		m, err = ParseDeleteRKey(b)
	default:
		panic("llc: impossible " + t.String())
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// parseHeader decodes the header of the message in b, and returns it with the type and with exactly
// the message's bytes, which are at least MinLen.
func parseHeader(message string, b []byte) (Header, Type, []byte, error) {
	fail := func(field string, offset int, err error) (Header, Type, []byte, error) {
		return Header{}, 0, nil, &wire.DecodeError{Message: message, Field: field, Offset: offset, Err: err}
	}
	if len(b) == 0 {
		return fail("message", 0, wire.ErrTruncated)
	}
	var h Header
	t := Type(b[0] & typeMask)
	switch {
	// rule: TestFirstByte
	case b[0]>>6 == 0b10: // with any other bits
		return fail("type", 0, ErrOptional)
	case b[0]>>6 == 0b11: // CDC
		return fail("type", 0, wire.ErrType)
	case b[0]&versionMask == 0:
		h.Form = V1
	case b[0]&versionMask == versionTwo:
		h.Form = V2 // or V2Little
	default:
		return fail("version", 0, wire.ErrVersion)
	}
	switch {
	case t == typeCredits: // rule: TestForeign
		return fail("type", 0, ErrForeign)
	case !t.In(h.Form.Version()): // rule: TestFirstByte
		return fail("type", 0, wire.ErrType)
	case len(b) < MinLen:
		return fail("message", len(b), wire.ErrTruncated)
	}
	h.Reply = b[3]&flagReply != 0
	if h.Form == V1 {
		if b[1] != MinLen { // rule: TestLies
			return fail("length", 1, wire.ErrLength)
		}
		return h, t, b[:MinLen], nil
	}
	big, little := int(binary.BigEndian.Uint16(b[1:])), int(binary.LittleEndian.Uint16(b[1:]))
	// rule: TestLongerFixed: n == len(b) -> false
	fits := func(n int) bool { return n == MinLen || MinLen < n && n <= MaxLen && n == len(b) }
	beyond := func(n int) bool { return len(b) < n && n <= MaxLen }
	switch {
	case fits(big):
		return h, t, b[:big], nil
	case fits(little):
		h.Form = V2Little
		return h, t, b[:little], nil
	case beyond(big) || beyond(little):
		return fail("message", len(b), wire.ErrTruncated)
	}
	return fail("length", 1, wire.ErrLength)
}

// frame cuts the message of type want out of b, checks its header, and returns the header, exactly
// the message's bytes, and the function that makes its errors.
func frame(message string, want Type, b []byte) (Header, []byte, failure, error) {
	fail := func(field string, offset int, err error) error {
		return &wire.DecodeError{Message: message, Field: field, Offset: offset, Err: err}
	}
	h, t, b, err := parseHeader(message, b)
	if err == nil && t != want {
		err = fail("type", 0, wire.ErrType)
	}
	return h, b, fail, err
}

// A failure makes the error of one message's parser.
type failure func(field string, offset int, err error) error

// begin appends MinLen bytes to b: a header and zeros. It returns the extended slice, and in it the
// bytes of the message.
func begin(b []byte, t Type, h Header, flags byte) (all, message []byte) {
	if h.Reply {
		flags |= flagReply
	}
	var e [MinLen]byte
	e[0], e[1], e[3] = byte(t), MinLen, flags
	if h.Form.Version() == 2 {
		e[0] |= versionTwo
		h.Form.putUint16(e[1:], MinLen)
	}
	all = append(b, e[:]...)
	return all, all[len(b):]
}

// end sets the length of the version 2 message that starts at b[start], and pads it to MinLen.
func end(b []byte, start int, f Form) []byte {
	for len(b)-start < MinLen {
		b = append(b, 0)
	}
	f.putUint16(b[start+1:], uint16(len(b)-start))
	return b
}

// putUint24 puts the lower 24 bits of v at the start of b.
func putUint24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

// uint24 returns the 24-bit number at the start of b.
func uint24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// valid returns an error if a header has no encoding for messages of type t.
func (h Header) valid(t Type) error {
	switch version := h.Form.Version(); {
	case version == 0:
		return invalid(t, "%v", h.Form)
	case !t.In(version):
		return invalid(t, "it is not in version %d", version)
	}
	return nil
}

// invalid is the error of a message that has no encoding.
func invalid(t Type, format string, args ...any) error {
	return fmt.Errorf("llc: impossible %v: %w", t, fmt.Errorf(format, args...))
}

// mustValidate panics if m cannot be encoded: the caller that built it broke its documented rules.
func mustValidate(m Message) {
	if err := m.Validate(); err != nil {
		panic(err.Error())
	}
}
