// Package top has the view of gosmc top: the busiest services or programs of the machine, again and
// again, as tables, as JSON, or in place on a terminal. It is given samples, and asks nobody.
package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/terminal"
	"github.com/gosmc/smc/internal/text"
)

// A Report is the output of top --json, one object for each interval.
type Report struct {
	Schema   int                  `json:"schema"`
	Time     time.Time            `json:"time"`
	Seconds  float64              `json:"seconds"` // between the two samples
	Activity []inventory.Activity `json:"activity"`
	Errors   []survey.Error       `json:"errors"`
	Denied   int                  `json:"other_users"`
}

// A View says what is shown, and in which order. Keys on a terminal change ByProgram and Sort.
type View struct {
	// Sample looks once. The answers have the places that could not be read.
	Sample func(context.Context) (*inventory.Sample, survey.Answers)

	// Filter has Sample leave out the connections that a filter, in the words of gosmc ss, does not
	// choose. A terminal calls it with a filter that somebody has typed.
	Filter func(words string) error
	Words  string // the filter in force; empty: all connections

	Delay     time.Duration // between two looks
	Count     int           // ends after so many intervals; 0: never
	JSON      bool          // an object for each interval
	Plain     bool          // a table for each interval, on a terminal, too
	ByProgram bool          // a line for each program in place of each service
	Sort      string        // one of Orders

	prompt *prompt // nil: keys have their own meanings
	notice string  // why the filter that was typed is not in force
	help   bool    // the meaning of keys and columns is shown in place of the table
}

// A prompt is a filter that somebody is typing.
type prompt struct{ typed []byte }

// maxTyped bounds a filter that is typed, in bytes.
const maxTyped = 200

// key edits the filter, and returns whether it is complete, or given up.
func (p *prompt) key(key byte) (done, cancelled bool) {
	switch {
	case key == '\r' || key == '\n':
		return true, false
	case key == escapeKey:
		return false, true
	case key == 0x7f || key == '\b':
		p.typed = p.typed[:max(len(p.typed)-1, 0)]
	case key == 'u'&0x1f:
		p.typed = nil
	case key >= ' ' && key < 0x7f && len(p.typed) < maxTyped: // rule: TestPrompt: len(p.typed) < maxTyped -> true
		p.typed = append(p.typed, key)
	}
	return false, false
}

// orders are the orders of a view: the names of the flag, and the keys.
var orders = []struct {
	name string
	key  byte
	less func(a, b *inventory.Activity) int // the larger first
}{
	{"bytes", 'b', func(a, b *inventory.Activity) int {
		return cmp.Compare(rate(b.In)+rate(b.Out), rate(a.In)+rate(a.Out))
	}},
	{"connections", 'c', func(a, b *inventory.Activity) int {
		return cmp.Compare(b.Connections(), a.Connections())
	}},
	{"new", 'n', func(a, b *inventory.Activity) int { return cmp.Compare(b.New, a.New) }},
	{"tcp", 't', func(a, b *inventory.Activity) int { return cmp.Compare(b.Modes["TCP"], a.Modes["TCP"]) }},
	{"full", 'f', func(a, b *inventory.Activity) int { return cmp.Compare(rate(b.Full), rate(a.Full)) }},
	{"wakeups", 'w', func(a, b *inventory.Activity) int {
		return cmp.Compare(rate(b.Wakeups), rate(a.Wakeups))
	}},
}

// Orders returns the names of the orders, the default first.
func Orders() (names []string) {
	for _, o := range orders {
		names = append(names, o.name)
	}
	return names
}

func rate(r *float64) float64 {
	if r == nil {
		return 0
	}
	return *r
}

// firstView is the longest time without numbers on a terminal.
const firstView = time.Second

