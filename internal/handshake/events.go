package handshake

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/gosmc/smc/internal/core"
)

// linkEvents holds the steps of the first link of SMC-R for a handshake, which waits for a CLC
// message meanwhile. Both matter at the same time: "a Decline" may come in place of any message of
// LLC (RFC 7609 C.3).
type linkEvents struct {
	tcp *net.TCPConn

	mu   sync.Mutex
	list []core.LinkStep // yet to be told
	wake chan struct{}   // closed by the next event; nil unless somebody waits
	over bool            // the handshake is: its deadlines are no longer ours to move
}

// errEvents interrupts a read because there are events.
var errEvents = errors.New("events of the link")

// tell hands a step to the handshake, and interrupts its read. Any goroutine may call it, at any time.
func (e *linkEvents) tell(step core.LinkStep) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return
	}
	e.list = append(e.list, step)
	if e.wake != nil {
		close(e.wake)
		e.wake = nil
	}
	e.tcp.SetReadDeadline(longAgo)
}

// any reports whether there is something to take.
func (e *linkEvents) any() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.list) > 0
}

// wait waits for an event, without the TCP connection, and reports whether there is one. When gone
// is closed there are no more.
func (e *linkEvents) wait(ctx context.Context, gone <-chan struct{}) bool {
	e.mu.Lock()
	if len(e.list) > 0 {
		e.mu.Unlock()
		return true
	}
	wake := make(chan struct{})
	e.wake = wake
	e.mu.Unlock()
	select {
	case <-wake:
		return true
	case <-gone:
		return e.any()
	case <-ctx.Done():
		return false
	}
}

// take returns the steps that core has yet to learn of, oldest first.
func (e *linkEvents) take() []core.LinkStep {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.list
	e.list = nil
	return list
}

// stop drops further events.
func (e *linkEvents) stop() {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
}
