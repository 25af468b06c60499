package uverbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errors, to be matched with [errors.Is].
var (
	ErrArgument    = errors.New("impossible argument")
	ErrBusy        = errors.New("in use")
	ErrClosed      = errors.New("closed")
	ErrCQTooSmall  = errors.New("the completion queue is too small for its queue pairs")
	ErrExhausted   = errors.New("no more of these objects")
	ErrKernel      = errors.New("impossible answer of the kernel")
	ErrQueueFull   = errors.New("the queue is full")
	ErrRegion      = errors.New("outside the memory region, or not allowed by it")
	ErrRemoved     = errors.New("the device was removed")
	ErrState       = errors.New("the queue pair's state does not allow it")
	ErrUnsupported = errors.New("the device cannot be used")
)

// argError says which argument is wrong, and why.
func argError(format string, args ...any) error {
	return fmt.Errorf("uverbs: %w: %s", ErrArgument, fmt.Sprintf(format, args...))
}

// kernelError says which answer of the kernel is impossible, and why.
func kernelError(format string, args ...any) error {
	return fmt.Errorf("uverbs: %w: %s", ErrKernel, fmt.Sprintf(format, args...))
}

// commandError says which command the kernel has refused.
func commandError(name string, errno error) error {
	switch {
	case errors.Is(errno, unix.EIO), errors.Is(errno, unix.ENODEV): // rule: TestCommandErrors
		return fmt.Errorf("uverbs: %s: %w (%w)", name, ErrRemoved, errno)
	case errors.Is(errno, unix.ENOMEM) && name == nameRegMR:
		return fmt.Errorf("uverbs: %s: %w; the limit of locked memory (ulimit -l) counts registered memory",
			name, errno)
	}
	return fmt.Errorf("uverbs: %s: %w", name, errno)
}
