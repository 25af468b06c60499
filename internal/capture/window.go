package capture

import (
	"io"
)

// A window shows the bytes of a stream to come without copying them. It is a [bufio.Reader] whose
// buffer grows with the bytes that are there, never with the bytes that are promised.
type window struct {
	r          io.Reader
	buf        []byte
	start, end int   // buf[start:end] is to come
	offset     int64 // of buf[start] in the stream
	err        error // why no more bytes follow buf[end]; nil until then
}

func newWindow(r io.Reader) *window {
	return &window{r: r, buf: make([]byte, firstWindow)}
}

// peek returns the next n bytes, at most maxWindow, and does not consume them. It returns fewer
// only if the stream has no more; w.err says why then. They are valid until the next call.
func (w *window) peek(n int) []byte {
	if w.end-w.start < n {
		w.fill(n)
		n = min(n, w.end-w.start)
	}
	return w.buf[w.start : w.start+n : w.start+n]
}

// fill reads until n bytes are there, or until no more come.
func (w *window) fill(n int) {
	empty := 0
	for w.end-w.start < n && w.err == nil {
		if w.end == len(w.buf) {
			w.makeRoom()
		}
		got, err := w.r.Read(w.buf[w.end:])
		w.end += got
		w.err = err
		if empty++; got > 0 {
			empty = 0
		} else if err == nil && empty == maxEmptyReads {
			w.err = io.ErrNoProgress
		}
	}
}

// makeRoom moves the bytes to come to the front, or doubles the buffer if the move would copy more
// than it gains. So looking at the same many bytes one step later costs no move of all of them.
func (w *window) makeRoom() {
	to := w.buf
	if w.start < len(w.buf)/2 {
		to = make([]byte, min(2*len(w.buf), 2*maxWindow))
	}
	w.end = copy(to, w.buf[w.start:w.end])
	w.start, w.buf = 0, to
}

// skip consumes n bytes, of which any number need not have been seen. It returns how many there were.
func (w *window) skip(n int64) int64 {
	left := n
	for {
		step := int(min(left, int64(w.end-w.start)))
		w.start += step
		w.offset += int64(step)
		if left -= int64(step); left == 0 {
			return n
		}
		if len(w.peek(1)) == 0 {
			return n - left
		}
	}
}

// advance consumes n bytes that peek has shown.
func (w *window) advance(n int) {
	w.start += n
	w.offset += int64(n)
}
