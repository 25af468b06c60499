package cdc

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A Message is the CDC message of SMC-R: one RDMA SEND after the WRITEs that it tells of.
//
//	offset  size  field
//	     0     1  type              0xfe
//	     1     1  length            44
//	     2     2  sequence number
//	     4     4  alert token       of the receiver's connection
//	     8     2  reserved
//	    10     2  producer wrap
//	    12     4  producer count
//	    16     2  reserved
//	    18     2  consumer wrap
//	    20     4  consumer count
//	    24     1  producer flags
//	    25     1  connection flags
//	    26    18  reserved
//
// Integers are big-endian. With [FailoverValidation] only the sequence number and the token
// count, and the other fields are zero: "the only other fields in the CDC message that are
// significant are the Type, Length, SMC-R alert token, and Sequence number fields". Such a message
// has the number of an earlier message, and the receiver resets the connection unless it has
// received that one.
//
// Layout: RFC 7609 p.126.
type Message struct {
	Seq           uint16 // from 1; see [Message.IsStale]
	AlertToken    wire.AlertToken
	Producer      Cursor // in the receiver's buffer
	Consumer      Cursor // in the sender's buffer
	ProducerFlags ProducerFlags
	ConnFlags     ConnFlags
}

const (
	// TypeMessage is the first byte of a CDC message, which tells it from an LLC message, and
	// of the header in a DMB element.
	TypeMessage = 0xfe
	// MessageLen is the length of a CDC message in bytes.
	MessageLen = 44
)

// NewFailoverValidation returns the message that asks whether the one with number seq has
// arrived: RFC 7609 §4.6.1.
func NewFailoverValidation(seq uint16, token wire.AlertToken) Message {
	return Message{Seq: seq, AlertToken: token, ProducerFlags: FailoverValidation}
}

// IsFailoverValidation reports whether m is such a message.
func (m Message) IsFailoverValidation() bool { return m.ProducerFlags&FailoverValidation != 0 }

// IsStale reports whether m is older than the message with number last, and must be dropped
// (RFC 7609 p.127). A message with the same number is not stale, as for Linux net/smc. Numbers
// are compared modulo 1<<16.
func (m Message) IsStale(last uint16) bool { return int16(m.Seq-last) < 0 } // rule: TestIsStale: < 0 -> <= 0

// Append appends the encoded message, 44 bytes, to b and returns the extended slice. Every
// Message has an encoding; reserved flags are not sent.
func (m Message) Append(b []byte) []byte {
	if m.IsFailoverValidation() {
		m = NewFailoverValidation(m.Seq, m.AlertToken) // rule: TestFailoverValidation
	}
	var e [MessageLen]byte
	e[0], e[1] = TypeMessage, MessageLen
	binary.BigEndian.PutUint16(e[2:], m.Seq)
	binary.BigEndian.PutUint32(e[4:], uint32(m.AlertToken))
	binary.BigEndian.PutUint16(e[10:], m.Producer.Wrap)
	binary.BigEndian.PutUint32(e[12:], m.Producer.Count)
	binary.BigEndian.PutUint16(e[18:], m.Consumer.Wrap)
	binary.BigEndian.PutUint32(e[20:], m.Consumer.Count)
	e[24] = byte(m.ProducerFlags & allProducerFlags)
	e[25] = byte(m.ConnFlags & allConnFlags)
	return append(b, e[:]...)
}

// ParseMessage decodes the CDC message at the start of b. The cursors are as the peer sent them,
// see [Check]. Errors are of type [*wire.DecodeError].
func ParseMessage(b []byte) (Message, error) {
	fail := func(field string, offset int, err error) (Message, error) {
		return Message{}, &wire.DecodeError{Message: "cdc.Message", Field: field, Offset: offset, Err: err}
	}
	switch {
	case len(b) < MessageLen:
		return fail("message", len(b), wire.ErrTruncated)
	case b[0] != TypeMessage:
		return fail("type", 0, wire.ErrType)
	case b[1] != MessageLen:
		return fail("length", 1, wire.ErrLength)
	}
	m := Message{
		Seq:           binary.BigEndian.Uint16(b[2:]),
		AlertToken:    wire.AlertToken(binary.BigEndian.Uint32(b[4:])),
		Producer:      Cursor{binary.BigEndian.Uint16(b[10:]), binary.BigEndian.Uint32(b[12:])},
		Consumer:      Cursor{binary.BigEndian.Uint16(b[18:]), binary.BigEndian.Uint32(b[20:])},
		ProducerFlags: ProducerFlags(b[24]) & allProducerFlags,
		ConnFlags:     ConnFlags(b[25]) & allConnFlags, // rule: TestMessage: & allConnFlags -> & 0xff
	}
	if m.IsFailoverValidation() {
		return NewFailoverValidation(m.Seq, m.AlertToken), nil
	}
	return m, nil
}

// String returns one line for traces.
func (m Message) String() string {
	if m.IsFailoverValidation() {
		return fmt.Sprintf("CDC failover validation seq=%d token=%v", m.Seq, m.AlertToken)
	}
	return fmt.Sprintf("CDC seq=%d token=%v prod=%v cons=%v flags=%v/%v",
		m.Seq, m.AlertToken, m.Producer, m.Consumer, m.ProducerFlags, m.ConnFlags)
}
