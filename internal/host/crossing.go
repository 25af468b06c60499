package host

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gosmc/smc/wire/clc"
)

// A crossing keeps a Decline from an application that reads from a connection which has fallen back: when the
// first link of SMC-R fails for both sides at the same time, each may send one, and what is read after that is
// the application's. If the first bytes are exactly one Decline it is dropped, otherwise the application gets
// them. See core.FallBack.
type crossing struct {
	over atomic.Bool // nothing is left to look at or to give out

	mu      sync.Mutex // held by who reads
	buf     []byte     // what was read and not yet given out
	decided bool       // buf is the application's
}

// givenBack has bytes that were read and are the application's.
func givenBack(read []byte) *crossing { return &crossing{buf: read, decided: true} }

// newCrossing returns one for a connection of which some bytes were read already.
func newCrossing(read []byte) *crossing {
	return &crossing{buf: append([]byte(nil), read...)}
}

// read is Read of the connection, as long as it reports true.
func (x *crossing) read(tcp io.Reader, b []byte) (n int, err error, ok bool) {
	if x.over.Load() {
		return 0, nil, false
	}
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

// writeTo gives what was held back to w, before the rest of the connection.
func (x *crossing) writeTo(tcp io.Reader, w io.Writer) (written int64, err error) {
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

// decide reads until it is known what the bytes are. After a deadline it can be called again. x.mu is held.
func (x *crossing) decide(tcp io.Reader) error {
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
	return eyecatcherStarts(b) && (len(b) < 5 || b[4] == byte(clc.TypeDecline))
}
