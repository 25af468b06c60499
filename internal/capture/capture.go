package capture

import (
	"errors"
	"fmt"

	"github.com/gosmc/smc/internal/frame"
)

// A Packet is one packet as it was captured. Of its Data there are at most [MaxPacket] bytes, which
// belong to the Source and are valid until the next call of Next. Number counts everything that the
// Source gives. Source is 0, or the index in the call of [Merge].
type Packet = frame.Packet

// A Source gives packets one after the other.
//
// Next, of all sources, is for one goroutine at a time. Close may be called from any goroutine, more
// than once, and wakes a Next that waits for packets of an interface or of a named pipe; one that
// waits for standard input ends with that.
type Source interface {
	// Next returns the next packet, which is valid until Next is called again. At the end the error
	// is [io.EOF], also after Close. Any other error is a [*Error] and not the end: it tells of one
	// place in the input, and Next may be called again for the packets after it.
	Next() (*Packet, error)

	// Close ends the Source and frees its resources.
	Close() error

	// Name returns the name of the file or interface. Standard input is "standard input".
	Name() string
}

// A Progresser is a [Source] that can say how far it is. All that [Open] and [Merge] return are.
type Progresser interface {
	// Progress returns how many bytes have been read of how many there are. For compressed
	// files both are as on disk. ok is false if the size is not known, as of a pipe; read is
	// right even then. It may be called from any goroutine.
	Progress() (read, size int64, ok bool)
}

// Faults of an input. A [*Error] wraps one of these, or the error of a system call.
var (
	// ErrFormat means that an input is not a capture file, or of a kind that is not read here.
	ErrFormat = errors.New("not a capture file that can be read")

	// ErrTruncated means that a file ends within a packet or block.
	ErrTruncated = errors.New("the file ends too early")

	// ErrDown means that an interface is down. It is no fault: packets come again when it is up.
	ErrDown = errors.New("the interface is down; waiting for it to come up")

	// ErrGone means that an interface was removed, or taken to another network namespace: its capture has
	// ended.
	ErrGone = errors.New("the interface is gone")

	// ErrCorrupt means that a packet or block contains an impossible value.
	ErrCorrupt = errors.New("corrupt")
)

// An Error tells of a fault at one place of an input.
type Error struct {
	Name   string // of the input
	Packet int    // which packet of this input has the fault or would have come next, from 1
	Offset int64  // of the packet's or block's header in bytes, uncompressed; -1 of an interface
	Err    error
}

// Error names the input, the packet and the offset.
func (e *Error) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("%s: packet %d: %v", e.Name, e.Packet, e.Err)
	}
	return fmt.Sprintf("%s: packet %d, offset %d: %v", e.Name, e.Packet, e.Offset, e.Err)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }
