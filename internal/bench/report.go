package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/measure"
)

// A Report is the output of bench --json.
type Report struct {
	Schema     int             `json:"schema"` // the version of the command's output; Run leaves it zero
	Time       time.Time       `json:"time"`   // of the start
	Machine    measure.Machine `json:"machine"`
	Settings   Settings        `json:"settings"`
	Benchmarks []Result        `json:"benchmarks"`
	MustMissed []string        `json:"must_missed"` // in words, empty if all is well
}

// Settings say how a report was measured.
type Settings struct {
	Quick          bool    `json:"quick"`
	Rounds         int     `json:"rounds"`
	WarmUpSeconds  float64 `json:"warm_up_seconds"`
	MeasureSeconds float64 `json:"measure_seconds"`
}

func newSettings(p Plan) Settings {
	return Settings{p.Quick, p.Rounds, p.WarmUp.Seconds(), p.Measure.Seconds()}
}

// A Result is the measurement of a row.
type Result struct {
	Name    string            `json:"name"`
	Title   string            `json:"title"`
	Unit    string            `json:"unit"`
	Better  string            `json:"better"` // "lower" or "higher"
	Note    string            `json:"note"`   // about where the two processes were; empty: side by side
	Results []TransportResult `json:"results"`
	Bounds  []BoundResult     `json:"bounds"`

	// CPUBounds compare the processor time of an operation; empty where that is not measured by itself.
	CPUBounds []BoundResult `json:"cpu_bounds"`
}

// A TransportResult sums up the rounds of one transport.
type TransportResult struct {
	Transport string    `json:"transport"`
	Mode      string    `json:"mode"` // the actual mode of the connections
	Median    float64   `json:"median"`
	Min       float64   `json:"min"`
	Max       float64   `json:"max"`
	Rounds    []float64 `json:"rounds"`
	P50       float64   `json:"p50_us"` // median over the rounds; 0 where no round trips are timed
	P99       float64   `json:"p99_us"`
	CPUs      float64   `json:"cpus"` // CPU seconds of both processes per second
	// CPU time of all processes for an operation, in microseconds; 0: not measured by itself
	CPUEach     float64 `json:"cpu_us_each"`
	BufferBytes int     `json:"buffer_bytes"` // receive buffer of a connection; 0: unknown
	LostPercent float64 `json:"lost_percent"` // of the packets, median over the rounds; 0: none, or unknown
	Error       string  `json:"error"`        // why there is no result
}

// A BoundResult compares two transports.
type BoundResult struct {
	Subject string  `json:"subject"`
	Against string  `json:"against"` // empty: ratio, must and aim are values in the unit of the row
	Ratio   float64 `json:"ratio"`   // of the medians
	Must    float64 `json:"must"`    // 0: none
	Aim     float64 `json:"aim"`     // 0: none
	Verdict Verdict `json:"verdict"`
}

// A Verdict says how a ratio compares with its bound.
type Verdict string

const (
	Miss     Verdict = "MISS"      // the must is missed
	Pass     Verdict = "PASS"      // the must is met, the aim is not
	PassAim  Verdict = "PASS, AIM" // both are met, or there is no must
	BelowAim Verdict = "below aim" // there is no must, and the aim is not met
	Failed   Verdict = "ERROR"     // a transport could not be measured
)

// Nothing is why nothing at all could be measured; empty if something was.
func (r *Report) Nothing() string {
	why := ""
	for _, b := range r.Benchmarks {
		for _, t := range b.Results {
			if t.Error == "" {
				return ""
			}
			why = cmp.Or(why, t.Error)
		}
	}
	return why
}

// evaluate fills in Benchmarks and MustMissed from the rounds.
func (r *Report) evaluate(chosen []*Row, rounds roundTable) {
	r.Benchmarks, r.MustMissed = []Result{}, []string{}
	for _, b := range chosen {
		measured := rounds[b.Name]
		if b.from != "" {
			measured = rounds[b.from]
		}
		result := Result{Name: b.Name, Title: b.Title, Unit: b.Unit, Better: b.Better()}
		for _, name := range b.Transports {
			result.Results = append(result.Results, sumUp(b, name, measured[name]))
			for _, round := range measured[name] {
				result.Note = cmp.Or(result.Note, round.note)
			}
		}
		for _, bound := range b.bounds {
			e := bound.evaluate(b.lower, result.find(bound.subject), result.against(bound))
			result.Bounds = append(result.Bounds, e)
			if missed := e.missed(&result); missed != "" {
				r.MustMissed = append(r.MustMissed, missed)
			}
		}
		result.CPUBounds = []BoundResult{}
		for _, bound := range b.cpuBounds {
			e := bound.evaluate(true, result.find(bound.subject).ofCPU(), result.find(bound.against).ofCPU())
			result.CPUBounds = append(result.CPUBounds, e)
			if e.Verdict == Miss { // a missing measurement is reported above
				r.MustMissed = append(r.MustMissed,
					fmt.Sprintf("%s: %s takes %s of the processor time of %s, must be at most %s",
						result.Name, e.Subject, FormatRatio(e.Ratio), e.Against, FormatRatio(e.Must)))
			}
		}
		r.Benchmarks = append(r.Benchmarks, result)
	}
}

