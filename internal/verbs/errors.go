package verbs

import "errors"

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
	ErrUnusable   = errors.New("the RDMA device cannot be used")
	ErrRemoved    = errors.New("the RDMA device was removed")
)
