package bench

import (
	"slices"
	"testing"

	"github.com/gosmc/smc/internal/bench/program"
)

func TestFormatRatio(t *testing.T) {
	for _, tt := range []struct {
		v    float64
		want string
	}{
		{1.0 / 30, "1/30"}, {1.0 / 100, "1/100"}, {0.0123, "1/81.3"}, {0.1, "0.1x"}, {0.15, "0.15x"}, {0.85, "0.85x"},
		{1, "1x"}, {2.5, "2.5x"}, {4, "4x"}, {60, "60x"}, {9.876, "9.88x"}, {1234, "1234x"}, {0, "0x"},
	} {
		if got := FormatRatio(tt.v); got != tt.want {
			t.Errorf("FormatRatio(%v) = %q, want %q", tt.v, got, tt.want)
		}
	}
}

// The values that rows must reach are a promise to users; changing one is a decision, and not an
// accident.
func TestMusts(t *testing.T) {
	for _, tt := range []struct {
		row, subject, against string
		must, aim             float64
	}{
		{"connect", transportSMCD, transportTCP, 0.4, 0.5},
		{"http-4", transportSMCD, transportTCP, 0.95, 1.2},
		{"http-8", transportSMCD, transportTCP, 1.05, 1.2},
		{"http", transportSMCD, transportTCP, 1.3, 1.6},
		{"smcr-bulk-2links", transportLinks, transportLink, 0.9, 1.1},
		{"smcr-failover", transportLinks, "", 2, 0.2},
		{"smcr-failover-silent", transportLinks, "", 3, 1},
	} {
		b := findRow(tt.row)
		if b == nil {
			t.Errorf("there is no row %s", tt.row)
			continue
		}
		if want := (bound{tt.subject, tt.against, tt.must, tt.aim}); !slices.Contains(b.bounds, want) {
			t.Errorf("%s has the bounds %v, want %v among them", tt.row, b.bounds, want)
		}
	}
	for row, want := range map[string][]bound{
		"run-iperf3":           {{"run", "tcp", 3, 6}, {"run -R", "tcp -R", 3, 6}},
		"run-redis":            {{"run set", "tcp set", 1.15, 1.4}, {"run get", "tcp get", 3.5, 6}},
		"run-redis-1":          {{"run get", "tcp get", 3, 8}},
		"run-redis-8":          {{"run get", "tcp get", 2.5, 5}},
		"run-redis-pipeline":   {{"run set", "tcp set", 1.1, 1.3}, {"run get", "tcp get", 1.1, 1.3}},
		"run-nginx":            {{"run 1k", "tcp 1k", 1.2, 1.7}, {"run 100k", "tcp 100k", 1.2, 1.7}},
		"run-nginx-1":          {{"run", "tcp", 2, 4}},
		"run-nginx-8":          {{"run", "tcp", 2, 3}},
		"run-nginx-64":         {{"run", "tcp", 2, 3}},
		"run-memcached-8":      {{"run", "tcp", 2, 4}},
		"run-haproxy-8":        {{"run", "tcp", 1.5, 2.5}},
		"run-node-8":           {{"run", "tcp", 1.2, 1.5}},
		"run-pgbench-1":        {{"run", "tcp", 1.5, 2}},
		"run-pgbench":          {{"run", "tcp", 1.4, 2}},
		"run-pingpong":         {{"run", "tcp", 0.85, 0.1}},
		"run-pingpong-one-cpu": {{"run", "tcp", 1.0, 0.5}},
		"run-stream-100":       {{"run", "tcp", 2, 15}},
		"run-connect":          {{"run", "tcp", 0.6, 0.85}},
		"run-foreign":          {{"run", "tcp", 0.97, 0.99}},
	} {
		if b := findRow(row); b == nil || !slices.Equal(b.bounds, want) {
			t.Errorf("%s is %+v, want one with the bounds %v", row, b, want)
		}
	}
	for row, must := range map[string]float64{"run-redis": 0.7, "run-redis-pipeline": 0.9, "run-nginx": 0.8} {
		b := findRow(row)
		if b == nil || len(b.cpuBounds) != 2 || b.cpuBounds[0].must != must || b.cpuBounds[1].must != must {
			t.Errorf("%s is %+v, want one with CPU bounds of %v", row, b, must)
		}
	}
	for row, conns := range map[string]int{"http-4": 4, "http-8": 8, "http": 64, "smcr-bulk-2links": 8, "smcr-failover": 100, "smcr-failover-silent": 100} {
		if b := findRow(row); b != nil && b.settings.Conns != conns {
			t.Errorf("%s uses %d connections, want %d", row, b.settings.Conns, conns)
		}
	}
}

// TestCPUBounds has the processor time of an operation judged by itself.
func TestCPUBounds(t *testing.T) {
	rounds := roundTable{"run-redis": {
		"tcp set": {{cpuEach: 20e-6, program: program.Result{Rate: 100}}}, "run set": {{cpuEach: 10e-6, program: program.Result{Rate: 200}}},
		"tcp get": {{cpuEach: 20e-6, program: program.Result{Rate: 100}}}, "run get": {{cpuEach: 18e-6, program: program.Result{Rate: 400}}},
	}}
	var r Report
	r.evaluate([]*Row{findRow("run-redis")}, rounds)
	b := r.Benchmarks[0]
	if len(b.CPUBounds) != 2 || b.CPUBounds[0].Verdict != Pass || b.CPUBounds[1].Verdict != Miss {
		t.Errorf("CPU bounds %+v, want the first one met, and not the second", b.CPUBounds)
	}
	const want = "run-redis: run get takes 0.9x of the processor time of tcp get, must be at most 0.7x"
	if len(r.MustMissed) != 1 || r.MustMissed[0] != want {
		t.Errorf("must missed = %q, want %q", r.MustMissed, want)
	}
	if got := b.find("run get").CPUEach; got < 17.9 || got > 18.1 {
		t.Errorf("CPU each is %v µs, want 18", got)
	}
}
