package main

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestParsers has each parser find results in the output of its runner.
func TestParsers(t *testing.T) {
	for _, tt := range []struct {
		what   string
		parse  func(string) map[string]string
		output string
		want   map[string]string
	}{
		{"TAP by name", tap(true), "1..4\nok 1 - platform_output\n# Output from process\nnot ok 2 - tcp_oob\n# exit code 134\nok 3 - udp_ipv6 # SKIP no IPv6\nok 4 - tcp_rst\n",
			map[string]string{"platform_output": "ok", "tcp_oob": "failed", "udp_ipv6": "skip", "tcp_rst": "ok"}},
		{"TAP by number", tap(false), "1..3\nok 1 - started on 127.0.0.1:31234\nnot ok 2 - a\n#   Failed test\nok 3\n",
			map[string]string{"1": "ok", "2": "failed", "3": "ok"}},
		{"TAP without tests", tap(false), "1..0 # Skip: no host\n", map[string]string{"all": "skip"}},
		{"tinytest", tiny, "main/methods: [forking] OK\nhttp/basic: [forking] [warn] port 0\nOK\nbufferevent/zlib: \n  FAIL regress_zlib.c:300: assert(0)\n  [zlib FAILED]\n" +
			"dns/search: SKIPPED\nutil/monotonic_prc_fallback: DISABLED\nthread/forking: [forking] [Lost connection!] \n  [forking FAILED]\nmain/last: [forking] ",
			map[string]string{"main/methods": "ok", "http/basic": "ok", "bufferevent/zlib": "failed", "dns/search": "skip",
				"util/monotonic_prc_fallback": "skip", "thread/forking": "failed", "main/last": "began"}},
		{"redis", redisResults, "[ready]: 4711\n[testing]: unit/auth\n[\x1b[0;32mok\x1b[0m]: AUTH fails (12 ms)\n[ok]: AUTH fails (1 ms)\n[err]: PING in tests/unit/auth.tcl\nExpected a\n[ignore]: not on TLS\n",
			map[string]string{"AUTH fails": "ok", "AUTH fails #2": "ok", "PING": "err", "not on TLS": "ignore"}},
		{"APR", abts, "testsock            :  SUCCESS\ntestpoll            :  FAILED 2 of 19\nFailed Tests\t\tTotal\n",
			map[string]string{"testsock": "ok", "testpoll": "failed 2 of 19"}},
	} {
		if got := tt.parse(tt.output); !maps.Equal(got, tt.want) {
			t.Errorf("%s: parsed %v, want %v", tt.what, got, tt.want)
		}
	}
}

// TestMissing has the packages installed that are not there, each once, also those of a suite whose
// library another one has.
func TestMissing(t *testing.T) {
	first := &suite{needs: []string{"no-such-command no-such-package", "go golang"}}
	second := &suite{needs: []string{"/no/such/file no-such-library", "no-such-command no-such-package"}, after: first}
	got := missing([]*suite{second, first})
	// There may be no compiler.
	got = slices.DeleteFunc(got, func(name string) bool { return !strings.HasPrefix(name, "no-such") })
	if want := []string{"no-such-library", "no-such-package"}; !slices.Equal(got, want) {
		t.Errorf("%q are missing, want %q", got, want)
	}
	if got := missing([]*suite{{after: first}}); !slices.Contains(got, "no-such-package") {
		t.Errorf("%q are missing, and not that of the library", got)
	}
}

