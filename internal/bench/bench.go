// Package bench does the measurements of gosmc bench: the same work over several transports,
// between two processes. The table of rows is in rows.go, and a new row is one entry there. The
// work of the two processes in a row is a workload, and workloads have files of their own. The
// command decides which parts of a [Report] it prints.
package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/bench/program"
)

// A Row is one line of measurements: the same work over several transports.
type Row struct {
	Name       string
	Title      string // the measurement, in a few words
	Unit       string
	Transports []string // in the order in which they are measured and shown

	lower    bool // the lower value is the better one
	settings workSettings
	bounds   []bound

	// cpuBounds compare the processor time of an operation, of which less is always better.
	cpuBounds []bound

	// veth is the MTU of a veth pair between two network namespaces in which the workers
	// run; 0: they run side by side.
	veth int

	// pairs is how many such pairs there are: 0 is 1. More need namespaces.
	pairs int

	// pods says that the workers run in two containers.
	pods bool

	// work runs in the two worker processes; workOver has the work that replaces it over some
	// transports. There is neither in a benchmark that looks at the rounds of another one, called
	// from.
	work     *workload
	workOver map[string]*workload
	from     string

	// program is the work of a row in which other programs do it. They know nothing of us.
	program *program.Work

	// fetches says that programs are fetched and compiled, so that the row runs only if it is named.
	fetches bool

	// value makes the number of one round.
	value func(roundResult) float64
}

// workload is the work of the workers over a transport; nil if there is nothing to do.
func (b *Row) workload(transport string) *workload {
	if w := b.workOver[transport]; w != nil {
		return w
	}
	return b.work
}

// workSettings go to the workers.
type workSettings struct {
	NoSpin bool `json:"no_spin"` // Config.Spin is negative on both sides
	Size   int  `json:"size"`    // bytes of one message, write or body
	Conns  int  `json:"conns"`   // connections at a time
	MaxOps int  `json:"max_ops"` // a round ends when so many are done; 0: never
	Reads  int  `json:"reads"`   // bytes that the reader asks for at a time
	Packet int  `json:"packet"`  // bytes of payload in a packet, where that is ours to say
	Buffer int  `json:"buffer"`  // bytes of a socket's buffers; 0: as the library likes
}

// A bound compares two transports of a benchmark: the ratio of their medians, subject to against. Without
// against it is the median itself that is bounded, in the unit of the row.
type bound struct {
	subject string
	against string
	must    float64 // 0: none
	aim     float64 // 0: none
}

// A Bound compares two transports of a row: the ratio of their medians, subject to against.
type Bound struct {
	Subject string  `json:"subject"`
	Against string  `json:"against"` // empty: must and aim are values in the unit of the row
	Must    float64 `json:"must"`    // 0: none
	Aim     float64 `json:"aim"`     // 0: none
}

// Better says which value is the better one: "lower" or "higher".
func (b *Row) Better() string {
	if b.lower {
		return "lower"
	}
	return "higher"
}

// Bounds returns the values that the row must reach, and the values that it should reach.
func (b *Row) Bounds() []Bound {
	list := make([]Bound, len(b.bounds))
	for i, o := range b.bounds {
		list[i] = Bound{o.subject, o.against, o.must, o.aim}
	}
	return list
}

// Rows returns all rows, in the order in which they run.
func Rows() []*Row { return slices.Clone(rows) }

// CPUBounds returns the limits that the processor time of an operation must not exceed, and should
// not.
func (b *Row) CPUBounds() []Bound {
	list := make([]Bound, len(b.cpuBounds))
	for i, o := range b.cpuBounds {
		list[i] = Bound{o.subject, o.against, o.must, o.aim}
	}
	return list
}

// Names returns their names.
func Names() []string {
	var names []string
	for _, b := range rows {
		names = append(names, b.Name)
	}
	return names
}

func findRow(name string) *Row {
	i := slices.IndexFunc(rows, func(b *Row) bool { return b.Name == name })
	if i < 0 {
		return nil
	}
	return rows[i]
}

// Choose finds the named rows, in the order of the table. The first word of names is a name of those rows:
// pod. If none is named, it finds all but those that fetch programs.
func Choose(names []string) ([]*Row, error) {
	is := func(b *Row, name string) bool { return b.Name == name || strings.HasPrefix(b.Name, name+"-") }
	for _, name := range names {
		if name == "" || !slices.ContainsFunc(rows, func(b *Row) bool { return is(b, name) }) {
			return nil, fmt.Errorf("no benchmark %q; there are: %s", name, strings.Join(Names(), ", "))
		}
	}
	var chosen []*Row
	for _, b := range rows {
		// A row that others begin with is meant alone.
		if len(names) == 0 && !b.fetches || slices.ContainsFunc(names, func(name string) bool {
			return b.Name == name || findRow(name) == nil && is(b, name)
		}) {
			chosen = append(chosen, b)
		}
	}
	return chosen, nil
}

// A Plan says how long to measure.
type Plan struct {
	Quick   bool // shorter than Full, which a report says
	Rounds  int
	WarmUp  time.Duration
	Measure time.Duration
}

// The plans of the command.
var (
	Full  = Plan{Rounds: 5, WarmUp: 200 * time.Millisecond, Measure: time.Second}
	Quick = Plan{Quick: true, Rounds: 3, WarmUp: 100 * time.Millisecond, Measure: 300 * time.Millisecond}
)
