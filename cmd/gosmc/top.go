package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/survey"
)

// A topReport is the output of top --json, one object for each interval.
type topReport struct {
	Schema   int                  `json:"schema"`
	Time     time.Time            `json:"time"`
	Seconds  float64              `json:"seconds"` // between the two samples
	Activity []inventory.Activity `json:"activity"`
	Errors   []survey.Error       `json:"errors"`
	Denied   int                  `json:"other_users"`
}

// topFlags are the flags of top.
type topFlags struct {
	gather    gatherFlags
	delay     time.Duration
	count     int
	once      bool
	byProgram bool
	sort      string
	filter    inventory.Filter
}

// topOrders are the orders of top: the names of the flag, and the keys.
var topOrders = []struct {
	name string
	key  byte
	less func(a, b *inventory.Activity) int // the larger first
}{
	{"bytes", 'b', func(a, b *inventory.Activity) int {
		return cmp.Compare(rate(b.In)+rate(b.Out), rate(a.In)+rate(a.Out))
	}},
	{"connections", 'c', func(a, b *inventory.Activity) int { return cmp.Compare(b.Connections(), a.Connections()) }},
	{"new", 'n', func(a, b *inventory.Activity) int { return cmp.Compare(b.New, a.New) }},
	{"tcp", 't', func(a, b *inventory.Activity) int { return cmp.Compare(b.Modes["TCP"], a.Modes["TCP"]) }},
	{"full", 'f', func(a, b *inventory.Activity) int { return cmp.Compare(rate(b.Full), rate(a.Full)) }},
	{"wakeups", 'w', func(a, b *inventory.Activity) int { return cmp.Compare(rate(b.Wakeups), rate(a.Wakeups)) }},
}

func rate(r *float64) float64 {
	if r == nil {
		return 0
	}
	return *r
}

func newTopCommand() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top [flags] [FILTER...]",
		Short: "Show the busiest services: connections by mode, bytes, new connections, reasons for TCP",
		Long: `Show the services of this machine whose connections gosmc handles, the busiest first, again and again: connections by
mode, bytes and new connections for each second, writes that found a full buffer, wakeups, and the main reasons of
connections that are TCP. Numbers that nobody counts are n/a, such as the bytes of 'gosmc run'.
Connections that begin and end between two looks are not seen.

On a terminal the view stays in place. Keys choose the order: b bytes, c connections, n new connections, t TCP, f full
buffers, w wakeups. p shows programs in place of services, where each end of a connection counts; s shows services; q ends. Ctrl-Z
stops, and fg goes on.
In a pipe each interval is a table, or with --json an object on a line.

A FILTER chooses connections, in the words of 'gosmc ss'. Root sees the programs of all users.`,
		Example: `  sudo gosmc top
  gosmc top --once
  gosmc top --by program --sort tcp -d 5s
  gosmc top sport = :6379
  gosmc top --json -n 10 | jq -c '.activity[] | [.command, .modes]'`,
		Args: func(_ *cobra.Command, args []string) (err error) {
			if f.filter, err = inventory.ParseFilter(args); err != nil {
				return usagef("%w", err)
			}
			return nil
		},
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"state", "src", "dst", "sport", "dport", "mode"},
			cobra.ShellCompDirectiveNoFileComp),
	}
	f.gather.register(cmd)
	var by string
	fl := cmd.Flags()
	f.delay = 2 * time.Second
	fl.VarP((*delay)(&f.delay), "delay", "d",
		"the `time` between two looks, such as 500ms; a number has seconds")
	fl.IntVarP(&f.count, "count", "n", 0, "end after this many `intervals`; 0: never")
	fl.BoolVar(&f.once, "once", false, "end after one interval, as with --count 1")
	fl.StringVar(&by, "by", "service", "`what` a line is of: service, program")
	fl.StringVar(&f.sort, "sort", "bytes", "`order`: bytes, connections, new, tcp, full, wakeups")
	cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]cobra.Completion{"service", "program"}, cobra.ShellCompDirectiveNoFileComp))
	var orders []cobra.Completion
	for _, o := range topOrders {
		orders = append(orders, o.name)
	}
	cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case by != "service" && by != "program":
			return usagef("--by %q: want service or program", by)
		case !slices.Contains(orders, f.sort):
			return usagef("--sort %q: want bytes, connections, new, tcp, full or wakeups", f.sort)
		case f.delay < 100*time.Millisecond || f.delay > 24*time.Hour:
			return usagef("--delay %v: want a time from 100ms to a day", f.delay)
		case f.count < 0:
			return usagef("--count %d: want a number from 0", f.count)
		}
		f.byProgram = by == "program"
		if f.once {
			f.count = 1
		}
		return f.run(cmd)
	}
	return cmd
}

