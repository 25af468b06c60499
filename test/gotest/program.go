package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A program is a row of the table: a server, with the clients that use it.
type program struct {
	name    string
	what    string            // it does, in a few words
	sources map[string]source // the programs that are compiled, by the name that run uses
	needs   []string          // commands of the machine
	small   bool              // it compiles in a part of the time of .ci/run
	share   float64           // of the connections to its servers that have to move, at least
	least   int               // connections to its servers, at least
	run     func(*lab)
}

// A verdict is the result of a program.
type verdict struct {
	program  *program
	results  int // that were equal
	moved    int // connections of servers, over SMC
	tcp      int // those that stayed TCP meanwhile
	reasons  []string
	building time.Duration
	working  time.Duration
	problems []string
}

func (v *verdict) problem(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// try builds a program, has it work in both ways, and compares.
func (p *program) try(ctx context.Context, opt options, dir string) *verdict {
	v := &verdict{program: p}
	for _, need := range p.needs {
		if _, err := exec.LookPath(need); err != nil {
			v.problem("%v", err)
			return v
		}
	}
	began := time.Now()
	built := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(p.sources)) {
		file, err := p.sources[name].build(ctx, opt, name)
		if err != nil {
			v.problem("%s: %v", name, err)
			return v
		}
		built[name] = file
	}
	v.building = time.Since(began)
	began = time.Now()
	over := p.way(ctx, opt, dir, built, false)
	plain := p.way(ctx, opt, dir, built, true)
	v.working = time.Since(began)
	v.compare(over, plain)
	return v
}

// way has the program work once.
func (p *program) way(
	ctx context.Context, opt options, dir string, built map[string]string, disabled bool,
) *outcome {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	own, err := os.MkdirTemp(dir, "way")
	if err != nil {
		return &outcome{err: err}
	}
	defer os.RemoveAll(own)
	l := &lab{ctx: ctx, gosmc: opt.gosmc, built: built, dir: own, disabled: disabled}
	l.rundir = filepath.Join(own, "r")
	return l.do(p.run)
}

// compare judges the outcomes of the two ways.
func (v *verdict) compare(over, plain *outcome) {
	for name, o := range map[string]*outcome{"over SMC": over, "over TCP": plain} {
		if o.err != nil {
			v.problem("%s: %v", name, o.err)
		}
	}
	v.moved, v.tcp, v.reasons = over.moved, over.tcp, over.reasons
	if plain.moved+plain.tcp > 0 {
		v.problem("with GOSMC_DISABLED=1 hosts have counted %d connections", plain.moved+plain.tcp)
	}
	if len(v.problems) > 0 {
		slices.Sort(v.problems)
		return // there is little to compare
	}
	all := maps.Clone(over.results)
	maps.Copy(all, plain.results)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if over.results[name] == plain.results[name] {
			v.results++
		} else {
			v.problem("%s is %q, and over TCP it is %q", name, over.results[name], plain.results[name])
		}
	}
	if v.results == 0 {
		v.problem("no result was compared")
	}
	if all := v.moved + v.tcp; all < v.program.least {
		v.problem("the servers had %d connections, want %d", all, v.program.least)
	} else if float64(v.moved) < v.program.share*float64(all) {
		v.problem("%d of %d connections moved, want %.0f %%", v.moved, all, 100*v.program.share)
	}
}

func (v *verdict) print(out io.Writer) {
	word := "ok"
	if len(v.problems) > 0 {
		word = "FAIL"
	}
	fmt.Fprintf(out, "%-5s %-12s %d results equal over SMC and TCP, ", word, v.program.name, v.results)
	fmt.Fprintf(out, "%d of %d connections moved; ", v.moved, v.moved+v.tcp)
	fmt.Fprintf(out, "build %.0f s, work %.0f s\n", v.building.Seconds(), v.working.Seconds())
	for _, text := range v.reasons {
		fmt.Fprintf(out, "      stayed TCP: %s\n", text)
	}
	for _, text := range v.problems {
		fmt.Fprintf(out, "      PROBLEM %s\n", strings.ReplaceAll(text, "\n", "\n      | "))
	}
}
