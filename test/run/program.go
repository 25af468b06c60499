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
	"sync"
	"time"
)

// A program is one that is tried, with those that belong to it.
type program struct {
	name     string
	what     string   // it does, in a few words
	packages []string // of Debian, or patterns of their names
	needs    []string // commands, or patterns of files, without which it cannot be tried
	root     bool     // it can be tried by root only
	timeout  time.Duration
	slow     bool // its ways are done side by side: they mostly wait
	run      func(*lab)
}

// programTimeout is for one way, unless a program says otherwise.
const programTimeout = 2 * time.Minute

// programs is the table, in the order in which they are tried.
var programs = []*program{redis, iperf3, nginx, curl, uploads, varnish, socat, postgres, memcached, haproxy, apache2, uwsgi, lighttpd, deferred, sshd, rsync, git, xinetd, node, java, uring, container, memory, service, units, python}

func names() (list []string) {
	for _, p := range programs {
		list = append(list, p.name)
	}
	return list
}

func find(name string) *program {
	i := slices.IndexFunc(programs, func(p *program) bool { return p.name == name })
	if i < 0 {
		return nil
	}
	return programs[i]
}

// lacks returns the needs of a program that are not on this machine.
func (p *program) lacks() (list []string) {
	for _, need := range p.needs {
		if found(need) == "" {
			list = append(list, need)
		}
	}
	return list
}

// found returns the path of a command, of one that only root has in its path, or of the first file
// that matches.
func found(need string) string {
	if strings.Contains(need, "/") {
		files, _ := filepath.Glob(need)
		if len(files) > 0 {
			return files[len(files)-1]
		}
		return ""
	}
	if path, err := exec.LookPath(need); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path := filepath.Join(dir, need); isExecutable(path) {
			return path
		}
	}
	return ""
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// A way is how a program is run.
type way string

const (
	bare     way = "bare"
	moved    way = "run"      // under gosmc run
	disabled way = "disabled" // under gosmc run, with GOSMC_DISABLED=1
	shaken   way = "shaken"   // under gosmc run, with GOSMC_RUN_SHAKE
)

// moves says whether connections leave TCP.
func (w way) moves() bool { return w == moved || w == shaken }

// waysOf are the ways in which programs do their work. The others are compared with the first.
func waysOf(opt options) []way {
	if opt.shake {
		return []way{bare, shaken}
	}
	return []way{bare, moved, disabled, shaken}
}

// A programReport is the result of a program.
type programReport struct {
	Name     string         `json:"name"`
	Good     bool           `json:"good"`
	Lacks    string         `json:"lacks"` // packages that it needs to be tried; empty: it was
	Seconds  float64        `json:"seconds"`
	Results  int            `json:"results"` // that were compared
	Ways     []way          `json:"ways"`
	Moved    map[string]int `json:"moved"` // ends of connections that ss has shown under gosmc run, by mode
	Problems []string       `json:"problems"`
	Notes    []string       `json:"notes"`
}

// try does a program's work in all ways and compares. must says that it has to be there.
func (p *program) try(ctx context.Context, opt options, dir string, must bool) programReport {
	began := time.Now()
	r := programReport{Name: p.name, Good: true, Ways: waysOf(opt), Moved: map[string]int{}, Problems: []string{}, Notes: []string{}}
	if lacks := p.lacks(); len(lacks) > 0 {
		r.Lacks = fmt.Sprintf("%s: apt-get install %s", strings.Join(lacks, ", "), strings.Join(p.packages, " "))
		r.Good = !must
		return r
	}
	if p.root && os.Geteuid() != 0 {
		r.Lacks = "it takes root"
		return r
	}
	outcomes := make(map[way]*outcome)
	var mu sync.Mutex
	var wait sync.WaitGroup
	one := func(w way) {
		o := p.way(ctx, opt, dir, w)
		mu.Lock()
		outcomes[w] = o
		mu.Unlock()
	}
	for _, w := range r.Ways {
		if p.slow {
			wait.Go(func() { one(w) })
		} else {
			one(w)
		}
	}
	wait.Wait()
	r.compare(outcomes)
	r.Seconds = time.Since(began).Seconds()
	return r
}

func (r *programReport) problem(format string, args ...any) {
	r.Good = false
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// compare judges the outcomes.
func (r *programReport) compare(outcomes map[way]*outcome) {
	for _, w := range r.Ways {
		o := outcomes[w]
		for _, note := range o.Notes {
			if text := string(w) + ": " + note; !slices.Contains(r.Notes, text) {
				r.Notes = append(r.Notes, text)
			}
		}
		if o.Error != "" {
			r.problem("%s: %s", w, o.Error)
		}
		if w.moves() {
			for mode, n := range o.Moved {
				r.Moved[mode] += n
			}
		} else if len(o.Moved) != 0 {
			r.problem("%s: ss shows connections that were moved: %v", w, o.Moved)
		}
	}
	if !r.Good {
		return // there is little to compare
	}
	first := outcomes[bare].Results
	r.Results = len(first)
	for _, w := range r.Ways[1:] {
		other := outcomes[w].Results
		for _, name := range slices.Sorted(maps.Keys(merged(first, other))) {
			if first[name] != other[name] {
				r.problem("%s: %s is %q, and bare it is %q", w, name, other[name], first[name])
			}
		}
	}
}

func merged(a, b map[string]string) map[string]string {
	m := maps.Clone(a)
	if m == nil {
		m = make(map[string]string)
	}
	maps.Copy(m, b)
	return m
}

func (r *programReport) print(out io.Writer) {
	switch {
	case r.Lacks != "":
		verdict := "lacks"
		if !r.Good {
			verdict = "FAIL"
		}
		fmt.Fprintf(out, "%-5s %-12s %s\n", verdict, r.Name, r.Lacks)
	default:
		verdict := "ok"
		if !r.Good {
			verdict = "FAIL"
		}
		var modes []string
		for _, mode := range slices.Sorted(maps.Keys(r.Moved)) {
			modes = append(modes, fmt.Sprintf("%d %s", r.Moved[mode], mode))
		}
		if len(modes) == 0 {
			modes = []string{"none"}
		}
		fmt.Fprintf(out, "%-5s %-12s %d results equal in %d ways, ends moved that ss has shown: %s, %.0f s\n",
			verdict, r.Name, r.Results, len(r.Ways), strings.Join(modes, ", "), r.Seconds)
	}
	for _, text := range r.Problems {
		fmt.Fprintf(out, "      PROBLEM %s\n", strings.ReplaceAll(text, "\n", "\n      | "))
	}
	for _, text := range r.Notes {
		fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(text, "\n", "\n      | "))
	}
}