// A delay is a time between two looks. A number alone has seconds.
type delay time.Duration

func (d *delay) String() string { return time.Duration(*d).String() }

func (d *delay) Type() string { return "duration" }

func (d *delay) Set(s string) error {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		s += "s"
	}
	v, err := time.ParseDuration(s)
	*d = delay(v)
	return err
}

// firstView is the longest time without numbers on a terminal.
const firstView = time.Second

// sample looks once.
func (f *topFlags) sample(ctx context.Context) (*inventory.Sample, survey.Answers) {
	g := f.gather.gather(ctx)
	r := newSSReport(&g, true, false)
	r.AddMoved(f.gather.dir, g.NetNS)
	return inventory.NewSample(&g, slices.DeleteFunc(r.Connections,
		func(c inventory.Conn) bool { return !f.filter.Connection(&c) })), g
}

func (f *topFlags) run(cmd *cobra.Command) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	var screen *topScreen
	var keys <-chan byte
	var signals <-chan os.Signal
	if in, ok := cmd.InOrStdin().(*os.File); ok && !f.gather.json && isTerminal(out) && isTerminal(in) {
		var err error
		if screen, err = newTopScreen(out, in); err != nil {
			return err
		}
		defer screen.restore()
		keys, signals = screen.keys, screen.signals
	}
	before, g := f.sample(ctx)
	var redraw func() error // the last view, in another order; nil: there is none yet
	if err := incomplete(&g); err != nil && screen == nil {
		return err
	}
	for n := 1; ; n++ {
		wait := f.delay
		if screen != nil && n == 1 {
			wait = min(wait, firstView)
		}
		next := time.NewTimer(wait)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				next.Stop()
				return nil // the way in which watching ends
			case key := <-keys:
				switch key {
				case 'q', 0:
					next.Stop()
					return nil
				case suspendKey:
					if err := screen.suspend(); err != nil {
						return err
					}
				default:
					f.key(key)
				}
				if redraw != nil { // rule: TestTopTerminal: redraw != nil -> false
					if err := redraw(); err != nil {
						return err
					}
				}
			case <-signals:
				if err := screen.resume(); err != nil {
					return err
				}
				if redraw != nil {
					if err := redraw(); err != nil {
						return err
					}
				}
			case <-next.C:
				waiting = false
			}
		}
		after, g := f.sample(ctx)
		earlier := before
		report := func() *topReport {
			r := &topReport{Schema: jsonSchema, Time: after.Time, Seconds: after.Time.Sub(earlier.Time).Seconds(),
				Activity: inventory.Activities(earlier, after, f.byProgram), Errors: g.Errors, Denied: g.Denied}
			f.order(r.Activity)
			return r
		}
		r := report()
		var err error
		switch {
		case f.gather.json:
			err = writeJSONLine(out, r)
		case screen != nil:
			redraw = func() error { return screen.show(report(), f) }
			err = screen.show(r, f)
		default:
			err = errors.Join(r.write(out, f.byProgram, 0), func() error {
				if n == f.count {
					return nil
				}
				_, err := fmt.Fprintln(out)
				return err
			}())
		}
		if err != nil || n == f.count {
			return err
		}
		before = after
	}
}

// key does what a key asks for; others are ignored.
func (f *topFlags) key(key byte) {
	switch key {
	case 'p':
		f.byProgram = true
	case 's':
		f.byProgram = false
	}
	for _, o := range topOrders {
		if o.key == key {
			f.sort = o.name
		}
	}
}

// order puts the busiest first.
func (f *topFlags) order(list []inventory.Activity) {
	for _, o := range topOrders {
		if o.name == f.sort {
			slices.SortStableFunc(list, func(a, b inventory.Activity) int {
				return cmp.Or(o.less(&a, &b), cmp.Compare(b.Connections(), a.Connections()))
			})
		}
	}
}

