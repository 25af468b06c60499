package main

import (
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// The registry is consistent: names are unique, bounds compare what is measured.
func TestBenchmarks(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range benchmarks {
		if seen[b.name] {
			t.Errorf("two benchmarks are called %q", b.name)
		}
		seen[b.name] = true
		if b.title == "" || b.unit == "" || b.value == nil || len(b.bounds) == 0 {
			t.Errorf("%s lacks a title, a unit, a value or a bound", b.name)
		}
		if b.from != "" && (findBenchmark(b.from) == nil || findBenchmark(b.from).from != "") {
			t.Errorf("%s is made from %q, which measures nothing", b.name, b.from)
		}
		for _, transport := range b.subjects {
			if transports[transport] == nil {
				t.Errorf("%s uses transport %q, which does not exist", b.name, transport)
			}
			if hasWork := b.workload(transport) != nil; hasWork != (b.from == "") {
				t.Errorf("%s has work over %s = %v and from = %q, want one of them", b.name, transport, hasWork, b.from)
			}
		}
		for _, bound := range b.bounds {
			if !slices.Contains(b.subjects, bound.subject) || !slices.Contains(b.subjects, bound.against) {
				t.Errorf("%s compares %s with %s, and measures only %v", b.name, bound.subject, bound.against, b.subjects)
			}
			if harder := bound.aim > bound.must; bound.must != 0 && bound.aim != 0 && harder == b.lower {
				t.Errorf("%s: aim %v is easier than must %v", b.name, bound.aim, bound.must)
			}
		}
	}
}

func TestChooseBenchmarks(t *testing.T) {
	all, err := chooseBenchmarks(nil)
	if err != nil || len(all) != len(benchmarks) {
		t.Errorf("chooseBenchmarks(nothing) = %d, %v, want all %d", len(all), err, len(benchmarks))
	}
	some, err := chooseBenchmarks([]string{"cpu", "bulk-64k"})
	if err != nil || len(some) != 2 || some[0].name != "bulk-64k" {
		t.Errorf("chooseBenchmarks(cpu, bulk-64k) = %v, %v, want both in the order of the registry", some, err)
	}
}

func TestBound(t *testing.T) {
	at := func(v float64) transportResult { return transportResult{Median: v} }
	for _, tt := range []struct {
		name             string
		lower            bool
		must, aim        float64
		subject, against transportResult
		want             verdict
	}{
		{"higher, missed", false, 4, 10, at(3.99), at(1), verdictMiss},
		{"higher, exactly", false, 4, 10, at(4), at(1), verdictPass},
		{"higher, aim", false, 4, 10, at(10), at(1), verdictAim},
		{"higher, no aim", false, 2.5, 0, at(9), at(1), verdictPass},
		{"higher, only aim, below", false, 0, 0.85, at(84), at(100), verdictBelow},
		{"higher, only aim, met", false, 0, 0.85, at(85), at(100), verdictAim},
		{"lower, missed", true, 1, 0.5, at(1.01), at(1), verdictMiss},
		{"lower, exactly", true, 1, 0.5, at(1), at(1), verdictPass},
		{"lower, aim", true, 1, 0.5, at(0.5), at(1), verdictAim},
		{"subject failed", true, 1, 0.5, transportResult{Error: "x"}, at(1), verdictError},
		{"other failed", false, 1, 2, at(1), transportResult{Error: "x"}, verdictError},
		{"nothing to divide by", false, 1, 2, at(1), at(0), verdictError},
		{"nothing done", true, 1, 0.5, at(0), at(1), verdictError},
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

func testBenchReport(t *testing.T) benchReport {
	t.Helper()
	chosen, err := chooseBenchmarks([]string{"pingpong-64", "bulk-64k", "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	r := benchReport{
		Schema: jsonSchema, Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Machine: testMachine,
		Settings: newBenchSettings(quickPlan, true),
	}
	r.evaluate(chosen, testRounds())
	return r
}

var testMachine = machine{
	Kernel: "Linux 6.1 x86_64", CPU: "A CPU", CPUs: 2, Caches: []cache{{1, "Data", "32K"}, {1, "Instruction", "32K"}, {2, "Unified", "1024K"}},
	Governor: "performance", CPUQuota: "1.5", LoadAvg1: 0.25, GOMAXPROCS: 2, Go: "go1.26", Commit: "abc",
}

func TestBenchReport(t *testing.T) {
	r := testBenchReport(t)
	golden(t, "bench.json", indentJSON(t, r))
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "bench.txt", b.String())
	want := []string{
		"pingpong-64: smc-d against tcp not measured: mode is TCP, not SMC-D: no run directory",
		"bulk-64k: smc-d is 3x of tcp, must be at least 4x",
		"bulk-64k: smc-d is 2.25x of unix, must be at least 2.5x",
	}
	if !slices.Equal(r.MustMissed, want) {
		t.Errorf("must missed = %q, want %q", r.MustMissed, want)
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

var tinyPlan = benchPlan{rounds: 1, warmUp: 10 * time.Millisecond, measure: 100 * time.Millisecond}

// Every benchmark does its work in two processes; one of them over every transport, and so do
// those that have a workload for each.
func TestMeasureRound(t *testing.T) {
	var st stage
	for _, b := range benchmarks {
		if b.from != "" {
			continue
		}
		for _, transport := range b.subjects {
			if b != benchBulk64K && b.workOver == nil && transport != transportTCP && transport != transportSMCD {
				continue
			}
			t.Run(b.name+"/"+transport, func(t *testing.T) {
				r, err := st.measureRound(t.Context(), b, transport, tinyPlan, ringDefault)
				if err != nil {
					t.Fatalf("measureRound = %v", err)
				}
				if b.value(r) <= 0 || r.rate <= 0 || r.bytes <= 0 {
					t.Errorf("measureRound = %+v, want a value", r)
				}
				if b.lower && (r.p50 <= 0 || r.p99 < r.p50) {
					t.Errorf("p50 %v and p99 %v, want both in order", r.p50, r.p99)
				}
				if (r.note == "") != (b.veth == 0) {
					t.Errorf("note is %q, want one for veth only", r.note)
				}
				for mode, of := range map[string][]string{"SMC-D": {transportSMCD}, "RoCEv2": {transportRDMA, transportLossless}} {
					if got, want := strings.HasPrefix(r.mode, mode), slices.Contains(of, transport); got != want {
						t.Errorf("mode of %s is %q", transport, r.mode)
					}
				}
				if transport == transportSMCD && r.buffer <= 0 {
					t.Errorf("buffer of %s is %d, want its size", transport, r.buffer)
				}
				if lossy := b == benchRDMALoss && transport == transportRDMA; lossy && (r.lost < 0.001 || r.lost > 0.1) {
					t.Errorf("%.3g of the packets were lost, want about 0.01", r.lost)
				}
			})
		}
	}
}

// A problem of a worker becomes the result of its transport, and the others go on.
func TestMeasureAllWithProblem(t *testing.T) {
	const broken = "broken"
	b := &benchmark{
		name: "bulk-64k", subjects: []string{transportTCP, broken},
		settings: benchBulk64K.settings, work: oneWay, value: gigabytes,
	}
	plan := tinyPlan
	plan.rounds = 2
	rounds, err := measureAll(t.Context(), []*benchmark{b}, plan, newProgress(nil, true))
	if err != nil {
		t.Fatalf("measureAll = %v", err)
	}
	if got := rounds[b.name][transportTCP]; len(got) != 2 || got[0].problem != "" {
		t.Errorf("rounds of tcp = %+v, want two good ones", got)
	}
	got := rounds[b.name][broken]
	if len(got) != 1 || !strings.Contains(got[0].problem, `no work for benchmark "bulk-64k" over "broken"`) {
		t.Errorf("rounds of %s = %+v, want one with the worker's words", broken, got)
	}
}

// Losses are those of both sides. What was lost before the interval may turn up in it.
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
		if r, err := combine(benchRDMALoss, transportRDMA, tt.server, tt.client); err != nil || r.lost != tt.want {
			t.Errorf("combine(%d of %d lost, %d of %d lost) = %g, %v, want %g",
				tt.server.Lost, tt.server.Packets, tt.client.Lost, tt.client.Packets, r.lost, err, tt.want)
		}
	}
}

func TestCombineNothing(t *testing.T) {
	if r, err := combine(benchConnect, transportTCP, workerMessage{Seconds: 1, Ops: 5}, workerMessage{Seconds: 1}); err == nil {
		t.Errorf("combine(client without operations) = %+v, want an error", r)
	}
}

// A client that fails says so, also when it is told to end at the same time.
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
			var out strings.Builder
			m := newMeter(workSettings{}, nil)
			finished := make(chan error, 1)
			finished <- tt.err
			commands := make(chan workerCommand)
			go func() {
				defer close(commands)
				for _, c := range tt.commands {
					commands <- c
				}
			}()
			if err := obey(newParentLink(strings.NewReader(""), &out), m, tt.role, commands, finished); err != nil {
				t.Fatalf("obey = %v", err)
			}
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("worker said %q, want %q", out.String(), tt.want)
			}
		})
	}
}

