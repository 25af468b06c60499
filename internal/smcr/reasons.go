package smcr

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// The parts that end, as an owner counts them.
const (
	endOfGroup = "link group"
	endOfLink  = "link" // while its group had others
)

// groupEndReason is why a link group has ended.
func groupEndReason(e llcflow.GroupEnd) string {
	switch e.Kind {
	case llcflow.EndPeer:
		return e.Kind.String() + ": " + knownReason(e.Reason)
	case llcflow.EndViolation, llcflow.EndLinkFailed:
		return e.Kind.String() + detail(e.Err)
	}
	return e.Kind.String()
}

// knownReason is the reason of a DELETE LINK, if it is one that there is.
func knownReason(r llc.DeleteReason) string {
	switch r {
	case 0, llc.DeleteLostPath, llc.DeleteOperator, llc.DeleteProgram, llc.DeleteViolation, llc.DeleteAsymmetric,
		llc.DeleteUnknownLink, llc.DeleteUnknownGroup:
		return r.String()
	}
	return "for no known reason"
}

// detail is the text of an error beyond its kind, without the peer's numbers in it.
func detail(err error) string {
	if e, ok := errors.AsType[*core.ProtocolError](err); ok {
		return ": " + transport.Detail(e)
	}
	if e, ok := errors.AsType[*link.WorkError](err); ok {
		return ": " + e.Op.String() + ": " + e.Status.String()
	}
	for _, known := range []error{link.ErrFlood, link.ErrTooMany, link.ErrNotReady, link.ErrMoved,
		rnic.ErrDown, errStalled, errLinkEnded, transport.ErrClosed} {
		if errors.Is(err, known) {
			return ": " + known.Error()
		}
	}
	return ""
}

// Reason returns the reason code for an error of [rnic.Set.Acquire].
func Reason(err error) clc.Diagnosis {
	var refused *port.RefusedError
	switch {
	case errors.As(err, &refused): // the log has its words
		return clc.DiagPortInUse
	case errors.Is(err, unix.EADDRINUSE):
		return clc.DiagPortInUse
	case errors.Is(err, rnic.ErrDown), errors.Is(err, verbs.ErrRemoved):
		return clc.DiagRNICDown
	case errors.Is(err, rnic.ErrNone), errors.Is(err, verbs.ErrArgument): // no interface has the address
		return clc.DiagNoSMCRDevice
	case errors.Is(err, transport.ErrClosed), errors.Is(err, rnic.ErrClosed):
		return clc.DiagClosing
	case errors.Is(err, verbs.ErrExhausted):
		return clc.DiagLimit
	}
	why := transport.Reason(err)
	// Descriptors and memory are reasons of their own.
	if errors.Is(err, verbs.ErrUnusable) && why == clc.DiagUnreachable { // rule: TestReason
		return clc.DiagNoSMCRDevice
	}
	return why
}
