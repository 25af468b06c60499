package rdma

import "fmt"

// argError says which argument is wrong, and why.
func argError(format string, args ...any) error {
	return fmt.Errorf("rdma: %w: %s", ErrArgument, fmt.Sprintf(format, args...))
}

// stateError names the attempted operation and the state that does not allow it.
func stateError(what string, s State) error {
	return fmt.Errorf("rdma: %s in state %v: %w", what, s, ErrState)
}
