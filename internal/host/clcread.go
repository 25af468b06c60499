package host

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A clcReader reads CLC messages from TCP, and not a byte more: what follows the last one is the application's. A
// read that is interrupted by a deadline keeps what it has, and the next one goes on from there. So a message
// can be awaited while something else happens. The zero value is ready.
type clcReader struct {
	header [clc.HeaderLen]byte
	msg    []byte // of the length that the header says; nil before that is complete
	have   int    // bytes that were read, of header or of msg
}

// read returns the next message. Errors are of type *wire.DecodeError, for a header that is none, or those of r.
func (c *clcReader) read(r io.Reader) ([]byte, error) {
	if c.msg == nil {
		if err := c.fillHeader(r); err != nil {
			return nil, err
		}
		h, err := clc.ParseHeader(c.header[:])
		if err != nil {
			return nil, err
		}
		c.msg = make([]byte, h.Len)
		copy(c.msg, c.header[:])
	}
	if err := c.fill(r, c.msg); err != nil {
		return nil, err
	}
	return c.take(), nil
}

// fillHeader reads a header, or as much of it as shows that it is none: who does not speak CLC may say less than that, and
// wait for the answer.
func (c *clcReader) fillHeader(r io.Reader) error {
	for c.have < len(c.header) {
		n, err := r.Read(c.header[c.have:])
		c.have += n
		if !conn.EyecatcherStarts(c.header[:c.have]) {
			return &wire.DecodeError{Message: "clc.Header", Field: "eyecatcher", Err: wire.ErrEyecatcher}
		}
		if err == io.EOF && c.have > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && c.have < len(c.header) {
			return err
		}
	}
	return nil
}

// fill reads until all of b is there.
func (c *clcReader) fill(r io.Reader, b []byte) error {
	n, err := io.ReadFull(r, b[c.have:])
	if err == io.EOF && c.have > 0 {
		err = io.ErrUnexpectedEOF
	}
	c.have += n
	return err
}

// take returns what was read of a message, and begins with the next one.
func (c *clcReader) take() []byte {
	b := c.msg
	if b == nil {
		b = bytes.Clone(c.header[:])
	}
	b = b[:c.have]
	c.msg, c.have = nil, 0
	return b
}

// A linkNews has the steps of the first link of SMC-R for a handshake, which waits for a CLC message. Both matter at the same time:
// "a Decline" may come in place of any message of LLC (RFC 7609 C.3).
type linkNews struct {
	tcp *net.TCPConn

	mu   sync.Mutex
	list []core.LinkStep // yet to be told
	wake chan struct{}   // closed by the next news; nil unless somebody waits
	over bool            // the handshake is: its deadlines are no longer ours to move
}

// errNews is what a read returns because there are news.
var errNews = errors.New("news of the link")

// tell hands a step to the handshake, and interrupts its read. Any goroutine may call it, at any time.
func (l *linkNews) tell(step core.LinkStep) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.list = append(l.list, step)
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
	l.tcp.SetReadDeadline(longAgo)
}

// any reports whether there is something to take.
func (l *linkNews) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.list) > 0
}

// wait waits for news, without the TCP connection, and reports whether there are any. When gone is closed there are no more.
func (l *linkNews) wait(ctx context.Context, gone <-chan struct{}) bool {
	l.mu.Lock()
	if len(l.list) > 0 {
		l.mu.Unlock()
		return true
	}
	wake := make(chan struct{})
	l.wake = wake
	l.mu.Unlock()
	select {
	case <-wake:
		return true
	case <-gone:
		return l.any()
	case <-ctx.Done():
		return false
	}
}

// take returns what is to be told, oldest first.
func (l *linkNews) take() []core.LinkStep {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

// stop makes further news go nowhere.
func (l *linkNews) stop() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
}
