package main

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/bench"
	"github.com/gosmc/smc/internal/bench/render"
)

// readReport reads a report from the expected output of the package that makes it.
func readReport[T any](t *testing.T, path string) *T {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := new(T)
	if err := json.Unmarshal(b, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWriteBench(t *testing.T) {
	var b strings.Builder
	if err := render.Write(&b, readReport[bench.Report](t, "../../internal/bench/testdata/bench.json")); err != nil {
		t.Fatal(err)
	}
	golden(t, "bench.txt", b.String())
}

// --check fails if a must is missed, and says which; without it that is only shown.
func TestBenchCheck(t *testing.T) {
	const missed = "bulk-64k: unix is 2x of tcp, must be at least 4x"
	for _, tt := range []struct {
		name   string
		missed []string
		check  bool
		want   string // of the error; empty: none
	}{
		{"met", []string{}, true, ""},
		{"missed", []string{missed}, true, "must missed: " + missed},
		{"missed, not checked", []string{missed}, false, ""},
	} {
		for _, asJSON := range []bool{true, false} {
			var out strings.Builder
			err := reportBench(&out, &bench.Report{MustMissed: tt.missed}, asJSON, tt.check)
			if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
				t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
			}
			if strings.Contains(out.String(), missed) != (len(tt.missed) > 0) {
				t.Errorf("%s: shown is %q, want what was missed", tt.name, out.String())
			}
			if asJSON {
				var r bench.Report
				if err := json.Unmarshal([]byte(out.String()), &r); err != nil || r.Schema != jsonSchema || len(r.MustMissed) != len(tt.missed) {
					t.Errorf("%s: JSON is %q, %v", tt.name, out.String(), err)
				}
			}
		}
	}
}

// TestBenchNothing checks that a run in which nothing could be measured is a failure, and one with a
// number is not.
func TestBenchNothing(t *testing.T) {
	failed, measured := bench.TransportResult{Error: "only root can"}, bench.TransportResult{Median: 1}
	for _, tt := range []struct {
		results []bench.TransportResult
		want    string
	}{
		{[]bench.TransportResult{failed, failed}, "nothing was measured: only root can"},
		{[]bench.TransportResult{failed, measured}, ""},
	} {
		r := &bench.Report{Benchmarks: []bench.Result{{Results: tt.results}}}
		err := reportBench(io.Discard, r, true, false)
		if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
			t.Errorf("reportBench(%v) = %v, want %q", tt.results, err, tt.want)
		}
	}
}

// A whole run of the command, in processes of its own.
func TestBenchCommand(t *testing.T) {
	if got := gosmc(t, "", "bench", "--list"); !strings.Contains(got.stdout, "pingpong-64-nospin") {
		t.Errorf("bench --list = %q, want the names", got.stdout)
	}
	if got := gosmc(t, "", "bench", "--list", "--only", "cpu"); !strings.Contains(got.stdout, "\ncpu ") || strings.Contains(got.stdout, "pingpong") {
		t.Errorf("bench --list --only cpu = %q, want that one", got.stdout)
	}
	if got := gosmc(t, "", "bench", "--list", "--only", "nothing"); got.code != exitUsage {
		t.Errorf("bench --list --only nothing = %+v, want status %d", got, exitUsage)
	}
	var list benchList
	if got := gosmc(t, "", "bench", "--list", "--json"); json.Unmarshal([]byte(got.stdout), &list) != nil || len(list.Benchmarks) != len(bench.Names()) || list.Schema != jsonSchema {
		t.Errorf("bench --list --json = %q, want all %d", got.stdout, len(bench.Names()))
	}
	for _, b := range list.Benchmarks {
		if b.Name == "" || b.Unit == "" || b.Better == "" || len(b.Transports) == 0 || len(b.Bounds) == 0 {
			t.Errorf("bench --list --json has %+v, want all of it", b)
		}
	}
	got := gosmc(t, "", "bench", "--quick", "--only", "connect", "--json")
	var r bench.Report
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != exitOK {
		t.Fatalf("bench --json = %d, %v, %q", got.code, err, got.stderr)
	}
	if r.Schema != jsonSchema || len(r.Benchmarks) != 1 || len(r.Benchmarks[0].Results) != 2 || r.Benchmarks[0].Results[1].Median <= 0 || r.Benchmarks[0].Results[1].Mode != "SMC-D" || !r.Settings.Quick {
		t.Errorf("bench --json = %+v, want the row with a number over SMC-D", r)
	}
}
