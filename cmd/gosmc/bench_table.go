package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// A benchReport is what bench --json prints.
type benchReport struct {
	Schema     int           `json:"schema"`
	Time       time.Time     `json:"time"` // of the start
	Machine    machine       `json:"machine"`
	Settings   benchSettings `json:"settings"`
	Benchmarks []benchResult `json:"benchmarks"`
	MustMissed []string      `json:"must_missed"` // in words, empty if all is well
}

type benchSettings struct {
	Quick          bool    `json:"quick"`
	Rounds         int     `json:"rounds"`
	WarmUpSeconds  float64 `json:"warm_up_seconds"`
	MeasureSeconds float64 `json:"measure_seconds"`
}

func newBenchSettings(p benchPlan, quick bool) benchSettings {
	return benchSettings{quick, p.rounds, p.warmUp.Seconds(), p.measure.Seconds()}
}

type benchResult struct {
	Name    string            `json:"name"`
	Title   string            `json:"title"`
	Unit    string            `json:"unit"`
	Better  string            `json:"better"` // "lower" or "higher"
	Note    string            `json:"note"`   // about where the two processes were; empty: side by side
	Results []transportResult `json:"results"`
	Bounds  []boundResult     `json:"bounds"`
}

// A transportResult sums up the rounds of one transport.
type transportResult struct {
	Transport   string    `json:"transport"`
	Mode        string    `json:"mode"` // what the connections turned out to be
	Median      float64   `json:"median"`
	Min         float64   `json:"min"`
	Max         float64   `json:"max"`
	Rounds      []float64 `json:"rounds"`
	P50         float64   `json:"p50_us"` // median over the rounds; 0 where no round trips are timed
	P99         float64   `json:"p99_us"`
	CPUs        float64   `json:"cpus"`         // CPU seconds of both processes per second
	BufferBytes int       `json:"buffer_bytes"` // receive buffer of a connection; 0: unknown
	LostPercent float64   `json:"lost_percent"` // of the packets, median over the rounds; 0: none, or unknown
	Error       string    `json:"error"`        // why there is no result
}

// A boundResult compares two transports.
type boundResult struct {
	Subject string  `json:"subject"`
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"` // of the medians
	Must    float64 `json:"must"`  // 0: none
	Aim     float64 `json:"aim"`   // 0: none
	Verdict verdict `json:"verdict"`
}

type verdict string

const (
	verdictMiss  verdict = "MISS"      // the must is missed
	verdictPass  verdict = "PASS"      // the must is met, the aim is not
	verdictAim   verdict = "PASS, AIM" // both are met, or there is no must
	verdictBelow verdict = "below aim" // there is no must, and the aim is not met
	verdictError verdict = "ERROR"     // a transport could not be measured
)

// evaluate fills in Benchmarks and MustMissed from the rounds.
func (r *benchReport) evaluate(chosen []*benchmark, rounds roundTable) {
	r.Benchmarks, r.MustMissed = []benchResult{}, []string{}
	for _, b := range chosen {
		measured := rounds[b.name]
		if b.from != "" {
			measured = rounds[b.from]
		}
		result := benchResult{Name: b.name, Title: b.title, Unit: b.unit, Better: "higher"}
		if b.lower {
			result.Better = "lower"
		}
		for _, name := range b.subjects {
			result.Results = append(result.Results, sumUp(b, name, measured[name]))
			for _, round := range measured[name] {
				result.Note = cmp.Or(result.Note, round.note)
			}
		}
		for _, bound := range b.bounds {
			e := bound.evaluate(b.lower, result.find(bound.subject), result.find(bound.against))
			result.Bounds = append(result.Bounds, e)
			if missed := e.missed(&result); missed != "" {
				r.MustMissed = append(r.MustMissed, missed)
			}
		}
		r.Benchmarks = append(r.Benchmarks, result)
	}
}

func (r *benchResult) find(transport string) transportResult {
	i := slices.IndexFunc(r.Results, func(t transportResult) bool { return t.Transport == transport })
	if i < 0 {
		return transportResult{Transport: transport, Error: "not measured"}
	}
	return r.Results[i]
}

// sumUp takes the medians of a transport's rounds. One failed round fails the transport.
func sumUp(b *benchmark, transport string, rounds []roundResult) transportResult {
	t := transportResult{Transport: transport, Rounds: []float64{}}
	var p50, p99, cpus, lost []float64
	for _, round := range rounds {
		if round.problem != "" {
			t.Error = round.problem
			return t
		}
		t.Rounds = append(t.Rounds, b.value(round))
		p50 = append(p50, float64(round.p50)/float64(time.Microsecond))
		p99 = append(p99, float64(round.p99)/float64(time.Microsecond))
		cpus = append(cpus, round.cpu)
		lost = append(lost, 100*round.lost)
		t.Mode, t.BufferBytes = round.mode, round.buffer
	}
	if len(rounds) == 0 {
		t.Error = "not measured"
		return t
	}
	t.Median, t.Min, t.Max = median(t.Rounds), slices.Min(t.Rounds), slices.Max(t.Rounds)
	t.P50, t.P99, t.CPUs = median(p50), median(p99), median(cpus)
	t.LostPercent = median(lost)
	return t
}

