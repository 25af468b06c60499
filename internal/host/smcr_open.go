package host

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
)

// A tcpWatch makes the watcher for the TCP sockets of SMC-R connections when it is first needed.
type tcpWatch struct {
	mu      sync.Mutex
	watcher *tcpwatch.Watcher // nil before the first connection
	closed  bool
}

func (t *tcpWatch) get() (*tcpwatch.Watcher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transport.ErrClosed
	}
	if t.watcher == nil {
		w, err := tcpwatch.New()
		if err != nil {
			return nil, err
		}
		t.watcher = w
	}
	return t.watcher, nil
}

// close ends the watcher. With forGood no other is made.
func (t *tcpWatch) close(forGood bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = t.closed || forGood
	if t.watcher != nil {
		t.watcher.Close()
		t.watcher = nil
	}
}

// rnicReason returns the reason code for an error of [rnic.Set.Acquire].
func rnicReason(err error) clc.Diagnosis {
	var refused *port.RefusedError
	switch {
	case errors.As(err, &refused): // the log has its words
		return clc.DiagPortInUse
	case errors.Is(err, unix.EADDRINUSE):
		return clc.DiagPortInUse
	case errors.Is(err, rnic.ErrDown):
		return clc.DiagRNICDown
	case errors.Is(err, rnic.ErrNone), errors.Is(err, rdma.ErrArgument): // no interface has the address
		return clc.DiagNoSMCRDevice
	case errors.Is(err, transport.ErrClosed), errors.Is(err, rnic.ErrClosed):
		return clc.DiagClosing
	case errors.Is(err, rdma.ErrExhausted):
		return clc.DiagLimit
	}
	return transport.Reason(err)
}
