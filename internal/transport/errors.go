package transport

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// Errors of a [Path] and a [Binding].
var (
	ErrUnreachable = errors.New("the peer's device is not the one that the connection was agreed on with")
	ErrGone        = errors.New("the peer is gone")
	ErrClosed      = errors.New("smc: host is closed")
	ErrNoLinks     = errors.New("this fabric has no links")
)

// A DeclinedError says why a fabric does not carry a connection, by the reason that the peer is told.
type DeclinedError struct {
	Why clc.Diagnosis
	Err error // the local cause; nil: nothing that Why does not say
}

func (e *DeclinedError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return clc.Lookup(e.Why, clc.OSUnspecified).Sentence
}

func (e *DeclinedError) Unwrap() error { return e.Err }

// Detail says which rule of the protocol a peer has broken, without the peer's numbers: such words
// can be counted.
func Detail(e *core.ProtocolError) string {
	s := e.Message + " in " + e.State
	if d, ok := errors.AsType[*wire.DecodeError](e); ok {
		s += ": " + d.Message + " " + d.Field
	}
	return s
}

// Reason is the reason to give when a system call, or the fabric, could not provide something.
func Reason(err error) clc.Diagnosis {
	var d *DeclinedError
	switch {
	case errors.As(err, &d):
		return d.Why
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return clc.DiagNoFile
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC):
		return clc.DiagMemory
	}
	return clc.DiagUnreachable
}
