package llc

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A DeleteRKey tells the peer that RMBs are gone. Of each it names the RKey on the link that carries
// the message.
//
//	offset  size  field
//	     0     4  header           see [Header]; type 9
//	     3     1  flags            reply (1 bit), reserved (1), negative (1), reserved (5)
//	     4     1  number of RKeys  in the request, and the same in the reply
//	     5     1  version 1 negative reply: error mask, highest bit for the first RKey
//	              version 2 negative reply: number of RKeys that were not deleted
//	     6     2  reserved
//	     8     4  for each of them: RKey
//
// Version 1 has room for 8 RKeys, and its reply has the RKeys of the request. A request of version
// 2 has up to 255, and is then longer than 44 bytes; its reply has up to 8, of the RKeys that were
// not deleted. Linux net/smc sends one RKey in a request, and none in a reply of version 2.
//
// Layout: RFC 7609 pp.122-123, SMCv2 pp.93-95.
type DeleteRKey struct {
	Header
	Negative bool // in a reply: some RKeys were not deleted, for the receiver does not know them
	// RKeys are those to be deleted, at least 1 in a request. In a reply of version 2 they are
	// those that were not deleted, as far as the sender says, at most 8.
	RKeys     []wire.RKey
	ErrorMask uint8 // version 1, negative reply: 0x80 for RKeys[0] if it was not deleted, and so on
	Count     uint8 // version 2, reply: how many RKeys the request had
	Invalid   uint8 // version 2, negative reply: how many RKeys were not deleted, at most Count
}

const (
	rkeysOffset   = 8
	rkeyLen       = 4
	maxRKeysShort = 8 // in a version 1 message, in a version 2 reply
)

// Answer returns the reply to the request d. It calls deleted for each RKey, in their order, which
// returns whether it has deleted the RMB.
func (d DeleteRKey) Answer(deleted func(wire.RKey) bool) DeleteRKey {
	r := DeleteRKey{Header: Header{Form: d.Form, Reply: true}}
	if d.Form == V1 {
		r.RKeys = append(r.RKeys, d.RKeys...)
	} else {
		r.Count = uint8(len(d.RKeys))
	}
	for i, key := range d.RKeys {
		if deleted(key) {
			continue
		}
		r.Negative = true
		if d.Form == V1 {
			r.ErrorMask |= 0x80 >> i // rule: TestAnswer: 0x80 >> i -> 1 << i
			continue
		}
		r.Invalid++
		if len(r.RKeys) < maxRKeysShort {
			r.RKeys = append(r.RKeys, key)
		}
	}
	return r
}

// isShortReply reports whether d is a reply of version 2, which has only the RKeys that were not
// deleted.
func (d DeleteRKey) isShortReply() bool { return d.Reply && d.Form.Version() == 2 }

// maxRKeys returns how many RKeys d can have.
func (d DeleteRKey) maxRKeys() int {
	if d.Form == V1 || d.Reply {
		return maxRKeysShort
	}
	return MaxRKeys
}

// Type returns [TypeDeleteRKey].
func (d DeleteRKey) Type() Type { return TypeDeleteRKey }

// Validate implements [Message].
func (d DeleteRKey) Validate() error {
	if err := d.valid(TypeDeleteRKey); err != nil {
		return err
	}
	switch {
	case d.Negative && !d.Reply:
		return invalid(TypeDeleteRKey, "a request cannot be negative")
	case len(d.RKeys) > d.maxRKeys():
		return invalid(TypeDeleteRKey, "%d RKeys are more than %d", len(d.RKeys), d.maxRKeys())
	case len(d.RKeys) == 0 && !d.Reply:
		return invalid(TypeDeleteRKey, "a request without RKeys")
	case d.isShortReply() && d.Negative && d.Invalid > d.Count:
		return invalid(TypeDeleteRKey, "%d of %d RKeys were not deleted", d.Invalid, d.Count)
	case d.isShortReply() && d.Negative && len(d.RKeys) > int(d.Invalid):
		return invalid(TypeDeleteRKey, "%d RKeys where %d were not deleted", len(d.RKeys), d.Invalid)
	}
	return nil
}

// Append implements [Message]. The encoding has 44 bytes; the encoding of a version 2 request with
// more than 9 RKeys has 8 and 4 for each of them.
func (d DeleteRKey) Append(b []byte) []byte {
	mustValidate(d)
	start := len(b)
	b, e := begin(b, TypeDeleteRKey, d.Header, result(d.Negative, false))
	keys := d.RKeys
	e[4] = byte(len(keys))
	switch {
	case d.isShortReply() && d.Negative:
		e[4], e[5] = d.Count, d.Invalid
	case d.isShortReply():
		e[4], keys = d.Count, nil
	case d.Negative:
		e[5] = d.ErrorMask
	}
	if len(keys) == 0 {
		return b
	}
	b = b[:start+rkeysOffset]
	for _, key := range keys {
		b = binary.BigEndian.AppendUint32(b, uint32(key))
	}
	if d.Form == V1 {
		return b[:start+MinLen]
	}
	return end(b, start, d.Form)
}

// ParseDeleteRKey decodes the DELETE RKEY in b, see [Parse]. One with 255 RKeys has 1028 bytes, a
// length which is the same in both byte orders, so that its form is always [V2].
// Errors are of type [*wire.DecodeError].
func ParseDeleteRKey(b []byte) (DeleteRKey, error) {
	h, b, fail, err := frame("llc.DeleteRKey", TypeDeleteRKey, b)
	if err != nil {
		return DeleteRKey{}, err
	}
	d := DeleteRKey{Header: h, Negative: h.Reply && b[3]&flagNegative != 0}
	count := int(b[4])
	switch {
	case d.isShortReply():
		d.Count = b[4]
		count = 0
		if d.Negative {
			d.Invalid = b[5]
			if d.Invalid > d.Count { // rule: TestLies
				return DeleteRKey{}, fail("number of RKeys not deleted", 5, wire.ErrValue)
			}
			count = min(int(d.Invalid), maxRKeysShort)
		}
	case count > d.maxRKeys() || rkeysOffset+count*rkeyLen > len(b): // rule: TestLies: count > d.maxRKeys() -> false
		return DeleteRKey{}, fail("number of RKeys", 4, wire.ErrValue)
	case d.Negative:
		// rule: TestErrorMask: &^ (0xff >> count) -> & 0xff
		d.ErrorMask = b[5] &^ (0xff >> count) // no bits for RKeys that are not there
	}
	for i := range count {
		d.RKeys = append(d.RKeys, wire.RKey(binary.BigEndian.Uint32(b[rkeysOffset+i*rkeyLen:])))
	}
	// Linux net/smc says how many, and has zeros in their place.
	for d.isShortReply() && len(d.RKeys) > 0 && d.RKeys[len(d.RKeys)-1] == 0 {
		d.RKeys = d.RKeys[:len(d.RKeys)-1]
	}
	if len(d.RKeys) == 0 {
		d.RKeys = nil
	}
	return d, nil
}

// String implements [Message].
func (d DeleteRKey) String() string {
	s := d.describe(TypeDeleteRKey)
	switch {
	case d.isShortReply() && d.Negative:
		s += fmt.Sprintf(" negative count=%d invalid=%d", d.Count, d.Invalid)
	case d.isShortReply():
		return fmt.Sprintf("%s count=%d", s, d.Count)
	case d.Negative:
		s += fmt.Sprintf(" negative mask=0x%02x", d.ErrorMask)
	}
	return fmt.Sprintf("%s rkeys=%v", s, d.RKeys)
}
