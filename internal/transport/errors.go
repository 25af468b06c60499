package transport

import (
	"errors"

	"github.com/gosmc/smc/wire/clc"
)

// Errors of a [Path] and a [Binding].
var (
	ErrUnreachable = errors.New("the peer's device is not the one that the connection was agreed on with")
	ErrGone        = errors.New("the peer is gone")
	ErrNoLinks     = errors.New("this fabric has no links")
)

// A DeclinedError says why a fabric does not carry a connection, by the reason that the peer is told.
type DeclinedError struct{ Why clc.Diagnosis }

func (e *DeclinedError) Error() string { return clc.Lookup(e.Why, clc.OSUnspecified).Sentence }
