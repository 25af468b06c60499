// Package terminal has the streams of a command: its standard output, the question whether a stream is a
// terminal, and a line of progress there.
package terminal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// An Output is standard output. It remembers that a write failed, for callers that do not check.
type Output struct {
	w   io.Writer
	err atomic.Pointer[error]
}

// NewOutput returns standard output that writes to w.
func NewOutput(w io.Writer) *Output { return &Output{w: w} }

// Write implements [io.Writer].
func (o *Output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil {
		o.err.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Failure is the first error of Write. That the reader has had enough is none.
func (o *Output) Failure() error {
	err := o.err.Load()
	if err == nil || errors.Is(*err, syscall.EPIPE) || errors.Is(*err, io.ErrClosedPipe) {
		return nil
	}
	return *err
}

// Moves reports whether v is a terminal on which a view can stay in place: TERM names one, and no dumb
// one.
func Moves(v any) bool {
	name := os.Getenv("TERM")
	return name != "" && name != "dumb" && Is(v) // rule: cmd/gosmc TestTopDumb: name != "dumb" -> true
}

// Is reports whether v, a stream of a command, is a terminal.
func Is(v any) bool {
	if o, ok := v.(*Output); ok {
		v = o.w
	}
	f, ok := v.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// A Progress shows one changing line on a terminal, and nothing elsewhere.
type Progress struct{ w io.Writer }

// NewProgress shows progress on w if it is a terminal and quiet is false.
func NewProgress(w io.Writer, quiet bool) *Progress {
	if quiet || !Is(w) {
		return &Progress{io.Discard}
	}
	return &Progress{w}
}

const clearLine = "\r\x1b[K"

// Show replaces the line.
func (p *Progress) Show(format string, args ...any) {
	fmt.Fprintf(p.w, clearLine+format, args...)
}

// Done clears the line.
func (p *Progress) Done() { io.WriteString(p.w, clearLine) }
