package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
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

// writeJSON prints v as one JSON object, indented, for a verb that prints one.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeJSONLine prints v as one JSON object on a line, for a verb that prints several.
func writeJSONLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printable makes text from elsewhere safe for a terminal: a control character, which could
// move the cursor or change the title, becomes a question mark.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// orNA is s made printable, or n/a when there is none.
func orNA(s string) string {
	if s == "" {
		return "n/a"
	}
	return printable(s)
}

// formatNumber prints v with three significant digits, or all digits before the point.
func formatNumber(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "n/a"
	case a >= 100:
		return groupDigits(strconv.FormatFloat(v, 'f', 0, 64))
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1 || a == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		// Three significant digits: one more place for each zero after the point.
		return strconv.FormatFloat(v, 'f', min(2-int(math.Floor(math.Log10(a))), 9), 64)
	}
}

// groupDigits puts a space between groups of three digits: 1234567 becomes 1 234 567.
func groupDigits(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return sign + s
}

var binaryUnits = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}

// formatBytes prints a size in binary units: 4 KiB, 1.5 GiB.
func formatBytes(n int64) string {
	v, unit := float64(n), 0
	for math.Abs(v) >= 1024 && unit < len(binaryUnits)-1 {
		v /= 1024
		unit++
	}
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) + " " + binaryUnits[unit]
}

// A byteSize is a flag that holds a number of bytes: 4096, 64KiB, 1GB.
type byteSize int64

func (s *byteSize) String() string {
	if *s == 0 {
		return "0" // by which pflag knows that there is no default to tell
	}
	return strings.ReplaceAll(formatBytes(int64(*s)), " ", "")
}

func (s *byteSize) Type() string { return "size" }

// Set takes a number and a unit: B, KiB, MiB, GiB, TiB or K, M, G, T for powers of 1024,
// and KB, MB, GB, TB for powers of 1000.
func (s *byteSize) Set(text string) error {
	digits := strings.TrimRight(text, "BKMGTibkmgt ")
	unit := strings.ToLower(strings.TrimSpace(text[len(digits):]))
	factor, ok := byteUnits[unit]
	v, err := strconv.ParseFloat(digits, 64)
	if !ok || err != nil || math.IsNaN(v) || v < 0 || v*factor >= math.MaxInt64 {
		return errors.New("want a number and B, KiB, MiB, GiB, KB, MB or GB")
	}
	*s = byteSize(v * factor)
	return nil
}

var byteUnits = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
}

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
