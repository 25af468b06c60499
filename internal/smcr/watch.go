package smcr

import (
	"sync"

	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/internal/transport"
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
