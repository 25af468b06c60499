package applicable

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// A Class is the kind of the traffic of a pair, which decides its gain.
type Class string

// Classes of traffic.
const (
	Short    Class = "short"    // connections that end before they could gain
	Idle     Class = "idle"     // too little for a difference
	Bulk     Class = "bulk"     // large segments
	One      Class = "one"      // requests and answers; a client that waits for each answer
	Few      Class = "few"      // the same on some connections
	Many     Class = "many"     // the same on many connections
	Stranger Class = "stranger" // with a host of which nothing says that it speaks SMC
	Remote   Class = "remote"   // with a host that speaks SMC-R
)

// A Gain is the expected speed as a multiple of that over TCP.
type Gain struct {
	Low      float64 `json:"low"`
	Expected float64 `json:"expected"`
	High     float64 `json:"high"`
	Row      string  `json:"row"`   // of the table; empty: no row is about such traffic
	Bound    string  `json:"bound"` // "processor" if the time that programs need for themselves bounds it
}

// A Table has the gain of each class.
type Table struct {
	Source string `json:"source"` // of the values, for people
	rows   map[Class]Gain
}

// rowOf names the row of the bench that is most like a class: subject and base are transports.
var rowOf = map[Class]struct{ row, subject, base string }{
	Short: {"run-connect", "run", "tcp"}, Bulk: {"run-iperf3", "run", "tcp"},
	One: {"run-redis-1", "run get", "tcp get"}, Few: {"run-redis-8", "run get", "tcp get"},
	Many: {"run-redis", "run get", "tcp get"}, Remote: {"smcr-bulk-1500", "smc-r", "tcp"},
}

// Shipped returns the table for machines without measurements of their own: medians of gosmc bench on
// the machine of docs/performance.md where the changelog has them, with the bounds that the bench
// demands at the low end.
func Shipped() Table {
	return Table{"shipped values", map[Class]Gain{
		Short: {0.6, 0.85, 1, "run-connect", ""}, Bulk: {3, 4.5, 6, "run-iperf3", ""},
		One: {2.5, 5.7, 6.5, "run-redis-1", ""}, Few: {2.5, 6.7, 7.7, "run-redis-8", ""},
		Many: {3, 6, 9.7, "run-redis", ""}, Remote: {0.3, 0.4, 0.9, "smcr-bulk-1500", ""},
	}}
}

// A Row is one row of gosmc bench --json, as far as it is needed here.
type Row struct {
	Name    string      `json:"name"`
	Results []Transport `json:"results"`
}

// A Transport has the values of one transport of a row: the median of the rounds, and the extremes.
type Transport struct {
	Transport string  `json:"transport"`
	Median    float64 `json:"median"`
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`
}

// Measured returns the shipped table with the values of measured rows in their place. It returns an
// error if no row is of use.
func Measured(source string, rows []Row) (Table, error) {
	t := Shipped()
	t.Source = source
	used := 0
	for class, want := range rowOf {
		for _, r := range rows {
			if r.Name != want.row {
				continue
			}
			subject, base := r.transport(want.subject), r.transport(want.base)
			if subject.Min <= 0 || base.Min <= 0 || subject.Median <= 0 || base.Median <= 0 {
				continue // not measured
			}
			low, high := subject.Min/base.Max, subject.Max/base.Min
			t.rows[class] = Gain{low, subject.Median / base.Median, high, r.Name, ""}
			used++
		}
	}
	if used == 0 {
		return t, fmt.Errorf("%s has no row that is of use: measure with "+
			"'gosmc bench --json --only run > FILE'", source)
	}
	return t, nil
}

// maxTable bounds a file of measurements, in bytes.
const maxTable = 16 << 20

// ReadTable returns the table of a file that gosmc bench --json has written.
func ReadTable(path string) (Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return Table{}, err
	}
	defer f.Close()
	var report struct {
		Benchmarks []Row `json:"benchmarks"`
	}
	if err := json.NewDecoder(io.LimitReader(f, maxTable)).Decode(&report); err != nil {
		return Table{}, fmt.Errorf("%s is no output of 'gosmc bench --json': %w", path, err)
	}
	return Measured(path, report.Benchmarks)
}

func (r *Row) transport(name string) Transport {
	for _, t := range r.Results {
		if t.Transport == name {
			return t
		}
	}
	return Transport{}
}

// gain returns the expected gain of a class, for programs with these loads. TCP is work of the
// kernel: a program that is busy gains no more than the time that it spends there.
func (t *Table) gain(class Class, loads []load) *Gain {
	g, ok := t.rows[class]
	if !ok {
		return nil
	}
	var busiest load
	for _, l := range loads {
		if l.total() > busiest.total() {
			busiest = l
		}
	}
	if class == Short || class == Remote || busiest.total() < busyProcess {
		return &g
	}
	bound := busiest.total() / (busiest.user + leftOfKernel*busiest.system)
	if bound < g.Expected { // rule: TestGain
		g.Expected, g.Bound = bound, "processor"
		g.Low = min(g.Low, bound*capLow)
		g.High = min(g.High, bound*capHigh)
	}
	return &g
}
