// Package clc encodes and decodes the Connection Layer Control messages, with which two hosts
// agree over a TCP connection to leave it for shared memory: [Proposal], [Accept], [Confirm] and
// [Decline], in versions 1, 2.0 and 2.1 of SMC-R and SMC-D. It also has the TCP option that comes
// before them, see [HasOption], and the catalogue of reasons for not using SMC, see [Lookup].
//
// To read one message from a stream, and not a byte more, read [HeaderLen] bytes, ask
// [ParseHeader] for the length, read the rest, and call [Parse].
//
// Encoded messages have the form that Linux accepts, which is stricter than the specifications.
// Decoded messages may come from any Linux, z/OS or AIX.
package clc

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A Type says which of the four messages it is.
type Type uint8

// All message types: RFC 7609 pp.95-105.
const (
	TypeProposal Type = 1
	TypeAccept   Type = 2
	TypeConfirm  Type = 3
	TypeDecline  Type = 4
)

// String returns the name of the message.
func (t Type) String() string {
	switch t {
	case TypeProposal:
		return "Proposal"
	case TypeAccept:
		return "Accept"
	case TypeConfirm:
		return "Confirm"
	case TypeDecline:
		return "Decline"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// A Version is the version of the SMC protocol, in the header of every message.
//
// Versions 3 to 15 do not exist; where one is received it is taken for version 2, as Linux
// net/smc does.
type Version uint8

// All versions.
const (
	V1 Version = 1
	V2 Version = 2
)

// A Release is the number after the dot in the version: 0 for SMCv2.0, 1 for SMCv2.1.
// It has 4 bits. A release above 1 is handed on as received; the lower of both hosts' counts.
type Release uint8

// All releases of version 2.
const (
	Release0 Release = 0
	Release1 Release = 1
)

// SMCTypes says which of SMC-R and SMC-D is offered or was chosen, in one version: 2 bits.
type SMCTypes uint8

// All values: SMCv2 p.53.
const (
	TypesR    SMCTypes = 0
	TypesD    SMCTypes = 1
	TypesNone SMCTypes = 2
	TypesBoth SMCTypes = 3
)

// MakeSMCTypes returns the value that offers SMC-R if r, and SMC-D if d.
func MakeSMCTypes(r, d bool) SMCTypes {
	switch {
	case r && d:
		return TypesBoth
	case r:
		return TypesR
	case d:
		return TypesD
	}
	return TypesNone
}

// HasR reports whether SMC-R is offered.
func (t SMCTypes) HasR() bool { return t == TypesR || t == TypesBoth }

// HasD reports whether SMC-D is offered.
func (t SMCTypes) HasD() bool { return t == TypesD || t == TypesBoth }

// String returns "R", "D", "none" or "R+D".
func (t SMCTypes) String() string {
	switch t {
	case TypesR:
		return "R"
	case TypesD:
		return "D"
	case TypesNone:
		return "none"
	case TypesBoth:
		return "R+D"
	}
	return fmt.Sprintf("types %d", uint8(t))
}

// An OS is the operating system of a message's sender, 4 bits. Reason codes depend on it.
type OS uint8

// All values: SMCv2 p.63. Version 1 hosts, which do not know the field, send zero.
const (
	OSUnspecified OS = 0
	OSZOS         OS = 1
	OSLinux       OS = 2
	OSAIX         OS = 3
	OSUnknown     OS = 15
)

// String returns the usual spelling of the name.
func (o OS) String() string {
	switch o {
	case OSUnspecified:
		return "unspecified"
	case OSZOS:
		return "z/OS"
	case OSLinux:
		return "Linux"
	case OSAIX:
		return "AIX"
	case OSUnknown:
		return "unknown"
	}
	return fmt.Sprintf("OS %d", uint8(o))
}

// Features is the mask of supplemental features of release 1. Bits without a name are reserved
// for features to come and are handed on as received.
type Features uint16

// FeatureEmulatedISM means: Emulated-ISM devices with Extended GIDs. SMCv2 p.57.
const FeatureEmulatedISM Features = 1 << 0

// A Message is one of [Proposal], [Accept], [Confirm] and [Decline]. It is a value: it shares
// no memory with the bytes it was parsed from.
type Message interface {
	// Type returns the message type.
	Type() Type
	// Append appends the encoded message to b and returns the extended slice. Fields that the
	// message's version and release do not define are not sent. Append panics where Validate
	// would return an error: check a message made from somebody else's values first.
	Append(b []byte) []byte
	// Validate returns an error if the message has no encoding, such as for a count above
	// the maximum. A message which was parsed may lack parts that we must send.
	Validate() error
	// String returns one line for traces.
	String() string
}

// Parse decodes the message at the start of b, of any type. Bytes after it are left alone.
// Errors are of type [*wire.DecodeError].
func Parse(b []byte) (Message, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return nil, err
	}
	var m Message
	switch h.Type {
	case TypeProposal:
		m, err = ParseProposal(b)
	case TypeAccept:
		m, err = ParseAccept(b)
	case TypeConfirm:
		m, err = ParseConfirm(b)
	case TypeDecline:
		m, err = ParseDecline(b)
	default:
		panic("clc: impossible " + h.Type.String())
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Eyecatchers, in EBCDIC. Every message starts and ends with one. Which of the two says nothing:
// receivers accept either one anywhere (Linux net/smc; SMCv2 pp.78-79, note 1).
const (
	eyecatcherSMCR = "\xe2\xd4\xc3\xd9"
	eyecatcherSMCD = "\xe2\xd4\xc3\xc4"
	eyecatcherLen  = 4
)

const (
	// HeaderLen is the length of the header of all messages, in bytes.
	HeaderLen = 8
	// MaxLen is the largest message that [ParseHeader] accepts, in bytes. The largest that a
	// known host sends is a Proposal of 652 bytes; the rest is room for later versions.
	MaxLen = 4096
)

// Length of the shortest message of each kind, both eyecatchers included.
const (
	minProposalV1Len = 52 // RFC 7609 p.95
	minProposalV2Len = 84 // SMCv2 p.53: 80 bytes and the eyecatcher
	minAcceptV1Len   = 48 // SMC-D; SMC-R has 68
	minAcceptV2Len   = 78 // SMC-D; SMC-R has 108
)

// A Header is the start of every message.
//
//	offset  size  field
//	     0     4  eyecatcher  "SMCR" or "SMCD" in EBCDIC: e2 d4 c3 d9 or e2 d4 c3 c4
//	     4     1  type        see [Type]
//	     5     2  length      of the whole message, both eyecatchers included
//	     7     1  flags       version (4 bits), then as the message says
//
// Integers are big-endian in all messages. Reserved bits are sent as zero and not checked on
// receipt: RFC 7609 p.92.
type Header struct {
	Type    Type
	Version Version // V1 or V2
	Len     int     // of the whole message, in bytes, at most MaxLen

	flags byte // the lower 4 bits of the flags
}

// ParseHeader decodes the first [HeaderLen] bytes of a message. The length that it returns has been
// checked against the lengths that the type and version allow, so a reader may allocate that much.
// Errors are of type [*wire.DecodeError].
func ParseHeader(b []byte) (Header, error) { return parseHeader("clc.Header", b) }

func parseHeader(message string, b []byte) (Header, error) {
	fail := func(field string, offset int, err error) (Header, error) {
		return Header{}, &wire.DecodeError{Message: message, Field: field, Offset: offset, Err: err}
	}
	switch {
	case len(b) < HeaderLen:
		return fail("message", len(b), wire.ErrTruncated)
	case !isEyecatcher(b): // rule: TestHeaderLies
		return fail("eyecatcher", 0, wire.ErrEyecatcher)
	case b[7]>>4 == 0: // rule: TestHeaderLies
		return fail("version", 7, wire.ErrVersion)
	}
	h := Header{
		Type:    Type(b[4]),
		Version: min(Version(b[7]>>4), V2), // rule: TestHigherVersions: min(Version(b[7]>>4), V2) -> Version(b[7]>>4)
		Len:     int(binary.BigEndian.Uint16(b[5:])),
		flags:   b[7] & 0x0f,
	}
	var minLen int
	switch h.Type {
	case TypeProposal:
		minLen = minProposalV1Len
		if h.Version > V1 {
			minLen = minProposalV2Len
		}
	case TypeAccept, TypeConfirm:
		minLen = minAcceptV1Len
		if h.Version > V1 {
			minLen = minAcceptV2Len
		}
	case TypeDecline:
		minLen = declineV1Len
	default:
		return fail("type", 4, wire.ErrType)
	}
	if h.Len < minLen || h.Len > MaxLen { // rule: TestLengths
		return fail("length", 5, wire.ErrLength)
	}
	return h, nil
}

// frame cuts the message of type want out of b, checks its header and its final eyecatcher, and
// returns the header and exactly the message's bytes.
func frame(message string, want Type, b []byte) (Header, []byte, error) {
	fail := func(field string, offset int, err error) (Header, []byte, error) {
		return Header{}, nil, &wire.DecodeError{Message: message, Field: field, Offset: offset, Err: err}
	}
	h, err := parseHeader(message, b)
	switch {
	case err != nil:
		return Header{}, nil, err
	case h.Type != want:
		return fail("type", 4, wire.ErrType)
	case len(b) < h.Len:
		return fail("message", len(b), wire.ErrTruncated)
	}
	b = b[:h.Len]
	if end := h.Len - eyecatcherLen; !isEyecatcher(b[end:]) { // rule: TestEitherEyecatcher
		return fail("eyecatcher", end, wire.ErrEyecatcher)
	}
	return h, b, nil
}

func isEyecatcher(b []byte) bool {
	e := string(b[:eyecatcherLen])
	return e == eyecatcherSMCR || e == eyecatcherSMCD // rule: TestEitherEyecatcher: || e == eyecatcherSMCD -> || false
}

// begin appends a header without its length, which is yet unknown; end fills it in.
func begin(b []byte, eyecatcher string, t Type, v Version, flags byte) []byte {
	b = append(b, eyecatcher...)
	return append(b, byte(t), 0, 0, byte(v)<<4|flags)
}

// end appends the final eyecatcher to the message that starts at b[start], and sets its length.
func end(b []byte, start int, eyecatcher string) []byte {
	b = append(b, eyecatcher...)
	binary.BigEndian.PutUint16(b[start+5:], uint16(len(b)-start))
	return b
}

// appendUint24 appends the lower 24 bits of v.
func appendUint24(b []byte, v uint32) []byte {
	return append(b, byte(v>>16), byte(v>>8), byte(v))
}

// uint24 returns the 24-bit number at the start of b.
func uint24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// appendZeros appends n reserved bytes.
func appendZeros(b []byte, n int) []byte { return append(b, make([]byte, n)...) }

// mustValidate panics if m cannot be encoded: the caller that built it broke its documented rules.
func mustValidate(m Message) {
	if err := m.Validate(); err != nil {
		panic(err.Error())
	}
}
