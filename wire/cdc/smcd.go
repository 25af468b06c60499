package cdc

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A Header is the CDC state of SMC-D: the first bytes of a DMB element, in front of its data. The
// peer writes it, and only the peer.
//
//	offset  size  field
//	     0     1  type              0xfe
//	     1     7  reserved
//	     8     2  producer wrap
//	    10     4  producer count
//	    14     1  flags of the producer cursor, see [PackUrgent]
//	    15     1  reserved
//	    16     2  consumer wrap
//	    18     4  consumer count
//	    22     1  producer flags
//	    23     1  connection flags
//	    24     8  reserved
//
// Integers are in host order: both ends are on one machine.
//
// In shared memory the bytes 8 to 15 and 16 to 23 are each one word that is loaded and stored
// atomically, so that a cursor is never half new; there is no such promise for both together.
// [PackProducer] and [PackConsumer] make the words, [UnpackProducer] and [UnpackConsumer] take them
// apart.
//
// Layout: Linux net/smc.
type Header struct {
	Producer      Cursor // in this element
	Consumer      Cursor // in the writer's own element
	ProducerFlags ProducerFlags
	ConnFlags     ConnFlags
}

// Places in a DMB element, in bytes.
const (
	TypeOffset     = 0  // of the word with the type, see [TypeWord]
	ProducerOffset = 8  // of the word with the producer cursor
	ConsumerOffset = 16 // of the word with the consumer cursor and the flags
	HeaderLen      = 32 // the data starts here
)

// Append appends the encoded header, 32 bytes, to b and returns the extended slice. Every Header
// has an encoding; reserved flags are not written.
func (h Header) Append(b []byte) []byte {
	b = binary.NativeEndian.AppendUint64(b, TypeWord)
	b = binary.NativeEndian.AppendUint64(b, PackProducer(h.Producer))
	b = binary.NativeEndian.AppendUint64(b, PackConsumer(h.Consumer, h.ProducerFlags, h.ConnFlags))
	return binary.NativeEndian.AppendUint64(b, 0)
}

// ParseHeader decodes the header at the start of b, a private copy of the bytes in shared memory.
// The cursors are as the peer wrote them, see [Check]. Errors are of type [*wire.DecodeError].
func ParseHeader(b []byte) (Header, error) {
	fail := func(field string, offset int, err error) (Header, error) {
		return Header{}, &wire.DecodeError{Message: "cdc.Header", Field: field, Offset: offset, Err: err}
	}
	switch {
	case len(b) < HeaderLen:
		return fail("message", len(b), wire.ErrTruncated)
	case b[0] != TypeMessage: // rule: TestHeader
		return fail("type", 0, wire.ErrType)
	}
	var h Header
	h.Producer = UnpackProducer(binary.NativeEndian.Uint64(b[ProducerOffset:]))
	h.Consumer, h.ProducerFlags, h.ConnFlags = UnpackConsumer(binary.NativeEndian.Uint64(b[ConsumerOffset:]))
	return h, nil
}

// String returns one line for traces.
func (h Header) String() string {
	return fmt.Sprintf("CDC prod=%v cons=%v flags=%v/%v", h.Producer, h.Consumer, h.ProducerFlags,
		h.ConnFlags)
}

// PackProducer returns the word at [ProducerOffset].
func PackProducer(c Cursor) uint64 {
	if bigEndian {
		return packBig(c, 0)
	}
	return packLittle(c, 0)
}

// PackUrgent is PackProducer with the flags of urgent data that belong to the cursor,
// [UrgentPending] and [UrgentPresent]: the byte at offset 14. Other flags are left out. Linux
// net/smc has the same flags at that place, and sets them in the other word only. For a reader that
// polls memory they must not come before the cursor, nor after it.
func PackUrgent(c Cursor, p ProducerFlags) uint64 {
	flags := uint16(p&urgentFlags) << 8
	if bigEndian {
		return packBig(c, flags)
	}
	return packLittle(c, flags)
}

// UnpackUrgent is UnpackProducer with the flags of [PackUrgent].
func UnpackUrgent(w uint64) (Cursor, ProducerFlags) {
	var c Cursor
	var flags uint16
	if bigEndian {
		c, flags = unpackBig(w)
	} else {
		c, flags = unpackLittle(w)
	}
	return c, ProducerFlags(flags>>8) & urgentFlags
}

// UnpackProducer returns the cursor in the word at [ProducerOffset]. It must be checked before it
// is used, see [Check].
func UnpackProducer(w uint64) Cursor {
	if bigEndian {
		c, _ := unpackBig(w)
		return c
	}
	c, _ := unpackLittle(w)
	return c
}

// PackConsumer returns the word at [ConsumerOffset]. Reserved flags are left out.
func PackConsumer(c Cursor, p ProducerFlags, f ConnFlags) uint64 {
	flags := uint16(p&allProducerFlags)<<8 | uint16(f&allConnFlags)
	if bigEndian {
		return packBig(c, flags)
	}
	return packLittle(c, flags)
}

// UnpackConsumer returns the cursor and the flags in the word at [ConsumerOffset]. The cursor must
// be checked before it is used, see [Check]. Reserved flags are left out.
func UnpackConsumer(w uint64) (Cursor, ProducerFlags, ConnFlags) {
	var c Cursor
	var flags uint16
	if bigEndian {
		c, flags = unpackBig(w)
	} else {
		c, flags = unpackLittle(w)
	}
	return c, ProducerFlags(flags>>8) & allProducerFlags, ConnFlags(flags) & allConnFlags
}

// A word is, in the order of its bytes: 2 bytes wrap, 4 bytes count, 1 byte producer flags, 1 byte
// connection flags. The first two are integers in host order, so the word as an integer differs
// between machines. flags has the producer flags in its upper half on both.

func packLittle(c Cursor, flags uint16) uint64 {
	return uint64(c.Wrap) | uint64(c.Count)<<16 | uint64(flags>>8)<<48 | uint64(flags&0xff)<<56
}

func unpackLittle(w uint64) (Cursor, uint16) {
	return Cursor{uint16(w), uint32(w >> 16)}, uint16(w>>48)<<8 | uint16(w>>56)
}

func packBig(c Cursor, flags uint16) uint64 {
	return uint64(c.Wrap)<<48 | uint64(c.Count)<<16 | uint64(flags)
}

func unpackBig(w uint64) (Cursor, uint16) {
	return Cursor{uint16(w >> 48), uint32(w >> 16)}, uint16(w)
}
