// Package cdc has the Connection Data Control state of a connection: how far each side has written
// and read, and its flags about that. SMC-R sends it as a [Message]; SMC-D keeps it as a [Header]
// in shared memory. The two halves of a Header are also available as words for atomic access.
//
// The data path uses this package for every read and write, so nothing on a good path allocates.
package cdc

import (
	"errors"
	"fmt"
)

// A Cursor is a place in the endless stream of bytes that goes through a ring buffer: Count is
// the offset in the buffer, and Wrap is how often the stream has gone round, modulo 1<<16.
//
// Of two cursors in one ring the producer's is never less than the consumer's, and at most the
// buffer's size ahead. Equal counts mean an empty buffer if the wraps are equal too, and a full one
// if the producer's wrap is one more (RFC 7609 p.127).
//
// Counts start at 0 and are less than the capacity, as with Linux net/smc, where RFC 7609 p.127
// has an eyecatcher in the first 4 bytes.
type Cursor struct {
	Wrap  uint16
	Count uint32 // bytes
}

// Errors of [Check]: the peer has broken the protocol, and the connection must be aborted.
var (
	ErrCount   = errors.New("cursor is outside the buffer")
	ErrAdvance = errors.New("cursor is behind the previous one, or ahead of what is allowed")
)

// Advance returns the cursor n bytes further on in a ring of the given capacity. c.Count must be
// less than capacity, and n at most capacity.
func (c Cursor) Advance(n, capacity uint32) Cursor {
	count := uint64(c.Count) + uint64(n)
	if count >= uint64(capacity) {
		count -= uint64(capacity)
		c.Wrap++
	}
	c.Count = uint32(count)
	return c
}

// Diff returns how many bytes to is ahead of from, in a ring of the given capacity: with the
// producer's cursor as to and the consumer's as from, the bytes that are in the buffer. Both
// cursors must have been checked, see [Check]; the result is then at most capacity.
func Diff(from, to Cursor, capacity uint32) uint32 {
	return uint32(to.Wrap-from.Wrap)*capacity + to.Count - from.Count
}

// Check returns how many bytes the peer's new cursor is ahead of its old one, which has been
// checked before, in a ring of the given capacity. It returns ErrCount or ErrAdvance if the cursor
// is not legal: it must be inside the buffer, and ahead by at most limit bytes, which must be at
// most capacity. For a producer's cursor limit is the free space, for a consumer's it is the
// bytes that it has not consumed.
func Check(old, new Cursor, limit, capacity uint32) (uint32, error) {
	// The wraps differ by w modulo 1<<16. For w of 2 and more the advance is above the capacity,
	// and for a step back it is, being unsigned, huge: one comparison rejects both.
	w := uint64(new.Wrap - old.Wrap)
	advance := w*uint64(capacity) + uint64(new.Count) - uint64(old.Count)
	if new.Count >= capacity { // rule: TestCheck
		return 0, ErrCount
	}
	if advance > uint64(limit) { // rule: TestCheck
		return 0, ErrAdvance
	}
	return uint32(advance), nil
}

// String returns wrap and count in hexadecimal, as smcss shows them: "0001:00000020".
func (c Cursor) String() string { return fmt.Sprintf("%04x:%08x", c.Wrap, c.Count) }