// --check fails if a must is missed, and says which; without it that is only shown.
func TestBenchCheck(t *testing.T) {
	for _, tt := range []struct {
		name  string
		must  float64
		check bool
		want  string // of the error; empty: none
	}{
		{"met", 1e-9, true, ""},
		{"missed", 1e9, true, "must missed: bulk-64k: unix is "},
		{"missed, not checked", 1e9, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &benchmark{
				name: "bulk-64k", unit: "GB/s", subjects: []string{transportTCP, transportUnix},
				settings: benchBulk64K.settings, work: oneWay, value: gigabytes,
				bounds: []bound{{transportUnix, transportTCP, tt.must, 0}},
			}
			cmd := newBenchCommand()
			var out strings.Builder
			cmd.SetOut(&out)
			cmd.SetContext(t.Context())
			err := runBench(cmd, []*benchmark{b}, tinyPlan, true, true, tt.check)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("bench with must %v = %v, want %q", tt.must, err, tt.want)
			}
			var r benchReport
			if err := json.Unmarshal([]byte(out.String()), &r); err != nil || len(r.Benchmarks) != 1 || (len(r.MustMissed) > 0) != (tt.must > 1) {
				t.Errorf("bench --json = %q, %v", out.String(), err)
			}
		})
	}
}

func TestBenchCommand(t *testing.T) {
	if got := gosmc(t, "", "bench", "--list"); !strings.Contains(got.stdout, "pingpong-64-nospin") {
		t.Errorf("bench --list = %q, want the names", got.stdout)
	}
}
