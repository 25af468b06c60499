package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
)

// A FallbackError says why a connection that was required to be SMC is not. The TCP
// connection was good, and has been closed.
type FallbackError struct {
	Reason clc.Reason
	ByPeer bool  // the peer declined
	Err    error // local cause; may be nil
}

func (e *FallbackError) Error() string {
	who := "fell back to TCP"
	if e.ByPeer {
		who = "fell back to TCP: declined by peer"
	}
	if e.Err != nil {
		return fmt.Sprintf("smc: %s: %s: %v", who, e.Reason.Sentence, e.Err)
	}
	return fmt.Sprintf("smc: %s: %s", who, e.Reason.Sentence)
}

func (e *FallbackError) Unwrap() error { return e.Err }

// opError wraps an error of the data path as package net does.
func opError(op string, c *Conn, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// failError is what the application gets when a connection has failed.
func failError(kind core.FailKind) error {
	switch kind {
	case core.FailAborted, core.FailProtocol, core.FailLinkLost:
		return os.NewSyscallError("smc", syscall.ECONNABORTED)
	case core.FailTimeout:
		return os.NewSyscallError("smc", syscall.ETIMEDOUT)
	case core.FailReset, core.FailPeerDied, core.FailPeerEnded, core.FailNone:
		return os.NewSyscallError("smc", syscall.ECONNRESET)
	}
	panic("host: impossible failure " + kind.String())
}

// resourceReason is the reason to give when a fabric, or a system call, could not provide something.
func resourceReason(err error) clc.Diagnosis {
	switch {
	case errors.Is(err, ism.ErrBudget):
		return clc.DiagBudget
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return clc.DiagNoFile
	case errors.Is(err, ism.ErrMappings):
		return clc.DiagMappings
	case errors.Is(err, ism.ErrDenied):
		return clc.DiagDenied
	case errors.Is(err, ism.ErrLimit):
		return clc.DiagLimit
	case errors.Is(err, ism.ErrOtherUser):
		return clc.DiagOtherUser
	}
	return transport.Reason(err)
}
