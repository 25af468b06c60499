package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// testWays are all that there are.
var testWays = []way{bare, moved, disabled, shaken}

func outcomes(change func(map[way]*outcome)) map[way]*outcome {
	m := make(map[way]*outcome)
	for _, w := range testWays {
		m[w] = &outcome{Results: map[string]string{"hash": "1", "status": "0"}, Moved: map[string]int{}}
	}
	m[moved].Moved["Unix"] = 4
	change(m)
	return m
}

// TestCompare has the verdict see each difference between a program and the program bare.
func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		what    string
		change  func(map[way]*outcome)
		problem string // empty: none
	}{
		{"all equal", func(map[way]*outcome) {}, ""},
		{"another result", func(m map[way]*outcome) { m[moved].Results["hash"] = "2" }, `run: hash is "2", and bare it is "1"`},
		{"a result that is missing", func(m map[way]*outcome) { delete(m[disabled].Results, "hash") }, `disabled: hash is "", and bare it is "1"`},
		{"one that bare has not", func(m map[way]*outcome) { m[moved].Results["more"] = "x" }, `run: more is "x", and bare it is ""`},
		{"an error", func(m map[way]*outcome) { m[moved].Error = "killed" }, "run: killed"},
		{"another result when shaken", func(m map[way]*outcome) { m[shaken].Results["hash"] = "2" }, `shaken: hash is "2", and bare it is "1"`},
		{"an error of the bare one", func(m map[way]*outcome) { m[bare].Error = "killed" }, "bare: killed"},
		{"moved though disabled", func(m map[way]*outcome) { m[disabled].Moved["Unix"] = 1 }, "disabled: ss shows connections that were moved"},
	} {
		r := programReport{Good: true, Ways: testWays, Moved: map[string]int{}}
		r.compare(outcomes(tt.change))
		if r.Good != (tt.problem == "") || tt.problem != "" && !slices.ContainsFunc(r.Problems, func(s string) bool { return strings.HasPrefix(s, tt.problem) }) {
			t.Errorf("%s: good %t, problems %q; want %q", tt.what, r.Good, r.Problems, tt.problem)
		}
	}
}

// TestPrograms has the table be whole: names to choose by, and packages for missing needs.
func TestPrograms(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range programs {
		if p.name == "" || seen[p.name] || strings.ContainsAny(p.name, " ,") || p.what == "" || len(p.packages) == 0 || len(p.needs) == 0 || p.run == nil {
			t.Errorf("%+v is not whole, or its name is taken", p)
		}
		seen[p.name] = true
	}
}

// TestLacks has a program that is not installed fail only where it has to be there.
func TestLacks(t *testing.T) {
	p := &program{name: "x", packages: []string{"no-such-package"}, needs: []string{"sh", "no-such-command", "/no/such/file*"}}
	for _, must := range []bool{false, true} {
		r := p.try(t.Context(), options{}, t.TempDir(), must)
		if r.Good == must || r.Lacks != "no-such-command, /no/such/file*: apt-get install no-such-package" {
			t.Errorf("must %t: good %t, lacks %q", must, r.Good, r.Lacks)
		}
	}
}

// TestDropIns has docs/run.md show the drop-ins that are tried.
func TestDropIns(t *testing.T) {
	text, err := os.ReadFile("../../docs/run.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range serviceUnits {
		dropIn, err := dropIns.ReadFile("units/" + u.name + ".conf")
		if err != nil {
			t.Fatal(err)
		}
		var shown strings.Builder
		for line := range strings.Lines(string(dropIn)) {
			shown.WriteString("    " + line)
		}
		if !strings.Contains(string(text), "\n\n"+shown.String()+"\n") {
			t.Errorf("docs/run.md does not have the drop-in of %s:\n%s", u.name, dropIn)
		}
	}
}
