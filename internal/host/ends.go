package host

import (
	"context"
	"errors"
	"io"
	"slices"
	"syscall"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/transport"
)

// What has ended, and why, is counted, so that an operator who finds connections reset learns what peers did. The
// reasons are words of ours: what a peer says is in them only where it can say a few things.

// An endKey is what is counted together.
type endKey struct{ what, reason string }

// What ends.
const (
	endOfHandshake  = "handshake"
	endOfConnection = "connection"
)

// ended counts an end.
func (c *counters) ended(what, reason string) {
	k := endKey{what, reason}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends == nil {
		c.ends = make(map[endKey]uint64)
	}
	if _, ok := c.ends[k]; !ok && len(c.ends) >= maxEndReasons {
		k.reason = "other"
	}
	c.ends[k]++
}

// endStatus lists the ends, the most frequent first. c.mu is held.
func (c *counters) endStatus() []control.EndCount {
	list := make([]control.EndCount, 0, len(c.ends))
	for k, n := range c.ends {
		list = append(list, control.EndCount{What: k.what, Reason: k.reason, Count: n})
	}
	slices.SortFunc(list, control.CompareEnds)
	return list
}

// handshakeEndReason is why a handshake has ended its TCP connection.
func handshakeEndReason(err error) string {
	if e, ok := errors.AsType[*core.ProtocolError](err); ok {
		return "protocol violation: " + transport.Detail(e)
	}
	if e, ok := errors.AsType[*core.TimeoutError](err); ok {
		return "timeout waiting for " + e.Awaited
	}
	if e, ok := errors.AsType[*core.LinkLostError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*conn.FallbackError](err); ok {
		return e.Reason.Sentence
	}
	switch {
	case errors.Is(err, errHostClosed):
		return errHostClosed.Error()
	case errors.Is(err, transport.ErrGone):
		return transport.ErrGone.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case errors.Is(err, context.Canceled):
		return "given up"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the peer has closed TCP"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the peer has reset TCP"
	}
	if d, ok := errors.AsType[*transport.DeclinedError](err); ok {
		return d.Error()
	}
	return "other"
}
