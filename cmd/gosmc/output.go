package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/text"
)

// A table is printed with its columns aligned and two spaces between them.
type table struct {
	columns []column
	rows    [][]string       // each as long as columns, or shorter
	notes   map[int][]string // lines below a row, by its index
	bare    bool             // without the titles
}

type column struct {
	title string
	right bool // aligned right, as numbers are
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// below adds lines below the last row.
func (t *table) below(lines ...string) {
	if t.notes == nil {
		t.notes = make(map[int][]string)
	}
	i := len(t.rows) - 1
	t.notes[i] = append(t.notes[i], lines...)
}

// write prints the table. Trailing spaces are left out, and so are columns without a title
// and without a cell.
func (t *table) write(w io.Writer) error {
	width := make([]int, len(t.columns))
	for i, c := range t.columns {
		if !t.bare {
			width[i] = utf8.RuneCountInString(c.title)
		}
	}
	for _, row := range t.rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	line := func(cells []string) {
		var l strings.Builder
		first := true
		for i, cell := range cells {
			if width[i] == 0 {
				continue
			}
			if !first {
				l.WriteString("  ")
			}
			first = false
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if t.columns[i].right {
				l.WriteString(pad + cell)
			} else {
				l.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	titles := make([]string, len(t.columns))
	for i, c := range t.columns {
		titles[i] = c.title
	}
	if strings.Join(titles, "") != "" && !t.bare {
		line(titles)
	}
	for i, row := range t.rows {
		line(row)
		for _, note := range t.notes[i] {
			b.WriteString("        " + note + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Short names of package text, for its most frequent functions.
var (
	printable     = text.Printable
	orNA          = text.OrNA
	process       = text.Process
	formatNumber  = text.Number
	groupDigits   = text.GroupDigits
	formatBytes   = text.Bytes
	writeJSON     = text.JSON
	writeJSONLine = text.JSONLine
)

type byteSize = text.ByteSize

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
