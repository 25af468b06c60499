package rdma

import (
	"errors"
	"fmt"
)

// Errors of posting and of setting up, to be matched with [errors.Is].
var (
	ErrState      = errors.New("the queue pair's state does not allow it")
	ErrQueueFull  = errors.New("the queue is full")
	ErrArgument   = errors.New("impossible argument")
	ErrRegion     = errors.New("outside the memory region, or not allowed by it")
	ErrExhausted  = errors.New("no more of these objects")
	ErrCQTooSmall = errors.New("the completion queue is too small for its queue pairs")
	ErrBusy       = errors.New("in use")
	ErrClosed     = errors.New("closed")
)

// argError says which argument is wrong, and why.
func argError(format string, args ...any) error {
	return fmt.Errorf("rdma: %w: %s", ErrArgument, fmt.Sprintf(format, args...))
}

// stateError names the attempted operation and the state that does not allow it.
func stateError(what string, s State) error {
	return fmt.Errorf("rdma: %s in state %v: %w", what, s, ErrState)
}