// TestCompare has the verdict see all that differs, and that the table of differences is true.
func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		what    string
		moved   map[string]string
		count   int
		errors  []string
		differs map[string]string
		problem string // empty: none
	}{
		{"equal", map[string]string{"a x": "ok", "a y": "failed"}, 5, nil, nil, ""},
		{"a test that fails", map[string]string{"a x": "failed", "a y": "failed"}, 5, nil, nil, `a x: "failed", and bare it is "ok"`},
		{"a test that is missing", map[string]string{"a y": "failed"}, 5, nil, nil, `a x: "", and bare it is "ok"`},
		{"a test that bare has not", map[string]string{"a x": "ok", "a y": "failed", "a z": "ok"}, 5, nil, nil, `a z: "ok", and bare it is ""`},
		{"a test that fails bare only", map[string]string{"a x": "ok", "a y": "ok"}, 5, nil, nil, `a y: "ok", and bare it is "failed"`},
		{"a known difference", map[string]string{"a x": "failed", "a y": "failed"}, 5, nil, map[string]string{"a x": "why"}, ""},
		{"one that is gone", map[string]string{"a x": "ok", "a y": "failed"}, 5, nil, map[string]string{"a x": "why"}, "a x does not differ"},
		{"one of no test", map[string]string{"a x": "ok", "a y": "failed"}, 5, nil, map[string]string{"a w": "why"}, "a w is in the table"},
		{"nothing moved", map[string]string{"a x": "ok", "a y": "failed"}, 0, nil, nil, "no connection was moved"},
		{"too little moved", map[string]string{"a x": "ok", "a y": "failed"}, 4, nil, nil, "4 connections were moved, want 5"},
		{"a unit that hangs", map[string]string{"a x": "ok", "a y": "failed"}, 5, []string{"a: hangs"}, nil, "run: a: hangs"},
	} {
		v := verdict{suite: &suite{least: 5, differs: tt.differs}, whole: true, moved: tt.count}
		v.compare(&outcome{Results: map[string]string{"a x": "ok", "a y": "failed"}}, &outcome{Results: tt.moved, Errors: tt.errors})
		if tt.problem == "" && len(v.problems) > 0 || tt.problem != "" && !slices.ContainsFunc(v.problems, func(s string) bool { return strings.HasPrefix(s, tt.problem) }) {
			t.Errorf("%s: problems %q; want %q", tt.what, v.problems, tt.problem)
		}
	}
}

// TestAgain has the tests that differ run again by themselves, and their passing then count.
func TestAgain(t *testing.T) {
	s := &suite{differs: map[string]string{"b z": "why"}}
	bare := &outcome{Results: map[string]string{"a x": "ok", "a y": "ok", "b x": "failed", "b z": "ok"}}
	moved := &outcome{Results: map[string]string{"a x": "failed", "a y": "ok", "b x": "ok", "b z": "failed"}}
	differ := s.differing(bare, moved)
	if want := []string{"a x", "b x"}; !slices.Equal(differ, want) {
		t.Errorf("differing = %q, want %q", differ, want)
	}
	if failing := failing(&outcome{Results: map[string]string{"a": "failed", "b": "skip", "c": "failed", "d": "ok"}},
		&outcome{Results: map[string]string{"a": "failed", "b": "skip", "c": "ok", "d": "ok"}}); !slices.Equal(failing, []string{"a"}) {
		t.Errorf("failing = %q, want only a", failing)
	}
	units := []unit{{"a", "all of a", func(tests []string) string { return "of a: " + strings.Join(tests, " ") }}, {"b", "all of b", nil}, {"c", "all of c", nil}}
	if got, want := s.again(units, differ), []unitCommand{{"a", "of a: x"}, {"b", "all of b"}}; !slices.Equal(got, want) {
		t.Errorf("again = %q, want %q", got, want)
	}
	bare.merge(&outcome{Results: map[string]string{"b x": "ok"}})
	moved.merge(&outcome{Results: map[string]string{"a x": "ok", "a y": "failed"}})
	if differ := s.differing(bare, moved); len(differ) != 0 {
		t.Errorf("after another round these differ: %q; bare %v, moved %v", differ, bare.Results, moved.Results)
	}
}

// TestChoose has every suite chosen by some seed, within the bound.
func TestChoose(t *testing.T) {
	const bound = 10 * time.Minute
	list := []*suite{{name: "a", takes: 4 * time.Minute}, {name: "b", takes: 7 * time.Minute}, {name: "c", takes: 10 * time.Minute}, {name: "d", takes: 11 * time.Minute}}
	seen := make(map[string]bool)
	for seed := range int64(30) {
		chosen := choose(list, bound, seed)
		var sum time.Duration
		for _, s := range chosen {
			sum += s.takes
			seen[s.name] = true
		}
		if len(chosen) == 0 || sum > bound || !slices.Equal(chosen, choose(list, bound, seed)) {
			t.Errorf("seed %d chooses %v, which takes %v", seed, namesOf(chosen), sum)
		}
	}
	if want := map[string]bool{"a": true, "b": true, "c": true}; !maps.Equal(seen, want) {
		t.Errorf("30 seeds have chosen %v, want %v", seen, want)
	}
}

