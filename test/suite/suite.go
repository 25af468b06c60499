package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A suite is the tests of a project.
type suite struct {
	name   string
	what   string        // it is, in a few words
	source string        // a source package of Debian
	needs  []string      // commands and files by which packages are known to be there, each with the package: "tclsh tcl"
	after  *suite        // it is linked with the library of this suite; $AFTER in build
	build  string        // a script of the shell, run in the source's directory
	takes  time.Duration // to build and to run in both ways, about
	least  int           // connections that have to be moved in a run of all units

	// units returns the parts of the suite that are processes of their own. dir is where it was built.
	units func(dir string) ([]unit, error)

	// parse finds the results in the output of a unit.
	parse func(output string) map[string]string

	// differs has tests with different results under 'gosmc run', by UNIT and test, each with the
	// reason.
	differs map[string]string
}

// A unit is a part of a suite.
type unit struct {
	name    string
	command string // of the shell

	// again returns the command that runs some of its tests again; nil: command does.
	again func(tests []string) string
}

// suites is the table, in the order in which they are run.
var suites = []*suite{libuv, libevent, apr, perl, memcached, redis, haproxy}

func names() []string { return namesOf(suites) }

func namesOf(list []*suite) (names []string) {
	for _, s := range list {
		names = append(names, s.name)
	}
	return names
}

func unitNames(units []unit) (names []string) {
	for _, u := range units {
		names = append(names, u.name)
	}
	return names
}

func find(name string) *suite {
	i := slices.IndexFunc(suites, func(s *suite) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return suites[i]
}

// always is what all suites need.
var always = []string{"cc gcc", "/usr/include/stdlib.h libc6-dev", "make make", "dpkg-source dpkg-dev"}

// absent returns the needs of a suite that are not on this machine.
func (s *suite) absent() (list []string) {
	for _, need := range append(slices.Clone(always), s.needs...) {
		sign, _, _ := strings.Cut(need, " ")
		var err error
		if strings.Contains(sign, "/") {
			_, err = os.Stat(sign)
		} else {
			_, err = exec.LookPath(sign)
		}
		if err != nil {
			list = append(list, need)
		}
	}
	return list
}

// lacks says how to install them.
func (s *suite) lacks() (list []string) {
	for _, need := range s.absent() {
		sign, pkg, _ := strings.Cut(need, " ")
		list = append(list, fmt.Sprintf("%s: apt-get install %s", sign, pkg))
	}
	return list
}

// choose returns suites that take no longer than bound together, in an order that the seed gives.
func choose(list []*suite, bound time.Duration, seed int64) (chosen []*suite) {
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	for _, i := range r.Perm(len(list)) {
		if list[i].takes <= bound {
			bound -= list[i].takes
			chosen = append(chosen, list[i])
		}
	}
	return chosen
}

// only returns the units that -only names.
func (opt *options) units(s *suite, all []unit) ([]unit, error) {
	var chosen []unit
	for _, name := range opt.only {
		first, second, found := strings.Cut(name, "/")
		if first != s.name {
			continue
		}
		if !found {
			return all, nil
		}
		i := slices.IndexFunc(all, func(u unit) bool { return u.name == second })
		if i < 0 {
			return nil, fmt.Errorf("no unit %q; there are: %s", second, strings.Join(unitNames(all), " "))
		}
		chosen = append(chosen, all[i])
	}
	if len(chosen) == 0 {
		return all, nil
	}
	return chosen, nil
}

// one is the units of a suite that is a single process.
func one(command string, again func(tests []string) string) func(string) ([]unit, error) {
	return func(string) ([]unit, error) { return []unit{{"all", command, again}}, nil }
}

// each is a unit for each of a suite's files that match a pattern and are not left out. FILE in
// command stands for it.
func each(pattern, command string, leftOut ...string) func(string) ([]unit, error) {
	return func(dir string) (units []unit, err error) {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			name := strings.TrimSuffix(filepath.Base(f), filepath.Ext(f))
			if !slices.Contains(leftOut, name) {
				units = append(units, unit{name: name, command: strings.ReplaceAll(command, "FILE", f)})
			}
		}
		if len(units) == 0 {
			return nil, fmt.Errorf("no file %s", filepath.Join(dir, pattern))
		}
		return units, nil
	}
}
