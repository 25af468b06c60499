package main

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A verdict names each difference between the two ways, and too few connections that moved.
func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		what    string
		change  func(over, plain *outcome)
		problem string // empty: none
	}{
		{"all equal", func(_, _ *outcome) {}, ""},
		{"another result", func(over, _ *outcome) { over.results["hash"] = "2" }, `hash is "2", and over TCP it is "1"`},
		{"a result that is missing", func(over, _ *outcome) { delete(over.results, "hash") }, `hash is "", and over TCP it is "1"`},
		{"a result that TCP has not", func(_, plain *outcome) { delete(plain.results, "hash") }, `hash is "1", and over TCP it is ""`},
		{"no results", func(over, plain *outcome) { clear(over.results); clear(plain.results) }, "no result was compared"},
		{"an error", func(over, _ *outcome) { over.err = errors.New("killed") }, "over SMC: killed"},
		{"an error over TCP", func(_, plain *outcome) { plain.err = errors.New("killed") }, "over TCP: killed"},
		{"moved though disabled", func(_, plain *outcome) { plain.moved = 1 }, "with GOSMC_DISABLED=1 hosts"},
		{"counted though disabled", func(_, plain *outcome) { plain.tcp = 1 }, "with GOSMC_DISABLED=1 hosts"},
		{"enough that moved", func(over, _ *outcome) { over.moved, over.tcp = 9, 1 }, ""},
		{"too few that moved", func(over, _ *outcome) { over.moved, over.tcp = 8, 2 }, "8 of 10 connections moved, want 90 %"},
		{"too few", func(over, _ *outcome) { over.moved = 9 }, "the servers had 9 connections, want 10"},
	} {
		over := &outcome{results: map[string]string{"hash": "1"}, moved: 10}
		plain := &outcome{results: map[string]string{"hash": "1"}}
		tt.change(over, plain)
		v := &verdict{program: &program{share: 0.9, least: 10}}
		v.compare(over, plain)
		if tt.problem == "" && len(v.problems) > 0 || tt.problem != "" && !slices.ContainsFunc(v.problems, func(s string) bool { return strings.HasPrefix(s, tt.problem) }) {
			t.Errorf("%s: problems %q, want %q", tt.what, v.problems, tt.problem)
		}
	}
}

// The numbers of stats are those of the servers, by mode, and not those of clients that are still there.
func TestAdd(t *testing.T) {
	const text = `{"hosts": [
		{"pid": 1, "counters": {"connections": {"SMC-D": 5, "TCP": 2}, "fallbacks": [{"reason": "why", "count": 2}]}},
		{"pid": 2, "counters": {"connections": {"Unix": 3}}},
		{"pid": 3, "counters": {"connections": {"SMC-D": 100, "TCP": 100}}}]}`
	var r statsReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	var o outcome
	o.add(r, map[int]bool{1: true, 2: true})
	if o.moved != 8 || o.tcp != 2 || !slices.Equal(o.reasons, []string{"2: why"}) {
		t.Errorf("%d moved, %d TCP, reasons %q, want 8, 2, 2: why", o.moved, o.tcp, o.reasons)
	}
}

// The result of hey has all statuses, and its errors.
func TestHeyStatuses(t *testing.T) {
	const good = "Status code distribution:\n  [200]\t4999 responses\n  [500]\t1 responses\n"
	for _, tt := range []struct{ out, want string }{
		{"Summary:\n" + good, "200: 4999, 500: 1"},
		{good + "\nError distribution:\n  [3]\tEOF\n", "200: 4999, 500: 1, Error distribution:\n  [3]\tEOF\n"},
		{"", ""},
	} {
		if got := heyStatuses(tt.out); got != tt.want {
			t.Errorf("heyStatuses(%q) = %q, want %q", tt.out, got, tt.want)
		}
	}
}

// The table is whole: each source has a version of a release or a file, and the README names each program.
func TestPrograms(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	released := regexp.MustCompile(`^v\d+\.\d+\.\d+$`)
	seen := make(map[string]source)
	used := make(map[string]bool)
	for _, p := range programs {
		if p.name == "" || p.what == "" || p.run == nil || p.share <= 0 || p.share > 1 || p.least < 1 || len(p.sources) == 0 {
			t.Errorf("%q is not whole", p.name)
		}
		if !strings.Contains(string(readme), "| "+p.name+" |") {
			t.Errorf("README.md has no row for %s", p.name)
		}
		for name, s := range p.sources {
			if other, ok := seen[name]; ok && other != s {
				t.Errorf("%s is %v and %v: they would have the same file", name, s, other)
			}
			seen[name] = s
			if s.pkg == "" && s.client == "" || s.pkg != "" && !released.MatchString(s.version) {
				t.Errorf("%s of %s: %v is no package in a released version", name, p.name, s)
			}
			if s.client == "" {
				continue
			}
			used[s.client] = true
			if _, err := clients.ReadFile("clients/" + s.client); err != nil {
				t.Errorf("%s of %s: %v", name, p.name, err)
			}
		}
	}
	files, err := filepath.Glob("clients/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !used[filepath.Base(file)] {
			t.Errorf("%s is used by no program", file)
		}
	}
}

func TestChosen(t *testing.T) {
	whole := programs
	defer func() { programs = whole }()
	programs = []*program{{name: "a", small: true}, {name: "b"}, {name: "c", small: true}}
	for _, tt := range []struct {
		opt  options
		want []string
	}{
		{options{}, []string{"a", "b", "c"}},
		{options{only: []string{"c", "b"}}, []string{"b", "c"}},
		{options{small: true}, []string{"a", "c"}},
		{options{small: true, only: []string{"c", "b"}}, []string{"c"}},
	} {
		var got []string
		for _, p := range tt.opt.chosen() {
			got = append(got, p.name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%+v chooses %v, want %v", tt.opt, got, tt.want)
		}
	}
}

// A script that fails ends with its reason and with the output of its servers, which are stopped.
func TestLab(t *testing.T) {
	l := &lab{ctx: t.Context(), built: map[string]string{"server": "/bin/sh"}, dir: t.TempDir(), disabled: true, gosmc: "/bin/false"}
	o := l.do(func(l *lab) { l.serve([]int{1}, "server", "-c", "echo sad; exit 3") })
	if o.err == nil || !strings.Contains(o.err.Error(), "exit status 3") || !strings.Contains(o.err.Error(), "server says: sad") {
		t.Errorf("a server that ends: %v", o.err)
	}
	l = &lab{ctx: t.Context(), built: map[string]string{"server": "/bin/sleep"}, dir: t.TempDir(), disabled: true, gosmc: "/bin/false"}
	began := time.Now()
	o = l.do(func(l *lab) { l.serve(nil, "server", "1000"); l.result("a", 1) })
	if o.err != nil || !maps.Equal(o.results, map[string]string{"a": "1"}) || time.Since(began) > stopTime {
		t.Errorf("a good script: %v, results %v", o.err, o.results)
	}
	select {
	case <-l.servers[0].ended:
	default:
		t.Error("the server runs on")
	}
}