// evaluate compares the medians. lower says that the lower value is the better one, so
// that must and aim are upper bounds.
func (b bound) evaluate(lower bool, subject, against transportResult) boundResult {
	r := boundResult{Subject: b.subject, Against: b.against, Must: b.must, Aim: b.aim}
	if subject.Error != "" || against.Error != "" || against.Median <= 0 || subject.Median <= 0 {
		r.Verdict = verdictError
		return r
	}
	r.Ratio = subject.Median / against.Median
	meets := func(limit float64) bool {
		if lower {
			return r.Ratio <= limit
		}
		return r.Ratio >= limit
	}
	switch {
	case b.must != 0 && !meets(b.must):
		r.Verdict = verdictMiss
	case b.aim != 0 && meets(b.aim):
		r.Verdict = verdictAim
	case b.must != 0:
		r.Verdict = verdictPass
	default:
		r.Verdict = verdictBelow
	}
	return r
}

// missed says in words which must was missed; it is empty if none was.
func (e boundResult) missed(r *benchResult) string {
	switch e.Verdict {
	case verdictMiss:
		limit := "at least"
		if r.Better == "lower" {
			limit = "at most"
		}
		return fmt.Sprintf("%s: %s is %s of %s, must be %s %s", r.Name, e.Subject, formatRatio(e.Ratio), e.Against, limit, formatRatio(e.Must))
	case verdictError:
		why := r.find(e.Subject).Error
		if why == "" {
			why = r.find(e.Against).Error
		}
		return fmt.Sprintf("%s: %s against %s not measured: %s", r.Name, e.Subject, e.Against, orNA(why))
	case verdictPass, verdictAim, verdictBelow:
		return ""
	}
	panic("bench: impossible verdict " + string(e.Verdict))
}

// formatRatio prints a ratio below one tenth as a fraction, which is easier to think of.
func formatRatio(v float64) string {
	if v > 0 && v < 0.1 {
		return "1/" + formatNumberPlain(1/v)
	}
	return formatNumberPlain(v) + "x"
}

// formatNumberPlain is formatNumber without trailing zeros after the point.
func formatNumberPlain(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e6 {
		return fmt.Sprintf("%.0f", v)
	}
	s := formatNumber(math.Round(v*1e4) / 1e4)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// write prints the report for people.
func (r *benchReport) write(w io.Writer) error {
	head := table{columns: []column{{}, {}}}
	for _, l := range r.Machine.lines() {
		head.add(l[0], l[1])
	}
	head.add("Load", fmt.Sprintf("%.2f before the start", r.Machine.LoadAvg1))
	head.add("Commit", r.Machine.Commit)
	head.add("Rounds", fmt.Sprintf("%d of %g s, after %g s to warm up; values are medians", r.Settings.Rounds, r.Settings.MeasureSeconds, r.Settings.WarmUpSeconds))
	if err := head.write(w); err != nil {
		return err
	}
	if r.Machine.CPUs < 2 {
		fmt.Fprintln(w, "\nWith one CPU nothing can spin: of the round trips only pingpong-64-nospin means something.")
	}
	fmt.Fprintln(w)
	t := r.table()
	if err := t.write(w); err != nil {
		return err
	}
	if notes := r.notes(); len(notes) > 0 {
		fmt.Fprintln(w)
		for _, note := range notes {
			fmt.Fprintln(w, "NOTE", printable(note))
		}
	}
	if len(r.MustMissed) > 0 {
		fmt.Fprintln(w)
		for _, missed := range r.MustMissed {
			fmt.Fprintln(w, "MISS", printable(missed))
		}
	}
	return nil
}

// notes says what the table has no room for.
func (r *benchReport) notes() []string {
	var notes []string
	for _, b := range r.Benchmarks {
		if b.Note != "" {
			notes = append(notes, b.Name+": "+b.Note)
		}
		for _, t := range b.Results {
			if t.LostPercent > 0 {
				notes = append(notes, fmt.Sprintf("%s: %s lost %s %% of the packets", b.Name, t.Transport, formatNumber(t.LostPercent)))
			}
		}
	}
	return notes
}

// table has a line for each transport of each benchmark, and beside it the bound that
// compares SMC with that transport.
func (r *benchReport) table() *table {
	t := &table{columns: []column{
		{title: "BENCHMARK"}, {title: "UNIT"}, {title: "TRANSPORT"},
		{title: "MEDIAN", right: true}, {title: "MIN", right: true}, {title: "MAX", right: true}, {title: "P99", right: true},
		{title: "CPUS", right: true}, {title: "RATIO", right: true}, {title: "MUST", right: true}, {title: "AIM", right: true}, {},
	}}
	for i, b := range r.Benchmarks {
		if i > 0 {
			t.add()
		}
		for j, result := range b.Results {
			name, unit := "", ""
			if j == 0 {
				name, unit = b.Name, b.Unit
			}
			if result.Error != "" {
				t.add(name, unit, result.Transport, "", "", "", "", "", "", "", "", "ERROR "+printable(result.Error))
				continue
			}
			p99 := ""
			if result.P99 > 0 {
				p99 = formatNumber(result.P99)
			}
			row := []string{
				name, unit, result.Transport, formatNumber(result.Median), formatNumber(result.Min),
				formatNumber(result.Max), p99, formatNumber(result.CPUs),
			}
			t.add(append(row, b.compare(result.Transport)...)...)
		}
	}
	return t
}

// compare makes the cells RATIO, MUST, AIM and verdict of the bound against a transport.
func (b *benchResult) compare(against string) []string {
	for _, e := range b.Bounds {
		if e.Against != against {
			continue
		}
		sign := "≥ "
		if b.Better == "lower" {
			sign = "≤ "
		}
		must, aim, ratio := "", "", ""
		if e.Must != 0 {
			must = sign + formatRatio(e.Must)
		}
		if e.Aim != 0 {
			aim = sign + formatRatio(e.Aim)
		}
		if e.Verdict != verdictError {
			ratio = e.Subject + " " + formatRatio(e.Ratio)
		}
		return []string{ratio, must, aim, string(e.Verdict)}
	}
	return nil
}
