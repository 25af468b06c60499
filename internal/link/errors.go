package link

import (
	"errors"
	"fmt"

	"github.com/gosmc/smc/internal/verbs"
)

// Errors, to be matched with [errors.Is].
var (
	ErrClosed   = errors.New("closed")
	ErrNotReady = errors.New("the link is not ready to send")
	ErrTooMany  = errors.New("too many of these")
	ErrArgument = errors.New("impossible argument")

	// ErrMoved is why a link failed over which the peer says that it writes no more.
	ErrMoved = errors.New("the peer has moved its connections to another link")

	// ErrFlood is why a link failed whose peer sent more LLC messages than anybody could look at.
	ErrFlood = errors.New("the peer sends more LLC messages than are taken")
)

// A WorkError says that work on a link's queue pair could not be done. The link has failed.
type WorkError struct {
	Op     verbs.CompletionOp
	Status verbs.Status
}

func (e *WorkError) Error() string { return fmt.Sprintf("smc: link: %v: %v", e.Op, e.Status) }

// linkError names the link that an error is of.
func (l *Link) error(err error) error { return fmt.Errorf("smc: link %v: %w", l.QPN(), err) }