// write prints a table, of at most so many lines if most is not 0.
func (r *topReport) write(w io.Writer, byProgram bool, most int) error {
	t := table{Columns: []column{{Title: "Port", Right: true}, {Title: "Server"}, {Title: modeUnix, Right: true}, {Title: "SMC-D", Right: true},
		{Title: "SMC-R", Right: true}, {Title: "TCP", Right: true}, {Title: "In/s", Right: true}, {Title: "Out/s", Right: true},
		{Title: "New/s", Right: true}, {Title: "Full/s", Right: true}, {Title: "Wakeups/s", Right: true}, {Title: "Why TCP"}}}
	if byProgram {
		t.Columns[0].Title, t.Columns[1].Title = "PID", "Program"
	}
	number := func(v *float64) string {
		if v == nil {
			return "n/a"
		}
		return formatNumber(*v)
	}
	size := func(v *float64) string {
		if v == nil {
			return "n/a"
		}
		return formatBytes(int64(min(*v, 1<<62)))
	}
	for _, a := range r.Activity {
		var why []string
		for _, reason := range a.Reasons {
			why = append(why, fmt.Sprintf("%s %d", cmp.Or(reason.Tag, "no visible reason"), reason.Count))
		}
		count := func(mode string) string { return strconv.Itoa(a.Modes[mode]) }
		t.Add(strconv.Itoa(a.Port+a.PID), orNA(a.Command), count(modeUnix), count("SMC-D"), count("SMC-R"), count("TCP"), size(a.In), size(a.Out),
			formatNumber(a.New), number(a.Full), number(a.Wakeups), strings.Join(why, ", "))
		if most > 0 && t.Len() == most {
			break
		}
	}
	return t.Write(w)
}

// A topScreen is a terminal with a view that stays in place.
type topScreen struct {
	out   io.Writer
	in    *os.File
	saved unix.Termios
	keys  chan byte // 0: the input has ended

	signals chan os.Signal // to go on after a stop
}

// suspendKey is Ctrl-Z. The terminal passes it on as a key: a signal would stop this process before it
// could give the terminal back, or would have to be caught, which Go does not undo.
const suspendKey = 'z' & 0x1f

// stopTime bounds the wait for a stop that does not come.
const stopTime = 100 * time.Millisecond

// newTopScreen takes the terminal over: keys come at once, and are not shown.
func newTopScreen(out io.Writer, in *os.File) (*topScreen, error) {
	s := &topScreen{out: out, in: in, keys: make(chan byte), signals: make(chan os.Signal, 1)}
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
func (s *topScreen) take() error {
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
func (s *topScreen) suspend() error {
	s.restore() // rule: TestTopStops
	unix.Kill(0, unix.SIGTSTP)
	select {
	case <-s.signals:
	case <-time.After(stopTime):
	}
	return s.take() // rule: TestTopStops: s.take() -> error(nil)
}

// resume takes the terminal over once more: this process was stopped, and somebody else may have used
// it.
func (s *topScreen) resume() error {
	s.restore()
	return s.take()
}

// restore gives the terminal back as it was.
func (s *topScreen) restore() {
	io.WriteString(s.out, "\x1b[?25h\x1b[?1049l")
	unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, &s.saved)
}

// show replaces the view.
func (s *topScreen) show(r *topReport, f *topFlags) error {
	rows, columns := 24, 80
	size, err := unix.IoctlGetWinsize(int(s.in.Fd()), unix.TIOCGWINSZ)
	if err == nil && size.Row > 0 && size.Col > 0 {
		rows, columns = int(size.Row), int(size.Col)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "gosmc top  %s  sorted by %s  every %v", r.Time.Format(time.TimeOnly), f.sort, f.delay)
	if r.Denied > 0 {
		fmt.Fprintf(&b, "  (programs of other users are not shown: %d)", r.Denied)
	}
	b.WriteString("\nb c n t f w: order   s p: services, programs   q: end\n")
	if err := r.write(&b, f.byProgram, max(rows-3, 1)); err != nil {
		return err
	}
	var view strings.Builder
	view.WriteString("\x1b[H")
	for i, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		if i == rows {
			break
		}
		if i > 0 {
			view.WriteString("\r\n") // none below the last row, which would move the first one out of sight
		}
		text := []rune(line)
		view.WriteString(string(text[:min(len(text), columns-1)]) + "\x1b[K")
	}
	view.WriteString("\x1b[J")
	_, err = io.WriteString(s.out, view.String())
	return err
}