// TestUnit runs units that end, fail, and are killed, and leave a daemon.
func TestUnit(t *testing.T) {
	for _, tt := range []struct {
		what, command string
		results       map[string]string
		problem       string // empty: none
	}{
		{"ended", "echo ok 1 - a; echo not ok 2 - b; exit 1", map[string]string{"u a": "ok", "u b": "failed"}, ""},
		{"printed nothing", "exit 0", map[string]string{}, "u: ended, with 0 results"},
		{"killed", "echo ok 1 - a; kill -9 $$", map[string]string{"u a": "ok"}, "u: killed by killed, with 1 results"},
		{"hangs", "echo ok 1 - a; sleep 100 & sleep 100", map[string]string{"u a": "ok"}, "u: hangs: killed after "},
		{"has the environment", `test -z "$GOSMC_SHORT_AFTER$LD_PRELOAD" && test -d "$TMPDIR" && echo ok 1 - a`, map[string]string{"u a": "ok"}, ""},
	} {
		t.Setenv("GOSMC_SHORT_AFTER", "1")
		dir := t.TempDir()
		task := task{Tree: dir, Logs: dir, Temp: dir, Silence: 3 * time.Second}
		o := outcome{Results: make(map[string]string)}
		task.unit(&suite{parse: tap(true)}, unitCommand{"u", tt.command}, &o)
		errors := strings.Join(o.Errors, "\n")
		if !maps.Equal(o.Results, tt.results) || (tt.problem == "") != (errors == "") || !strings.HasPrefix(errors, tt.problem) {
			t.Errorf("%s: results %v, errors %q; want %v, %q", tt.what, o.Results, errors, tt.results, tt.problem)
		}
	}
}

// TestFinish has a command that takes too long killed, with the processes that it has started.
func TestFinish(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	file := filepath.Join(t.TempDir(), "pid")
	cmd := exec.CommandContext(ctx, "sh", "-c", "echo waits; sleep 100 & echo $! >"+file+"; mv "+file+" "+file+".done; wait")
	file += ".done"
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(file); err == nil {
				stop()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if err := finish(cmd); err == nil || !strings.Contains(err.Error(), "waits") {
		t.Errorf("finish = %v, want an error with the output", err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); alive(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is there", pid)
		}
	}
}

// alive says whether a process runs; one that has ended may wait for its parent.
func alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, state, _ := strings.Cut(string(text), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

// TestCountMoved reads the output of 'gosmc stats --json'.
func TestCountMoved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stats.json")
	text := `{"hosts": [{"counters": {"connections": {"Unix": 3, "TCP": 9}}}, {"counters": {"connections": {"Unix": 4}}}, {"counters": {}}]}`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := countMoved(file); n != 7 || err != nil {
		t.Errorf("countMoved = %d, %v, want 7", n, err)
	}
}

// TestSuites has the table be whole: names to choose by, and reasons for tests that differ.
func TestSuites(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range suites {
		if s.name == "" || seen[s.name] || strings.ContainsAny(s.name, " ,/") || s.what == "" || s.source == "" || s.build == "" ||
			s.takes == 0 || s.least == 0 || s.units == nil || s.parse == nil {
			t.Errorf("%+v is not whole, or its name is taken", s)
		}
		seen[s.name] = true
		for test, why := range s.differs {
			if why == "" {
				t.Errorf("%s: %s differs for no reason", s.name, test)
			}
		}
		for _, need := range s.needs {
			if len(strings.Fields(need)) != 2 {
				t.Errorf("%s: %q is no file or command with its package", s.name, need)
			}
		}
	}
}