func (r *Result) find(transport string) TransportResult {
	i := slices.IndexFunc(r.Results, func(t TransportResult) bool { return t.Transport == transport })
	if i < 0 {
		return TransportResult{Transport: transport, Error: "not measured"}
	}
	return r.Results[i]
}

// against returns the value that a bound compares with: 1 if there is none.
func (r *Result) against(b bound) TransportResult {
	if b.against == "" {
		return TransportResult{Median: 1}
	}
	return r.find(b.against)
}

// ofCPU is a result for the comparison of processor time.
func (t TransportResult) ofCPU() TransportResult {
	t.Median = t.CPUEach
	return t
}

// sumUp takes the medians of a transport's rounds. One failed round fails the transport.
func sumUp(b *Row, transport string, rounds []roundResult) TransportResult {
	t := TransportResult{Transport: transport, Rounds: []float64{}}
	var p50, p99, cpus, each, lost []float64
	for _, round := range rounds {
		if round.problem != "" {
			t.Error = round.problem
			return t
		}
		t.Rounds = append(t.Rounds, b.value(round))
		p50 = append(p50, float64(round.p50)/float64(time.Microsecond))
		p99 = append(p99, float64(round.p99)/float64(time.Microsecond))
		cpus = append(cpus, round.cpu)
		each = append(each, 1e6*round.cpuEach)
		lost = append(lost, 100*round.lost)
		t.Mode, t.BufferBytes = round.mode, round.buffer
	}
	if len(rounds) == 0 {
		t.Error = "not measured"
		return t
	}
	t.Median, t.Min, t.Max = measure.Median(t.Rounds), slices.Min(t.Rounds), slices.Max(t.Rounds)
	t.P50, t.P99, t.CPUs = measure.Median(p50), measure.Median(p99), measure.Median(cpus)
	t.CPUEach = measure.Median(each)
	t.LostPercent = measure.Median(lost)
	return t
}

// evaluate compares the medians. lower says that the lower value is the better one, so
// that must and aim are upper bounds.
func (b bound) evaluate(lower bool, subject, against TransportResult) BoundResult {
	r := BoundResult{Subject: b.subject, Against: b.against, Must: b.must, Aim: b.aim}
	if subject.Error != "" || against.Error != "" || against.Median <= 0 || subject.Median <= 0 {
		r.Verdict = Failed
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
		r.Verdict = Miss
	case b.aim != 0 && meets(b.aim):
		r.Verdict = PassAim
	case b.must != 0:
		r.Verdict = Pass
	default:
		r.Verdict = BelowAim
	}
	return r
}

// missed says in words which must was missed; it is empty if none was.
func (e BoundResult) missed(r *Result) string {
	switch e.Verdict {
	case Miss:
		limit := "at least"
		if r.Better == "lower" {
			limit = "at most"
		}
		if e.Against == "" {
			return fmt.Sprintf("%s: %s is %s %s, must be %s %s", r.Name, e.Subject,
				formatNumberPlain(e.Ratio), r.Unit, limit, formatNumberPlain(e.Must))
		}
		return fmt.Sprintf("%s: %s is %s of %s, must be %s %s", r.Name, e.Subject, FormatRatio(e.Ratio),
			e.Against, limit, FormatRatio(e.Must))
	case Failed:
		why := r.find(e.Subject).Error
		if e.Against == "" {
			return fmt.Sprintf("%s: %s not measured: %s", r.Name, e.Subject, cmp.Or(why, "n/a"))
		}
		if why == "" {
			why = r.find(e.Against).Error
		}
		return fmt.Sprintf("%s: %s against %s not measured: %s", r.Name, e.Subject, e.Against,
			cmp.Or(why, "n/a"))
	case Pass, PassAim, BelowAim:
		return ""
	}
	panic("bench: impossible Verdict " + string(e.Verdict))
}

// Format prints a value of a bound: a ratio, or a value in the unit of the row.
func (e BoundResult) Format(v float64) string {
	if e.Against == "" {
		return formatNumberPlain(v)
	}
	return FormatRatio(v)
}

// FormatRatio prints a ratio below one tenth as a fraction, which is easier to think of.
func FormatRatio(v float64) string {
	if v > 0 && v < 0.1 {
		return "1/" + formatNumberPlain(1/v)
	}
	return formatNumberPlain(v) + "x"
}

// formatNumberPlain prints three significant digits, or all before the point, without trailing zeros.
func formatNumberPlain(v float64) string {
	places := 0
	if a := math.Abs(v); a > 0 && a < 100 {
		places = min(2-int(math.Floor(math.Log10(a))), 4)
	}
	text := strconv.FormatFloat(v, 'f', places, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
