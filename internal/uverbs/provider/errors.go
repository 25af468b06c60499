package provider

import (
	"errors"

	"github.com/gosmc/smc/internal/uverbs"
	"github.com/gosmc/smc/internal/verbs"
)

// A deviceError is an error of package uverbs with its meaning in package verbs.
type deviceError struct{ err, kind error }

func (e *deviceError) Error() string   { return e.err.Error() }
func (e *deviceError) Unwrap() []error { return []error{e.err, e.kind} }

// kinds has the errors of package uverbs that package verbs has too.
var kinds = []struct{ err, kind error }{
	{uverbs.ErrArgument, verbs.ErrArgument},
	{uverbs.ErrBusy, verbs.ErrBusy},
	{uverbs.ErrClosed, verbs.ErrClosed},
	{uverbs.ErrCQTooSmall, verbs.ErrCQTooSmall},
	{uverbs.ErrExhausted, verbs.ErrExhausted},
	{uverbs.ErrQueueFull, verbs.ErrQueueFull},
	{uverbs.ErrRegion, verbs.ErrRegion},
	{uverbs.ErrRemoved, verbs.ErrRemoved},
	{uverbs.ErrState, verbs.ErrState},
}

// failure returns an error of the making of an object with its meaning in package verbs. A device
// that was removed has closed its context, so ErrClosed means the removal then.
func (d *device) failure(err error) error {
	d.mu.Lock()
	removed := d.state.removed
	d.mu.Unlock()
	if removed && errors.Is(err, uverbs.ErrClosed) { // rule: TestFailure
		return &deviceError{err, verbs.ErrRemoved}
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return &deviceError{err, k.kind}
		}
	}
	return err
}
