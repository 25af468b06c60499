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

// A Table has the gain of each kind of work.
type Table struct {
	Source string `json:"source"` // of the values, for people
	rows   map[work]Gain
}

// A work is what a row of the bench is about. A program's own rows come before those of any program.
type work struct {
	server string // its command; empty: any
	class  Class
	out    bool // most bytes come from the server; bulk only
}

// A measure names a row of the bench, and of its transports the subject and the base.
type measure struct{ row, subject, base string }

// Transports of rows with one thing to measure, and of those with redis's GET.
var (
	get = [2]string{"run get", "tcp get"}
	all = [2]string{"run", "tcp"}
)

// nginxAsShipped is the row about nginx without a cache of open files, as most are.
const nginxAsShipped = "run-nginx-as-shipped"

func row(name string, transports [2]string) measure {
	return measure{name, transports[0], transports[1]}
}

// rowsOf names the row of the bench that is most like a work.
var rowsOf = map[work]measure{
	{class: Short}:           row("run-oneshot-apache", all),
	{class: Remote}:          row("smcr-bulk-1500", [2]string{"smc-r", "tcp"}),
	{class: Bulk}:            row("run-iperf3", all),
	{class: Bulk, out: true}: row("run-iperf3", [2]string{"run -R", "tcp -R"}),
	{class: One}:             row("run-redis-1", get),
	{class: Few}:             row("run-redis-8", get),
	{class: Many}:            row("run-redis", get),

	{server: "redis-server", class: One}:      row("run-redis-1", get),
	{server: "redis-server", class: Few}:      row("run-redis-8", get),
	{server: "redis-server", class: Many}:     row("run-redis", get),
	{server: "memcached", class: Few}:         row("run-memcached-8", all),
	{server: "memcached", class: Many}:        row("run-memcached-8", all),
	{server: "nginx", class: One}:             row(nginxAsShipped, [2]string{"run 1", "tcp 1"}),
	{server: "nginx", class: Few}:             row(nginxAsShipped, [2]string{"run 8", "tcp 8"}),
	{server: "nginx", class: Many}:            row(nginxAsShipped, [2]string{"run 64", "tcp 64"}),
	{server: "nginx", class: Bulk, out: true}: row("run-nginx", [2]string{"run 100k", "tcp 100k"}),
	{server: "haproxy", class: Few}:           row("run-haproxy-8", all),
	{server: "haproxy", class: Many}:          row("run-haproxy-8", all),
	{server: "varnishd", class: Few}:          row("run-varnish-8", all),
	{server: "varnishd", class: Many}:         row("run-varnish-8", all),
	{server: "node", class: Few}:              row("run-node-8", all),
	{server: "node", class: Many}:             row("run-node-8", all),
	{server: "postgres", class: One}:          row("run-pgbench-1", all),
	{server: "postgres", class: Few}:          row("run-pgbench", all),
	{server: "postgres", class: Many}:         row("run-pgbench", all),
}

// Shipped returns the table for machines without measurements of their own: medians of gosmc bench on
// the machine of docs/performance.md, with the lowest and the highest that were seen there.
func Shipped() Table {
	t := Table{Source: "shipped values", rows: make(map[work]Gain)}
	for w, m := range rowsOf {
		if g, ok := shipped[m]; ok {
			g.Row = m.row
			t.rows[w] = g
		}
	}
	return t
}

// shipped has the gains of rows on that machine.
var shipped = map[measure]Gain{
	rowsOf[work{class: Short}]:           {Low: 0.6, Expected: 0.85, High: 1},
	rowsOf[work{class: Remote}]:          {Low: 0.3, Expected: 0.4, High: 0.9},
	rowsOf[work{class: Bulk}]:            {Low: 3, Expected: 4, High: 6},
	rowsOf[work{class: Bulk, out: true}]: {Low: 3, Expected: 4, High: 6},
	rowsOf[work{class: One}]:             {Low: 2.5, Expected: 9, High: 15},
	rowsOf[work{class: Few}]:             {Low: 2.5, Expected: 8, High: 15},
	rowsOf[work{class: Many}]:            {Low: 3, Expected: 8, High: 14},

	rowsOf[work{server: "memcached", class: Few}]: {Low: 1, Expected: 1.3, High: 2.5},
	rowsOf[work{server: "nginx", class: One}]:     {Low: 2, Expected: 4.2, High: 5.5},
	rowsOf[work{server: "nginx", class: Few}]:     {Low: 0.9, Expected: 1.5, High: 2.4},
	rowsOf[work{server: "nginx", class: Many}]:    {Low: 1, Expected: 1.4, High: 1.8},
	rowsOf[work{server: "postgres", class: One}]:  {Low: 1.1, Expected: 2.1, High: 3.2},
	rowsOf[work{server: "postgres", class: Few}]:  {Low: 0.7, Expected: 1.1, High: 1.4},
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
	for w, want := range rowsOf {
		for _, r := range rows {
			if r.Name != want.row {
				continue
			}
			subject, base := r.transport(want.subject), r.transport(want.base)
			if subject.Min <= 0 || base.Min <= 0 || subject.Median <= 0 || base.Median <= 0 {
				continue // not measured
			}
			low, high := subject.Min/base.Max, subject.Max/base.Min
			t.rows[w] = Gain{low, subject.Median / base.Median, high, r.Name, ""}
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

// find returns the gain of a work, and whether the row is about its server.
func (t *Table) find(w work) (g Gain, own, ok bool) {
	if g, ok = t.rows[w]; ok && w.server != "" {
		return g, true, true
	}
	w.server = ""
	g, ok = t.rows[w]
	return g, false, ok
}

// gain returns the expected gain of a work, by programs with these loads. TCP is work of the kernel: a
// program that is busy gains no more than the time that it spends there. A server's own row has the time
// that such a server spends on itself, so the bound is for one that spends more, on other requests. Of other
// programs nobody knows how much of their time in the kernel is TCP's, so that they may gain little.
func (t *Table) gain(w work, loads []load) *Gain {
	g, own, ok := t.find(w)
	if !ok {
		return nil
	}
	var busiest load
	for _, l := range loads {
		if l.total() > busiest.total() {
			busiest = l
		}
	}
	if w.class == Short || w.class == Remote || busiest.total() < busyProcess {
		return &g
	}
	if own && busiest.user < ownWork*busiest.total() { // rule: TestGain
		return &g
	}
	bound := busiest.total() / (busiest.user + leftOfKernel*busiest.system)
	if bound < g.Expected { // rule: TestGain
		g.Expected, g.Bound = bound, "processor"
		g.Low = min(g.Low, 1+(bound-1)*capLow)
		g.High = min(g.High, bound*capHigh)
	}
	return &g
}
