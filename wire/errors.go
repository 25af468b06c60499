// Package wire holds the identifiers and the decoding error that all SMC codecs share.
//
// The messages themselves are in the packages below it: [github.com/gosmc/smc/wire/clc] for the
// handshake, [github.com/gosmc/smc/wire/llc] for links, [github.com/gosmc/smc/wire/cdc] for cursors and
// connection state, [github.com/gosmc/smc/wire/roce] for the packets that carry them. All of it is
// values and bytes: nothing here opens, waits or locks, and all types may be copied freely.
package wire

import (
	"errors"
	"fmt"
)

// Causes of a [DecodeError], to be matched with [errors.Is].
//
// All of them but ErrReservedEnum mean that the bytes are no message of ours, and that the TCP
// connection has to end: "All protocol errors, with the exception of bad enumerated values, must
// result in termination of the TCP connection" (RFC 7609 p.134).
var (
	ErrTruncated  = errors.New("message is truncated")
	ErrEyecatcher = errors.New("wrong eyecatcher")
	ErrType       = errors.New("wrong message type")
	ErrLength     = errors.New("impossible length")
	ErrVersion    = errors.New("impossible version")
	ErrValue      = errors.New("impossible value") // a count, an offset or a combination of fields

	// ErrReservedEnum means that a reserved value of an enumeration was found, as a later
	// version of the protocol might send. The answer is a Decline, and the TCP connection
	// stays good: RFC 7609 p.135.
	ErrReservedEnum = errors.New("reserved enumeration value")
)

// A DecodeError says which field of a message could not be decoded, and why.
type DecodeError struct {
	Message string // such as "clc.Decline"
	Field   string // as in the message's layout table; "message" for the whole
	Offset  int    // of the field in the message, in bytes from its start
	Err     error  // one of the errors of this package
}

// Error implements error.
func (e *DecodeError) Error() string {
	return fmt.Sprintf("%s: %s at offset %d: %v", e.Message, e.Field, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *DecodeError) Unwrap() error { return e.Err }
