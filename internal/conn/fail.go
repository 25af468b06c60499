package conn

import (
	"errors"
	"os"
	"syscall"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/stream"
)

// failError returns the error that the application gets when a connection has failed.
func failError(kind core.FailKind) error {
	switch kind {
	case core.FailAborted, core.FailProtocol, core.FailLinkLost:
		return os.NewSyscallError("smc", syscall.ECONNABORTED)
	case core.FailTimeout:
		return os.NewSyscallError("smc", syscall.ETIMEDOUT)
	case core.FailReset, core.FailPeerDied, core.FailPeerEnded, core.FailNone:
		return os.NewSyscallError("smc", syscall.ECONNRESET)
	}
	panic("conn: impossible failure " + kind.String())
}

// failReason is why a connection has failed.
func failReason(why core.FailKind, cause core.ConnEventKind, broken error) string {
	switch {
	case cause == core.EventTCPReset && broken != nil: // rule: internal/host TestSMCRWordLost
		return broken.Error()
	case cause == core.EventElementLost:
		return "the peer uses our element of its RMB for something else"
	case why == core.FailProtocol && broken != nil:
		if e, ok := errors.AsType[*stream.PeerError](broken); ok {
			return why.String() + ": " + e.Field + ": " + e.Err.Error()
		}
		return why.String() + ": " + broken.Error()
	}
	return why.String()
}
