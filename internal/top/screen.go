package top

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/text"
)

// A screen is a terminal with a view that stays in place.
type screen struct {
	out   io.Writer
	in    *os.File
	saved unix.Termios
	keys  chan byte // 0: the input has ended

	signals chan os.Signal // to go on after a stop
}

// suspendKey is Ctrl-Z. The terminal passes it on as a key: a signal would stop this process before it
// could give the terminal back, or would have to be caught, which Go does not undo.
const suspendKey = 'z' & 0x1f

// escapeKey gives up a filter that is being typed.
const escapeKey = 0x1b

// stopTime bounds the wait for a stop that does not come.
const stopTime = 100 * time.Millisecond

// newScreen takes the terminal over: keys come at once, and are not shown.
func newScreen(out io.Writer, in *os.File) (*screen, error) {
	s := &screen{out: out, in: in, keys: make(chan byte), signals: make(chan os.Signal, 1)}
	if err := s.take(); err != nil {
		return nil, err
	}
	signal.Notify(s.signals, syscall.SIGCONT)
	go func() { // it ends with the process
		key := make([]byte, 1)
		for {
			n, err := in.Read(key)
			if err != nil {
				key[0] = 0
			}
			if n > 0 || err != nil {
				s.keys <- key[0]
			}
			if err != nil {
				return
			}
		}
	}()
	return s, nil
}

// take takes the terminal over.
func (s *screen) take() error {
	saved, err := unix.IoctlGetTermios(int(s.in.Fd()), unix.TCGETS)
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	s.saved = *saved
	raw := *saved
	raw.Lflag &^= unix.ICANON | unix.ECHO
	raw.Cc[unix.VSUSP] = 0 // none: see suspendKey
	if err := unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, &raw); err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	io.WriteString(s.out, "\x1b[?1049h\x1b[?25l\x1b[H\x1b[Jgosmc top: the first numbers come in a second\r\n")
	return nil
}

// suspend gives the terminal back, stops this process and those that the terminal would stop with it,
// and takes the terminal over again when they go on. The kernel does not stop them where no shell
// would let them go on.
func (s *screen) suspend() error {
	s.restore() // rule: cmd/gosmc TestTopStops
	unix.Kill(0, unix.SIGTSTP)
	select {
	case <-s.signals:
	case <-time.After(stopTime):
	}
	return s.take() // rule: cmd/gosmc TestTopStops: s.take() -> error(nil)
}

// resume takes the terminal over once more: this process was stopped, and somebody else may have used
// it.
func (s *screen) resume() error {
	s.restore()
	return s.take()
}

// restore gives the terminal back as it was.
func (s *screen) restore() {
	io.WriteString(s.out, "\x1b[?25h\x1b[?1049l")
	unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, &s.saved)
}

// titleLine is the line of a view, from 0, with the titles of the columns.
const titleLine = 3

// keys returns the line about keys: those that there are, the filter that is being typed, or what is
// wrong with it.
func (v *View) keys() string {
	switch {
	case v.prompt != nil:
		return "filter (Enter: use, Esc: keep the old one): " + text.Printable(string(v.prompt.typed)) + "_"
	case v.notice != "":
		return text.Printable(v.notice)
	}
	line := "b c n t f w: order  s p: group  /: filter  h: help  q: end"
	if v.Words != "" {
		line += "   [" + text.Printable(v.Words) + "]"
	}
	return line
}

// summary says how many connections have left TCP, of those that are shown.
func (r *Report) summary() string {
	var modes []string
	reasons := make(map[string]int)
	total, counts := 0, make(map[string]int)
	for i := range r.Activity {
		for mode, n := range r.Activity[i].Modes {
			counts[mode] += n
			total += n
		}
		for _, reason := range r.Activity[i].Reasons {
			reasons[cmp.Or(reason.Tag, noReason)] += reason.Count
		}
	}
	for _, mode := range []string{inventory.ModeUnix, "SMC-D", "SMC-R"} {
		if counts[mode] > 0 {
			modes = append(modes, fmt.Sprintf("%d %s", counts[mode], mode))
		}
	}
	if total == 0 {
		return "no connection"
	}
	tcp := counts["TCP"]
	line := fmt.Sprintf("%d of %d outside TCP (%.0f %%)", total-tcp, total,
		100*float64(total-tcp)/float64(total))
	if len(modes) > 0 {
		line += ": " + strings.Join(modes, ", ")
	}
	if tcp == 0 {
		return line
	}
	most, mostly := "", ""
	for _, tag := range slices.Sorted(maps.Keys(reasons)) {
		if reasons[tag] > reasons[most] {
			most = tag
		}
	}
	if len(reasons) > 1 {
		mostly = "mostly "
	}
	return fmt.Sprintf("%s;  %d TCP, %s%s", line, tcp, mostly, most)
}

// show replaces the view.
func (s *screen) show(r *Report, v *View) error {
	rows, columns := 24, 80
	size, err := unix.IoctlGetWinsize(int(s.in.Fd()), unix.TIOCGWINSZ)
	if err == nil && size.Row > 0 && size.Col > 0 {
		rows, columns = int(size.Row), int(size.Col)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "gosmc top  %s  sorted by %s  every %v", r.Time.Format(time.TimeOnly), v.Sort, v.Delay)
	if r.Denied > 0 {
		fmt.Fprintf(&b, "  (programs of other users are not shown: %d)", r.Denied)
	}
	fmt.Fprintf(&b, "\n%s\n%s\n", r.summary(), v.keys())
	if v.help {
		b.WriteString(helpText)
	} else if err := r.write(&b, v.ByProgram, max(rows-4, 1)); err != nil {
		return err
	}
	var view strings.Builder
	view.WriteString("\x1b[H")
	for i, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		if i == rows {
			break
		}
		if i > 0 {
			// None below the last row, which would move the first one out of sight.
			view.WriteString("\r\n")
		}
		text := []rune(line)
		text = text[:min(len(text), columns-1)]
		if i == titleLine {
			// Shown in reverse across the whole width, as top(1) does.
			blank := strings.Repeat(" ", columns-1-len(text))
			view.WriteString("\x1b[7m" + string(text) + blank + "\x1b[m\x1b[K")
			continue
		}
		view.WriteString(string(text) + "\x1b[K")
	}
	view.WriteString("\x1b[J")
	_, err = io.WriteString(s.out, view.String())
	return err
}
