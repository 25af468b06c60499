package host

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

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
