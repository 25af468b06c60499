package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// againCount is how often a test with different results is run again: many depend on time, on a
// busy machine, bare as well.
const againCount = 3

// A verdict is the result of a suite.
type verdict struct {
	suite    *suite
	whole    bool     // all units were run
	results  int      // that were compared
	good     int      // of those, "ok" in both ways
	failed   []string // tests that are not "ok" in either way, nor skipped
	known    int      // that differ as the table says
	again    int      // tests that were run again
	moved    int      // connections
	building time.Duration
	bare     time.Duration
	run      time.Duration
	problems []string
}

func (v *verdict) problem(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// try builds a suite, runs it in both ways, and compares.
func (s *suite) try(ctx context.Context, c *cache, opt options, dir string) *verdict {
	v := &verdict{suite: s}
	began := time.Now()
	if err := c.build(ctx, s); err != nil {
		v.problem("%v", err)
		return v
	}
	v.building = time.Since(began)
	all, err := s.units(s.tree(c.dir))
	if err != nil {
		v.problem("%v", err)
		return v
	}
	units, err := opt.units(s, all)
	if err != nil {
		v.problem("%v", err)
		return v
	}
	v.whole = len(units) == len(all)
	run := func(moved bool, units []unitCommand, round int) *outcome {
		name := "bare"
		if moved {
			name = "run"
		}
		if round > 0 {
			name = fmt.Sprintf("%s-%d", name, round)
		}
		t := task{Suite: s.name, Moved: moved, Tree: s.tree(c.dir), Gosmc: opt.gosmc, Silence: silenceTime, Units: units}
		t.Logs = filepath.Join(c.dir, s.name, "logs", name)
		if opt.shake {
			t.Shake = opt.seed
		}
		var err error
		if err = os.MkdirAll(t.Logs, 0o755); err == nil {
			t.Temp, err = os.MkdirTemp(dir, "t")
		}
		if err == nil {
			defer os.RemoveAll(t.Temp)
			var o *outcome
			if o, err = t.run(ctx); err == nil {
				return o
			}
		}
		return &outcome{Errors: []string{err.Error()}}
	}
	commands := make([]unitCommand, len(units))
	for i, u := range units {
		commands[i] = unitCommand{u.name, u.command}
	}
	os.RemoveAll(filepath.Join(c.dir, s.name, "logs"))
	began = time.Now()
	bare := run(false, commands, 0)
	v.bare = time.Since(began)
	began = time.Now()
	moved := run(true, commands, 0)
	v.run = time.Since(began)
	v.moved = moved.Moved
	for round := 1; round <= againCount && ctx.Err() == nil; round++ {
		differ := s.differing(bare, moved)
		if round == 1 { // a test that a busy machine has failed says nothing
			differ = append(differ, failing(bare, moved)...)
		}
		if len(differ) == 0 {
			break
		}
		v.again += len(differ)
		again := s.again(units, differ)
		bare.merge(run(false, again, round))
		moved.merge(run(true, again, round))
	}
	v.compare(bare, moved)
	return v
}

// differing returns the tests with results that differ otherwise than the table says.
func (s *suite) differing(bare, moved *outcome) (tests []string) {
	for _, test := range slices.Sorted(maps.Keys(merged(bare.Results, moved.Results))) {
		if bare.Results[test] != moved.Results[test] && s.differs[test] == "" {
			tests = append(tests, test)
		}
	}
	return tests
}

// failing returns the tests that have failed in both ways.
func failing(bare, moved *outcome) (tests []string) {
	for _, test := range slices.Sorted(maps.Keys(bare.Results)) {
		if result := bare.Results[test]; result == moved.Results[test] && !slices.Contains(passing, result) {
			tests = append(tests, test)
		}
	}
	return tests
}

// passing are the results of tests that have not failed.
var passing = []string{"ok", "skip", "todo", "ignore"}

// again returns the commands that run tests again.
func (s *suite) again(units []unit, tests []string) (commands []unitCommand) {
	for _, u := range units {
		var mine []string
		for _, test := range tests {
			if name, found := strings.CutPrefix(test, u.name+" "); found {
				mine = append(mine, name)
			}
		}
		switch {
		case len(mine) == 0:
		case u.again != nil:
			commands = append(commands, unitCommand{u.name, u.again(mine)})
		default:
			commands = append(commands, unitCommand{u.name, u.command})
		}
	}
	return commands
}

// merge takes over the tests that have passed when they were run again.
func (o *outcome) merge(again *outcome) {
	for test, result := range again.Results {
		if o.Results != nil && o.Results[test] != "ok" {
			o.Results[test] = result
		}
	}
	o.Errors = append(o.Errors, again.Errors...)
}

func merged(a, b map[string]string) map[string]string {
	m := make(map[string]string)
	maps.Copy(m, a)
	maps.Copy(m, b)
	return m
}

// compare judges the outcomes.
func (v *verdict) compare(bare, moved *outcome) {
	for way, o := range map[string]*outcome{"bare": bare, "run": moved} {
		for _, err := range o.Errors {
			v.problem("%s: %s", way, err)
		}
	}
	slices.Sort(v.problems)
	v.failed = failing(bare, moved)
	all := merged(bare.Results, moved.Results)
	v.results = len(all)
	for _, test := range slices.Sorted(maps.Keys(all)) {
		b, m := bare.Results[test], moved.Results[test]
		why := v.suite.differs[test]
		switch {
		case b == m && why != "":
			v.problem("%s does not differ: take it from the table", test)
		case b == m:
			if b == "ok" {
				v.good++
			}
		case why != "":
			v.known++
		default:
			v.problem("%s: %q, and bare it is %q", test, m, b)
		}
	}
	if v.whole {
		for test := range v.suite.differs {
			if _, found := all[test]; !found {
				v.problem("%s is in the table, and there is no such test", test)
			}
		}
		if v.moved < v.suite.least {
			v.problem("%d connections were moved, want %d", v.moved, v.suite.least)
		}
	}
	if v.moved == 0 {
		v.problem("no connection was moved")
	}
}

func (v *verdict) print(out io.Writer) {
	word := "ok"
	if len(v.problems) > 0 {
		word = "FAIL"
	}
	fmt.Fprintf(out, "%-5s %-10s %d results, %d ok in both ways, %d known differences, %d connections moved; build %.0f s, bare %.0f s, run %.0f s",
		word, v.suite.name, v.results, v.good, v.known, v.moved, v.building.Seconds(), v.bare.Seconds(), v.run.Seconds())
	if v.again > 0 {
		fmt.Fprintf(out, "; %d were run again", v.again)
	}
	fmt.Fprintln(out)
	if len(v.failed) > 0 {
		fmt.Fprintf(out, "      %d failed in both ways: %s\n", len(v.failed), strings.Join(v.failed, ", "))
	}
	for _, text := range v.problems {
		fmt.Fprintf(out, "      PROBLEM %s\n", strings.ReplaceAll(text, "\n", "\n      | "))
	}
}
