package ism

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/ism/sockets"
)

// Errors to be matched with errors.Is. Resource errors of the kernel (unix.EMFILE, unix.ENFILE,
// unix.ENOMEM) stay in the chain of the errors that are returned.
var (
	// ErrBudget means that Config.Budget leaves no room for another DMB of that size.
	ErrBudget = errors.New("ism: memory budget used up")

	// ErrMappings means that the process has nearly as many memory mappings as the kernel allows
	// (vm.max_map_count). The Go runtime ends a process that gets no more.
	ErrMappings = errors.New("ism: memory mappings nearly used up")

	// ErrDenied means that the system does not let this process make the kind of memory or socket
	// that a peering needs: a seccomp filter, or the limit on the size of files (RLIMIT_FSIZE).
	ErrDenied = errors.New("ism: denied by the system")

	// ErrLimit means that one of our tables is full: peers, DMBs, handshakes.
	ErrLimit = errors.New("ism: limit reached")

	// ErrToken means that a token names no DMB that can be attached: never given out, already
	// destroyed, already attached, or of another size.
	ErrToken = errors.New("ism: no such DMB")

	// ErrOtherUser means that the other process belongs to another user and Config.AnyUser is not
	// set, here or there.
	ErrOtherUser = sockets.ErrOtherUser

	// ErrPeerGone means that the peering has ended. [Peer.Err] says why.
	ErrPeerGone = errors.New("ism: peer gone")

	// ErrDead means that no device answers at the address: it never was here, or has ended.
	ErrDead = sockets.ErrDead

	// ErrWrongGID means that another device answered than the one asked for.
	ErrWrongGID = errors.New("ism: another device answered")

	// ErrVersion means that the other device speaks another version of the peering protocol.
	ErrVersion = errors.New("ism: peering version not supported")

	// ErrCongested means that the peer has not read enough of the messages that were sent; try
	// again later.
	ErrCongested = errors.New("ism: peer does not read")

	// ErrSize means a size that no DMB has, or a range outside the element.
	ErrSize = errors.New("ism: bad size")

	// ErrDir means that the directory is not a safe place for sockets.
	ErrDir = sockets.ErrDir

	// ErrProtocol is matched by every error that means "the peer broke the rules of the peering".
	ErrProtocol = errors.New("ism: peering protocol violated")
)

// violation returns an error that matches [ErrProtocol].
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// A refusal is why a device does not want a peering, as Refuse carries it.
type refusal uint32

const (
	refuseVersion   refusal = 1 // the Hello has a version that the refuser does not speak
	refuseUser      refusal = 2 // the process belongs to another user
	refuseGID       refusal = 3 // the Hello asks for another device
	refuseLimit     refusal = 4 // too many peerings, or no memory or descriptors for one
	refuseMalformed refusal = 5 // the Hello, its bell or its descriptors are not in order
)

// err returns the error that the refused side reports.
func (r refusal) err() error {
	switch r {
	case refuseVersion:
		return fmt.Errorf("refused by peer: %w", ErrVersion)
	case refuseUser:
		return fmt.Errorf("refused by peer: %w", ErrOtherUser)
	case refuseGID:
		return fmt.Errorf("refused by peer: %w", ErrWrongGID)
	case refuseLimit:
		return fmt.Errorf("refused by peer: %w", ErrLimit)
	case refuseMalformed:
		return fmt.Errorf("refused by peer: %w", ErrProtocol)
	}
	return fmt.Errorf("refused by peer: reason %d: %w", uint32(r), ErrProtocol)
}

// refusalFor returns the refusal that tells the other side about err.
func refusalFor(err error) refusal {
	switch {
	case errors.Is(err, ErrVersion):
		return refuseVersion
	case errors.Is(err, ErrOtherUser):
		return refuseUser
	case errors.Is(err, ErrWrongGID):
		return refuseGID
	case errors.Is(err, ErrProtocol):
		return refuseMalformed
	}
	return refuseLimit
}

// isGone reports whether a socket call failed because the other end has closed.
func isGone(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.ENOTCONN)
}
