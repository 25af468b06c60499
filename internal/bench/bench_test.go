package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/internal/bench/program"
	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/measure"
	"github.com/gosmc/smc/internal/pod"
	"github.com/gosmc/smc/internal/smctest"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// childOfTest tells the test program that it is a worker, or makes network namespaces for workers.
const childOfTest = "GOSMC_CHILD_OF_TEST"

func TestMain(m *testing.M) {
	smctest.Apart()
	if os.Getenv(childOfTest) != "" {
		err := errors.New("no such verb")
		switch os.Args[1] {
		case WorkerVerb:
			err = Work(os.Stdin, os.Stdout)
		case NetnsVerb:
			err = KeepNetns(context.Background(), os.Stdin, os.Stdout)
		case pod.AgentVerb:
			err = pod.ServeAgent(os.Stdin, os.Stdout)
		}
		if err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	smctest.MainChildren(m, childOfTest)
}

// golden compares v as JSON with a file in testdata.
func golden(t *testing.T, name string, v any) {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("%s (-want +got; go test -update rewrites it):\n%s", name, diff)
	}
}

// The registry is consistent: names are unique, bounds compare subjects that are measured.
func TestBenchmarks(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range rows {
		if seen[b.Name] {
			t.Errorf("two rows are called %q", b.Name)
		}
		seen[b.Name] = true
		if b.Title == "" || b.Unit == "" || b.value == nil || len(b.bounds) == 0 {
			t.Errorf("%s lacks a title, a unit, a value or a bound", b.Name)
		}
		if b.from != "" && (findRow(b.from) == nil || findRow(b.from).from != "") {
			t.Errorf("%s is made from %q, which measures nothing", b.Name, b.from)
		}
		for _, transport := range b.Transports {
			if b.program != nil {
				// A program is bare in one of the ways, or there is nothing to compare with.
				way, _, _ := strings.Cut(transport, " ")
				if !slices.Contains([]string{transportTCP, program.Transport, program.Compiled}, way) || (way == program.Compiled) && !b.fetches {
					t.Errorf("%s has programs over %q", b.Name, transport)
				}
				continue
			}
			if transports[transport] == nil {
				t.Errorf("%s uses transport %q, which does not exist", b.Name, transport)
			}
			if hasWork := b.workload(transport) != nil; hasWork != (b.from == "") {
				t.Errorf("%s has work over %s = %v and from = %q, want one of them", b.Name, transport, hasWork, b.from)
			}
		}
		if b.program != nil && (b.work != nil || b.workOver != nil || b.from != "") {
			t.Errorf("%s has programs, and other work", b.Name)
		}
		for _, bound := range b.cpuBounds {
			if b.program == nil || !slices.Contains(b.Transports, bound.subject) || !slices.Contains(b.Transports, bound.against) {
				t.Errorf("%s compares the processor time of %s with %s, and measures only %v", b.Name, bound.subject, bound.against, b.Transports)
			}
		}
		for _, bound := range b.bounds {
			if !slices.Contains(b.Transports, bound.subject) || bound.against != "" && !slices.Contains(b.Transports, bound.against) {
				t.Errorf("%s compares %s with %s, and measures only %v", b.Name, bound.subject, bound.against, b.Transports)
			}
			if harder := bound.aim > bound.must; bound.must != 0 && bound.aim != 0 && harder == b.lower {
				t.Errorf("%s: aim %v is easier than must %v", b.Name, bound.aim, bound.must)
			}
		}
	}
}

func TestChooseBenchmarks(t *testing.T) {
	all, err := Choose(nil)
	fetching := func(b *Row) bool { return b.fetches }
	if err != nil || slices.ContainsFunc(all, fetching) || len(all) != len(rows)-4 {
		t.Errorf("Choose(nothing) = %d, %v, want all %d but the four that fetch programs", len(all), err, len(rows))
	}
	if pods, err := Choose([]string{"pod"}); err != nil || len(pods) != 11 || pods[0].Name != "pod-pingpong" {
		t.Errorf(`Choose("pod") = %v, %v, want the eleven rows`, pods, err)
	}
	if programs, err := Choose([]string{"go"}); err != nil || len(programs) != 4 || !fetching(programs[0]) {
		t.Errorf(`Choose("go") = %v, %v, want the four rows`, programs, err)
	}
	if one, err := Choose([]string{"connect", "http"}); err != nil || len(one) != 2 {
		t.Errorf("Choose = %v, %v, want the rows that have these names alone", one, err)
	}
	some, err := Choose([]string{"cpu", "bulk-64k"})
	if err != nil || len(some) != 2 || some[0].Name != "bulk-64k" {
		t.Errorf("chooseBenchmarks(cpu, bulk-64k) = %v, %v, want both in the order of the registry", some, err)
	}
}

