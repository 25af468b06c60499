// Package late has contexts that start their timer when somebody waits for them.
//
// A context of package context has a timer from the beginning. Where almost no call waits, that
// costs more than the call: a new timer may wake a thread of the runtime that sleeps until a later
// one.
package late

import (
	"context"
	"sync"
	"time"
)

// A Context ends at its deadline, or with its parent. Several goroutines may use it.
type Context struct {
	parent context.Context
	at     time.Time

	mu        sync.Mutex
	inner     context.Context // nil before somebody has waited
	cancel    context.CancelFunc
	cancelled bool
}

// WithDeadline returns a context that ends at a time. Its Cancel has to be called.
func WithDeadline(parent context.Context, at time.Time) *Context {
	return &Context{parent: parent, at: at}
}

// WithTimeout returns a context that ends after d. Its Cancel has to be called.
func WithTimeout(parent context.Context, d time.Duration) *Context {
	return WithDeadline(parent, time.Now().Add(d))
}

// Cancel ends it for those who wait, and gives back what it has.
func (c *Context) Cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancelled = true
	if c.cancel != nil {
		c.cancel()
	}
}

// Done implements [context.Context].
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithDeadline(c.parent, c.at)
		if c.cancelled {
			c.cancel()
		}
	}
	return c.inner.Done()
}

// Err implements [context.Context].
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.inner != nil:
		return c.inner.Err()
	case c.parent.Err() != nil:
		return c.parent.Err()
	case c.cancelled:
		return context.Canceled
	case !time.Now().Before(c.at):
		return context.DeadlineExceeded
	}
	return nil
}

// Deadline implements [context.Context].
func (c *Context) Deadline() (time.Time, bool) {
	if at, ok := c.parent.Deadline(); ok && at.Before(c.at) {
		return at, true
	}
	return c.at, true
}

// Value implements [context.Context].
func (c *Context) Value(key any) any { return c.parent.Value(key) }