// Run shows views on out until ctx ends, a key ends it, or there were Count of them. Where out and in
// are terminals, it takes the terminal over, unless it writes JSON or the terminal is a dumb one.
// Elsewhere a place that does not exist is an error.
func (v *View) Run(ctx context.Context, out io.Writer, in io.Reader) error {
	var term *screen
	var keys <-chan byte
	var signals <-chan os.Signal
	if in, ok := in.(*os.File); ok && !v.JSON && !v.Plain && terminal.Moves(out) && terminal.Is(in) {
		var err error
		if term, err = newScreen(out, in); err != nil {
			return err
		}
		defer term.restore()
		keys, signals = term.keys, term.signals
	}
	before, g := v.Sample(ctx)
	var redraw func() error // the last view, in another order; nil: there is none yet
	if err := g.Incomplete(); err != nil && term == nil {
		return err
	}
	for n := 1; ; n++ {
		wait := v.Delay
		if term != nil && n == 1 {
			wait = min(wait, firstView)
		}
		next := time.NewTimer(wait)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				next.Stop()
				return nil // the way in which watching ends
			case key := <-keys:
				switch {
				case key == 0, key == 'q' && v.prompt == nil && !v.help:
					next.Stop()
					return nil
				case key == suspendKey:
					if err := term.suspend(); err != nil {
						return err
					}
				case v.key(key):
					// Numbers of the two looks are of the same connections only with the same filter.
					before, _ = v.Sample(ctx) // rule: cmd/gosmc TestTopTypedFilter
					next.Reset(min(v.Delay, firstView))
				}
				if redraw != nil { // rule: cmd/gosmc TestTopTerminal: redraw != nil -> false
					if err := redraw(); err != nil {
						return err
					}
				}
			case <-signals:
				if err := term.resume(); err != nil {
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
		after, g := v.Sample(ctx)
		earlier := before
		report := func() *Report {
			r := &Report{
				Schema: text.Schema, Time: after.Time, Seconds: after.Time.Sub(earlier.Time).Seconds(),
				Activity: inventory.Activities(earlier, after, v.ByProgram),
				Errors:   g.Errors, Denied: g.Denied,
			}
			v.order(r.Activity)
			return r
		}
		r := report()
		var err error
		switch {
		case v.JSON:
			err = text.JSONLine(out, r)
		case term != nil:
			redraw = func() error { return term.show(report(), v) }
			err = term.show(r, v)
		default:
			err = errors.Join(r.write(out, v.ByProgram, 0), func() error {
				if n == v.Count {
					return nil
				}
				_, err := fmt.Fprintln(out)
				return err
			}())
		}
		if err != nil || n == v.Count {
			return err
		}
		before = after
	}
}

// key does what a key asks for; others are ignored. It returns whether another filter is in force.
func (v *View) key(key byte) (filtered bool) {
	if v.prompt != nil {
		done, cancelled := v.prompt.key(key)
		typed := strings.TrimSpace(string(v.prompt.typed))
		if done || cancelled {
			v.prompt = nil
		}
		if !done {
			return false
		}
		if err := v.Filter(typed); err != nil {
			v.notice = err.Error()
			return false
		}
		v.Words = typed
		return true
	}
	v.notice = ""
	if v.help {
		v.help = false
		return false
	}
	switch key {
	case 'h', '?':
		v.help = true
	case '/':
		v.prompt = &prompt{typed: []byte(v.Words)}
	case 'p':
		v.ByProgram = true
	case 's':
		v.ByProgram = false
	}
	for _, o := range orders {
		if o.key == key {
			v.Sort = o.name
		}
	}
	return false
}

// noReason stands for the reason of a connection that is TCP where nothing shows one.
const noReason = "no visible reason"

// order puts the busiest first.
func (v *View) order(list []inventory.Activity) {
	for _, o := range orders {
		if o.name == v.Sort {
			slices.SortStableFunc(list, func(a, b inventory.Activity) int {
				return cmp.Or(o.less(&a, &b), cmp.Compare(b.Connections(), a.Connections()))
			})
		}
	}
}

// write prints a table, of at most so many lines if most is not 0.
func (r *Report) write(w io.Writer, byProgram bool, most int) error {
	t := text.Table{Columns: []text.Column{
		{Title: "Port", Right: true}, {Title: "Server"}, {Title: inventory.ModeUnix, Right: true},
		{Title: "SMC-D", Right: true}, {Title: "SMC-R", Right: true}, {Title: "TCP", Right: true},
		{Title: "In/s", Right: true}, {Title: "Out/s", Right: true}, {Title: "New/s", Right: true},
		{Title: "Full/s", Right: true}, {Title: "Wakeups/s", Right: true}, {Title: "Why TCP"},
	}}
	if byProgram {
		t.Columns[0].Title, t.Columns[1].Title = "PID", "Program"
	}
	number := func(v *float64) string {
		if v == nil {
			return "n/a"
		}
		return text.Number(*v)
	}
	size := func(v *float64) string {
		if v == nil {
			return "n/a"
		}
		return text.Bytes(int64(min(*v, 1<<62)))
	}
	for _, a := range r.Activity {
		var why []string
		for _, reason := range a.Reasons {
			why = append(why, fmt.Sprintf("%s %d", cmp.Or(reason.Tag, noReason), reason.Count))
		}
		count := func(mode string) string { return strconv.Itoa(a.Modes[mode]) }
		t.Add(strconv.Itoa(a.Port+a.PID), text.OrNA(a.Command),
			count(inventory.ModeUnix), count("SMC-D"), count("SMC-R"), count("TCP"),
			size(a.In), size(a.Out), text.Number(a.New), number(a.Full), number(a.Wakeups),
			strings.Join(why, ", "))
		if most > 0 && t.Len() == most {
			break
		}
	}
	return t.Write(w)
}