func TestBound(t *testing.T) {
	at := func(v float64) TransportResult { return TransportResult{Median: v} }
	for _, tt := range []struct {
		name             string
		lower            bool
		must, aim        float64
		subject, against TransportResult
		want             Verdict
	}{
		{"higher, missed", false, 4, 10, at(3.99), at(1), Miss},
		{"higher, exactly", false, 4, 10, at(4), at(1), Pass},
		{"higher, aim", false, 4, 10, at(10), at(1), PassAim},
		{"higher, no aim", false, 2.5, 0, at(9), at(1), Pass},
		{"higher, only aim, below", false, 0, 0.85, at(84), at(100), BelowAim},
		{"higher, only aim, met", false, 0, 0.85, at(85), at(100), PassAim},
		{"lower, missed", true, 1, 0.5, at(1.01), at(1), Miss},
		{"lower, exactly", true, 1, 0.5, at(1), at(1), Pass},
		{"lower, aim", true, 1, 0.5, at(0.5), at(1), PassAim},
		{"subject failed", true, 1, 0.5, TransportResult{Error: "x"}, at(1), Failed},
		{"other failed", false, 1, 2, at(1), TransportResult{Error: "x"}, Failed},
		{"nothing to divide by", false, 1, 2, at(1), at(0), Failed},
		{"nothing done", true, 1, 0.5, at(0), at(1), Failed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bound{"smc-d", "tcp", tt.must, tt.aim}
			if got := b.evaluate(tt.lower, tt.subject, tt.against); got.Verdict != tt.want {
				t.Errorf("evaluate = %+v, want %s", got, tt.want)
			}
		})
	}
}

// testRounds has a miss, a pass, a failed transport, derived values, and notes.
func testRounds() roundTable {
	bulk := func(rate, cpu float64) roundResult {
		return roundResult{rate: rate / 65536, bytes: rate, cpu: cpu, mode: "tcp"}
	}
	trip := func(us int) roundResult {
		return roundResult{rate: 1e6 / float64(us), p50: time.Duration(us) * time.Microsecond, p99: time.Duration(3*us) * time.Microsecond, cpu: 1.5, mode: "tcp"}
	}
	smcd := bulk(9e9, 1.9)
	smcd.mode, smcd.buffer = "SMC-D", 2<<20
	smcd.note, smcd.lost = "in a place of its own", 0.001
	return roundTable{
		"pingpong-64": {
			"tcp":   {trip(30), trip(20), trip(40)},
			"unix":  {trip(21), trip(22), trip(23)},
			"smc-d": {{problem: "mode is TCP, not SMC-D: no run directory"}},
		},
		"bulk-64k": {
			"tcp":   {bulk(2e9, 1.5), bulk(4e9, 1.5), bulk(3e9, 1.5)},
			"unix":  {bulk(4e9, 1.5), bulk(4e9, 1.5), bulk(4e9, 1.5)},
			"smc-d": {smcd, smcd, smcd},
			"limit": {bulk(10e9, 2), bulk(11e9, 2), bulk(12e9, 2)},
		},
	}
}

