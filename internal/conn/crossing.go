package conn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire/clc"
)

// A crossing keeps a Decline from an application that reads from a connection which has fallen
// back: when the first link of SMC-R fails for both sides at the same time, each may send one, and
// the bytes after that are the application's. If the first bytes are exactly one Decline it is
// dropped, otherwise the application gets them. See core.FallBack.
type crossing struct {
	over atomic.Bool // nothing is left to look at or to give out

	mu      sync.Mutex // held by the goroutine that reads
	buf     []byte     // bytes that were read and not yet given out
	decided bool       // buf is the application's
}

// givenBack has bytes that were read and are the application's.
func givenBack(read []byte) *crossing { return &crossing{buf: read, decided: true} }

// newCrossing returns one for a connection of which some bytes were read already.
func newCrossing(read []byte) *crossing {
	return &crossing{buf: append([]byte(nil), read...)}
}

// done reports whether nothing needs to be kept from the application. There may be no crossing.
func (x *crossing) done() bool { return x == nil || x.over.Load() }

// read is Read of the connection, as long as it reports true and x is not done.
func (x *crossing) read(tcp io.Reader, b []byte) (n int, err error, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.decide(tcp); err != nil {
		return 0, err, true
	}
	n = copy(b, x.buf)
	if x.buf = x.buf[n:]; len(x.buf) == 0 {
		x.over.Store(true)
	}
	return n, nil, n > 0
}

// writeTo gives the bytes that were held back to w, before the rest of the connection.
func (x *crossing) writeTo(tcp io.Reader, w io.Writer) (written int64, err error) {
	if x.done() {
		return 0, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over.Load() {
		return 0, nil
	}
	if err = x.decide(tcp); err != nil {
		if err == io.EOF {
			err = nil
		}
		return 0, err
	}
	n := 0
	if len(x.buf) > 0 {
		n, err = w.Write(x.buf)
	}
	if x.buf = x.buf[n:]; len(x.buf) == 0 {
		x.over.Store(true)
	}
	return int64(n), err
}

// decide reads until it is known whether the bytes are a Decline; of an [io.Reader] that is a
// peeker it reads no more than a Decline. After a deadline it can be called again. x.mu is held.
func (x *crossing) decide(tcp io.Reader) error {
	p, peeks := tcp.(peeker)
	for !x.decided {
		more, is := declineSoFar(x.buf)
		if more == 0 {
			if is {
				x.buf = nil
			}
			x.decided = true
			break
		}
		b := make([]byte, more)
		if peeks && len(x.buf) == 0 {
			n, err := p.peek(b)
			if err != nil {
				return err
			}
			if !declineStarts(b[:n]) {
				x.decided = true
				break
			}
		}
		n, err := tcp.Read(b)
		x.buf = append(x.buf, b[:n]...)
		if n > 0 || err == nil {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) || len(x.buf) == 0 {
			return err
		}
		x.decided = true // it has ended in the middle: the application finds that out itself
	}
	return nil
}

// A peeker can tell the result of a Read without reading. It waits as Read does.
type peeker interface {
	io.Reader
	peek(b []byte) (n int, err error)
}

// peekable is a TCP connection that is a peeker.
type peekable struct{ *net.TCPConn }

func (s peekable) peek(b []byte) (n int, err error) { return Peek(s.TCPConn, b) }

// Peek tells the result of a Read without reading. It waits as Read does.
func Peek(s *net.TCPConn, b []byte) (n int, err error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	waited := raw.Read(func(fd uintptr) bool {
		n, err = Descriptor(fd).peek(b)
		return !errors.Is(err, os.ErrDeadlineExceeded)
	})
	if waited != nil {
		return 0, waited
	}
	return n, err
}

// A Descriptor is the descriptor of a TCP connection, a peeker that does not wait: where there is
// nothing its deadline has passed.
type Descriptor int

func (fd Descriptor) peek(b []byte) (int, error) { return fd.receive(b, unix.MSG_PEEK) }

// Read implements [io.Reader].
func (fd Descriptor) Read(b []byte) (int, error) { return fd.receive(b, 0) }

func (fd Descriptor) receive(b []byte, flags int) (n int, err error) {
	for {
		n, _, err = unix.Recvfrom(int(fd), b, flags|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return 0, os.ErrDeadlineExceeded
		case err != nil:
			return 0, os.NewSyscallError("recvfrom", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// A filteredConn keeps the Decline from programs that read the socket by themselves.
type filteredConn struct {
	syscall.RawConn
	conn *TCP
}

// Read implements [syscall.RawConn]. Where bytes were taken from the socket that are the
// application's it fails, until they were read from the connection.
func (r filteredConn) Read(f func(fd uintptr) (done bool)) error {
	x := r.conn.crossing
	if x.done() {
		return r.RawConn.Read(f)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	held := false
	err := r.RawConn.Read(func(fd uintptr) bool {
		held = x.lookLocked(Descriptor(fd)) != nil
		return held || f(fd) // which finds nothing there as long as it is not decided
	})
	if err == nil && held {
		err = r.conn.opError("raw-read", errHeld)
	}
	return err
}

// lookLocked looks at the bytes that are there by now. It reports an error if bytes of the
// application have been read. x.mu is held.
func (x *crossing) lookLocked(fd Descriptor) error {
	_ = x.decide(fd) // its error is that nothing is there, or one that the application will see
	switch {
	case len(x.buf) > 0 && x.decided:
		return errHeld
	case x.decided:
		x.over.Store(true)
	}
	return nil
}

// ready reports an error unless nothing needs to be kept from a program that has the socket.
func (x *crossing) ready(raw syscall.RawConn) (err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	failed := raw.Control(func(fd uintptr) { err = x.lookLocked(Descriptor(fd)) })
	switch {
	case failed != nil:
		return failed
	case err == nil && !x.decided:
		err = errHeld
	}
	return err
}

var errHeld = fmt.Errorf("smc: the end of the handshake may still be on the socket, or bytes behind it have been read; Read first: %w", errors.ErrUnsupported)

// declineSoFar reports how many bytes more it takes to know whether b is a Decline, 0 if that is known.
func declineSoFar(b []byte) (more int, is bool) {
	if n := len(b); n < clc.HeaderLen {
		if n == 0 || declineStarts(b) {
			return clc.HeaderLen - n, false
		}
		return 0, false
	}
	h, err := clc.ParseHeader(b)
	if err != nil || h.Type != clc.TypeDecline || h.Len > longestDecline {
		return 0, false
	}
	if len(b) < h.Len {
		return h.Len - len(b), false
	}
	m, err := clc.Parse(b)
	if err != nil {
		return 0, false
	}
	_, is = m.(clc.Decline)
	return 0, is
}

// longestDecline is the length of a Decline of version 2.
const longestDecline = 44

// declineStarts reports whether a Decline can begin with b, which is shorter than a header.
func declineStarts(b []byte) bool {
	return EyecatcherStarts(b) && (len(b) < 5 || b[4] == byte(clc.TypeDecline))
}

// EyecatcherStarts reports whether a CLC message can begin with b.
func EyecatcherStarts(b []byte) bool {
	n := min(len(b), 4)
	return string(b[:n]) == "\xe2\xd4\xc3\xd9"[:n] || string(b[:n]) == "\xe2\xd4\xc3\xc4"[:n]
}
