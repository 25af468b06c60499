package dump

import (
	"bufio"
	"io"
	"sync"
	"time"
)

// A flusher is a buffer in front of a writer. A live one is written out after flushInterval even
// if nothing more comes.
type flusher struct {
	mu    sync.Mutex
	b     *bufio.Writer
	timer *time.Timer // nil if it is not live
	armed bool
	ended bool
}

func newFlusher(w io.Writer, live bool) *flusher {
	f := &flusher{b: bufio.NewWriterSize(w, outputBuffer)}
	if live {
		f.timer = time.AfterFunc(time.Hour, f.expire)
		f.timer.Stop()
	}
	return f
}

// Write implements [io.Writer].
func (f *flusher) Write(b []byte) (int, error) {
	if f.timer == nil {
		return f.b.Write(b) // by one goroutine
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.armed {
		f.armed = true
		f.timer.Reset(flushInterval)
	}
	return f.b.Write(b)
}

func (f *flusher) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = false
	if !f.ended {
		f.b.Flush() // an error stays, and Write returns it
	}
}

func (f *flusher) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	if f.timer != nil {
		f.timer.Stop()
	}
	return f.b.Flush()
}
