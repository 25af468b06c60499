package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/text"
)

// Short names of functions of package text, and one of package inventory, that are frequent here.
var (
	printable     = text.Printable
	orNA          = text.OrNA
	yesNo         = text.YesNo
	lgID          = inventory.GroupID
	errorText     = text.Error
	process       = text.Process
	formatNumber  = text.Number
	groupDigits   = text.GroupDigits
	formatBytes   = text.Bytes
	writeJSON     = text.JSON
	writeJSONLine = text.JSONLine
)

type (
	table    = text.Table
	column   = text.Column
	byteSize = text.ByteSize
)

// An output is standard output. It remembers that a write failed, for callers that do not check.
type output struct {
	w   io.Writer
	err atomic.Pointer[error]
}

// Write implements [io.Writer].
func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil {
		o.err.CompareAndSwap(nil, &err)
	}
	return n, err
}

// failure is the first error of Write. That the reader has had enough is none.
func (o *output) failure() error {
	err := o.err.Load()
	if err == nil || errors.Is(*err, syscall.EPIPE) || errors.Is(*err, io.ErrClosedPipe) {
		return nil
	}
	return *err
}

// isTerminal says whether v, a stream of the command, is a terminal.
func isTerminal(v any) bool {
	if o, ok := v.(*output); ok {
		v = o.w
	}
	f, ok := v.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// A progress shows one changing line on a terminal, and nothing elsewhere.
type progress struct{ w io.Writer }

// newProgress shows progress on w if it is a terminal and quiet is false.
func newProgress(w io.Writer, quiet bool) *progress {
	if quiet || !isTerminal(w) {
		return &progress{io.Discard}
	}
	return &progress{w}
}

const clearLine = "\r\x1b[K"

func (p *progress) show(format string, args ...any) {
	fmt.Fprintf(p.w, clearLine+format, args...)
}

func (p *progress) done() { io.WriteString(p.w, clearLine) }