func testReport(t *testing.T) *Report {
	t.Helper()
	chosen, err := Choose([]string{"pingpong-64", "bulk-64k", "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	r := &Report{
		Schema: 1, Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Machine: testMachine,
		Settings: newSettings(Quick),
	}
	r.evaluate(chosen, testRounds())
	return r
}

var testMachine = measure.Machine{
	Kernel: "Linux 6.1 x86_64", CPU: "A CPU", CPUs: 2, Caches: []measure.Cache{{Level: 1, Type: "Data", Size: "32K"}, {Level: 1, Type: "Instruction", Size: "32K"}, {Level: 2, Type: "Unified", Size: "1024K"}},
	Governor: "performance", CPUQuota: "1.5", LoadAvg1: 0.25, GOMAXPROCS: 2, Go: "go1.26", Commit: "abc",
}

func TestReport(t *testing.T) {
	r := testReport(t)
	golden(t, "bench.json", r)
	want := []string{
		"pingpong-64: smc-d against tcp not measured: mode is TCP, not SMC-D: no run directory",
		"bulk-64k: smc-d is 3x of tcp, must be at least 4x",
		"bulk-64k: smc-d is 2.25x of unix, must be at least 2.5x",
	}
	if !slices.Equal(r.MustMissed, want) {
		t.Errorf("must missed = %q, want %q", r.MustMissed, want)
	}
}

// A bound without another transport is one on the value.
func TestReportOfValue(t *testing.T) {
	r := &Report{}
	r.evaluate([]*Row{findRow("smcr-failover")}, roundTable{"smcr-failover": {transportLinks: {{slowest: 2.5}}}})
	if want := []string{"smcr-failover: 2 links is 2.5 s, must be at most 2"}; !slices.Equal(r.MustMissed, want) {
		t.Errorf("must missed = %q, want %q", r.MustMissed, want)
	}
	r.evaluate([]*Row{findRow("smcr-failover")}, roundTable{"smcr-failover": {transportLinks: {{problem: "no luck"}}}})
	if want := []string{"smcr-failover: 2 links not measured: no luck"}; !slices.Equal(r.MustMissed, want) {
		t.Errorf("must missed = %q, want %q", r.MustMissed, want)
	}
	r.evaluate([]*Row{findRow("smcr-failover")}, roundTable{"smcr-failover": {transportLinks: {{slowest: 0.15}}}})
	if got := r.Benchmarks[0].Bounds[0].Verdict; got != PassAim || len(r.MustMissed) != 0 {
		t.Errorf("verdict %s, must missed = %q, want %s", got, r.MustMissed, PassAim)
	}
}

func TestMeterMaxOps(t *testing.T) {
	m := newMeter(workSettings{MaxOps: 20}, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !m.stopped() {
			m.count(1, 10)
		}
	}()
	<-m.working // the warm-up stops by itself
	if n := m.ops.Load(); n != 2 {
		t.Errorf("warm-up stopped after %d operations, want 2", n)
	}
	m.beginInterval()
	<-done
	m.finish() // too late
	if got := m.report(); got.Ops != 20 || got.Bytes != 200 || got.Seconds <= 0 {
		t.Errorf("report = %+v, want 20 operations and 200 bytes", got)
	}
}

// A worker that fails in its warm-up must not wait for an interval that never begins.
func TestMeterFinishWithoutBegin(t *testing.T) {
	m := newMeter(workSettings{MaxOps: 10}, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 5 {
			m.count(1, 0)
		}
	}()
	<-m.working
	m.finish()
	<-done
	m.beginInterval()
	if !m.stopped() {
		t.Error("a finished meter began again")
	}
}

var tinyPlan = Plan{Rounds: 1, WarmUp: 10 * time.Millisecond, Measure: 100 * time.Millisecond}

// Every benchmark does its work in two processes; one of them over every transport, and so do
// those that have a workload for each. Rows of other programs: TestBenchRun of cmd/gosmc; of containers: TestMeasurePods.
func TestMeasureRound(t *testing.T) {
	var st stage
	for _, b := range rows {
		if b.from != "" || b.program != nil || b.pods {
			continue
		}
		for _, transport := range b.Transports {
			if b != findRow("bulk-64k") && b.workOver == nil && b.pairs == 0 && transport != transportTCP && transport != transportSMCD && transport != transportSMCR {
				continue
			}
			t.Run(b.Name+"/"+transport, func(t *testing.T) {
				r, err := st.measureRound(t.Context(), b, transport, tinyPlan, ringDefault)
				if errors.Is(err, errIdle) { // others have the processors
					r, err = st.measureRound(t.Context(), b, transport, Plan{Rounds: 1, WarmUp: 100 * time.Millisecond, Measure: 3 * time.Second}, ringDefault)
				}
				if err != nil {
					t.Fatalf("measureRound = %v", err)
				}
				if b.value(r) <= 0 || r.rate <= 0 || r.bytes <= 0 {
					t.Errorf("measureRound = %+v, want a value", r)
				}
				if b.Unit == "µs" && (r.p50 <= 0 || r.p99 < r.p50) {
					t.Errorf("p50 %v and p99 %v, want both in order", r.p50, r.p99)
				}
				if (r.note == "") != (b.veth == 0) {
					t.Errorf("note is %q, want one for veth only", r.note)
				}
				for mode, of := range map[string][]string{"SMC-D": {transportSMCD}, "SMC-R": {transportSMCR, transportLink, transportLinks}, "RoCEv2": {transportRDMA, transportLossless}} {
					if got, want := strings.HasPrefix(r.mode, mode), slices.Contains(of, transport); got != want {
						t.Errorf("mode of %s is %q", transport, r.mode)
					}
				}
				if transport == transportSMCD && r.buffer <= 0 {
					t.Errorf("buffer of %s is %d, want its size", transport, r.buffer)
				}
				if lossy := b == findRow("rdma-loss-1pct") && transport == transportRDMA; lossy && (r.lost < 0.001 || r.lost > 0.1) {
					t.Errorf("%.3g of the packets were lost, want about 0.01", r.lost)
				}
			})
		}
	}
}

// A problem of a worker becomes the result of its transport, and the others go on.
func TestMeasureAllWithProblem(t *testing.T) {
	const broken = "broken"
	b := &Row{
		Name: "bulk-64k", Transports: []string{transportTCP, broken},
		settings: findRow("bulk-64k").settings, work: oneWay, value: gigabytes,
	}
	plan := tinyPlan
	plan.Rounds = 2
	rounds, err := measureAll(t.Context(), []*Row{b}, plan, func(string, ...any) {})
	if err != nil {
		t.Fatalf("measureAll = %v", err)
	}
	if got := rounds[b.Name][transportTCP]; len(got) != 2 || got[0].problem != "" {
		t.Errorf("rounds of tcp = %+v, want two good ones", got)
	}
	got := rounds[b.Name][broken]
	if len(got) != 1 || !strings.Contains(got[0].problem, `no work for benchmark "bulk-64k" over "broken"`) {
		t.Errorf("rounds of %s = %+v, want one with the worker's words", broken, got)
	}
}

// Losses are the losses of both sides. Packets that were lost before the interval may turn up in
// it.
func TestCombineLosses(t *testing.T) {
	for _, tt := range []struct {
		server, client workerMessage
		want           float64
	}{
		{workerMessage{}, workerMessage{}, 0},
		{workerMessage{Packets: 90, Lost: 1}, workerMessage{Packets: 10, Lost: 4}, 0.05},
		{workerMessage{Packets: 100, Lost: -2}, workerMessage{}, 0},
	} {
		tt.server.Seconds, tt.server.Ops = 1, 1
		if r, err := combine(findRow("rdma-loss-1pct"), transportRDMA, tt.server, tt.client); err != nil || r.lost != tt.want {
			t.Errorf("combine(%d of %d lost, %d of %d lost) = %g, %v, want %g",
				tt.server.Lost, tt.server.Packets, tt.client.Lost, tt.client.Packets, r.lost, err, tt.want)
		}
	}
}

func TestCombineNothing(t *testing.T) {
	if r, err := combine(findRow("connect"), transportTCP, workerMessage{Seconds: 1, Ops: 5}, workerMessage{Seconds: 1}); err == nil {
		t.Errorf("combine(client without operations) = %+v, want an error", r)
	}
}

// A client that fails says so, also when it is told to end at the same time.
// A telltale says when something was written to it.
type telltale struct {
	strings.Builder
	told chan struct{}
	once sync.Once
}

func (t *telltale) Write(b []byte) (int, error) {
	defer t.once.Do(func() { close(t.told) })
	return t.Builder.Write(b)
}

func TestObeyReportsProblems(t *testing.T) {
	for _, tt := range []struct {
		name, role string
		err        error
		commands   []workerCommand
		want       string
	}{
		{"client fails", roleClient, net.ErrClosed, nil, net.ErrClosed.Error()},
		{"client ends early", roleClient, nil, nil, "ended too early"},
		{"client fails at the end", roleClient, errors.New("reset"), []workerCommand{{doBegin}, {doEnd}}, "reset"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := telltale{told: make(chan struct{})}
			m := newMeter(workSettings{}, nil)
			finished := make(chan error, 1)
			finished <- tt.err
			commands := make(chan workerCommand)
			go func() {
				defer close(commands)
				for _, c := range tt.commands {
					commands <- c
				}
				select { // the end of the commands ends the worker
				case <-out.told:
				case <-time.After(10 * time.Second):
				}
			}()
			if err := obey(child.NewParent(strings.NewReader(""), &out), m, tt.role, commands, finished); err != nil {
				t.Fatalf("obey = %v", err)
			}
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("worker said %q, want %q", out.String(), tt.want)
			}
		})
	}
}
