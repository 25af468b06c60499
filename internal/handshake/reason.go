package handshake

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/transport"
)

// endReason is why a handshake has ended its TCP connection.
func endReason(err error) string {
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
	case errors.Is(err, transport.ErrClosed):
		return transport.ErrClosed.Error()
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
