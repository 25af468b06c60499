// Command equal tries whether connections of 'gosmc run' behave as TCP does. It makes scripts of
// calls from random numbers, has each played by processes over bare TCP, and under 'gosmc run' in
// several modes, and compares the observations of the calls. model.go lists the points that TCP
// leaves open. A script that differs is made smaller, and written to testdata, where 'go test'
// plays it from then on.
//
// It exits with 0 if all were equal, with 1 if not, and with 2 if it could not run. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	seed    uint64
	scripts int
	time    time.Duration
	workers int
	script  string
	times   int
	record  bool
	print   bool
	stop    int
	modes   string
	gosmc   string
	write   string
	open    string
	state   string
	total   bool
	inside  bool

	patience int
}

func parseFlags() (options, error) {
	var opt options
	flag.Uint64Var(&opt.seed, "seed", 0, "the number from which scripts are made; 0: one that is printed")
	flag.IntVar(&opt.scripts, "scripts", 0, "how many scripts to play; 0: as many as there is time for")
	flag.DurationVar(&opt.time, "time", 3*time.Minute, "how long to play scripts; if their number is given: no limit but this one, if it is given, too")
	flag.IntVar(&opt.workers, "workers", min(4*runtime.NumCPU(), 32), "how many scripts are played at a time")
	flag.StringVar(&opt.script, "script", "", "play this file, and print what each step observes in each mode")
	flag.BoolVar(&opt.record, "record", false, "write what TCP observes into the file of -script")
	flag.IntVar(&opt.times, "times", 1, "play the file of -script so many times, or until it differs")
	flag.BoolVar(&opt.print, "print", false, "print the script that -seed makes, and end")
	flag.IntVar(&opt.stop, "failures", 5, "end after so many scripts that differ")
	flag.IntVar(&opt.patience, "patience", 1, "multiply the time limits of scripts, for a machine that has much else to do")
	flag.StringVar(&opt.modes, "modes", "", "play only in these modes beside bare TCP: names, separated by commas")
	flag.StringVar(&opt.gosmc, "gosmc", "", "the gosmc to try; empty: it is built")
	flag.StringVar(&opt.write, "write", "", "the directory for scripts that differ; empty: test/equal/testdata, if it is there")
	flag.StringVar(&opt.open, "open", "", "include these defects that are known and not repaired yet, separated by commas: "+strings.Join(slices.Sorted(maps.Keys(open)), ", "))
	flag.StringVar(&opt.state, "state", "", "add the results to this file, and go on after the last seed in it; -scripts is the number that the file is to have")
	flag.BoolVar(&opt.total, "total", false, "print the results in the file of -state, and end")
	flag.BoolVar(&opt.inside, "inside", false, "for the program's own use")
	flag.Parse()
	if flag.NArg() != 0 {
		return opt, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if opt.patience < 1 {
		return opt, fmt.Errorf("-patience %d: has to be 1 or more", opt.patience)
	}
	for _, limit := range []*time.Duration{&playTime, &shortTime, &spareTime} {
		*limit *= time.Duration(opt.patience)
	}
	for _, name := range strings.Split(opt.open, ",") {
		delete(open, name)
	}
	if opt.workers < 1 {
		return opt, fmt.Errorf("-workers %d: has to be 1 or more", opt.workers)
	}
	if opt.total && opt.state == "" {
		return opt, errors.New("-total: needs the file, -state")
	}
	if opt.seed == 0 && opt.state == "" {
		opt.seed = rand.Uint64() >> 16
	}
	if opt.state != "" && opt.modes != "" {
		return opt, errors.New("-state: not with -modes, as the file does not tell modes apart")
	}
	if timed := false; opt.scripts > 0 {
		flag.Visit(func(f *flag.Flag) { timed = timed || f.Name == "time" })
		if !timed {
			opt.time = 0
		}
	}
	if opt.write == "" {
		if _, err := os.Stat("test/equal/testdata"); err == nil {
			opt.write = "test/equal/testdata"
		}
	}
	return opt, nil
}

func printTotal(path string) error {
	l, err := openLedger(path)
	if err != nil {
		return err
	}
	_, text := total(l.spans)
	fmt.Print(text)
	return nil
}

func main() {
	opt, err := parseFlags()
	switch {
	case err != nil:
	case opt.print:
		fmt.Print(generate(opt.seed))
		return
	case opt.total:
		if err = printTotal(opt.state); err == nil {
			return
		}
	}
	if err == nil && !opt.inside {
		os.Exit(isolate())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	good := false
	if err == nil {
		settleNetwork(ctx)
		good, err = run(ctx, opt)
	}
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "equal:", err)
		os.Exit(2)
	case !good:
		os.Exit(1)
	}
}

func run(ctx context.Context, opt options) (bool, error) {
	l, err := openLedger(opt.state)
	if err != nil {
		return false, err
	}
	if opt.state != "" && opt.scripts > 0 {
		have, text := total(l.spans)
		if opt.scripts -= int(have[equal]); opt.scripts <= 0 {
			fmt.Print(text)
			return have[differs] == 0, nil
		}
	}
	if opt.seed == 0 {
		opt.seed = next(l.spans)
	}
	if opt.seed == 0 {
		opt.seed = rand.Uint64() >> 16
	}
	dir, err := os.MkdirTemp("", "eq") // short, for names of sockets
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	t, err := newTool(ctx, dir, opt.gosmc, opt.seed)
	if err != nil {
		return false, err
	}
	var chosen []mode
	for _, m := range modes(opt.seed) {
		if m.name == "bare" || opt.modes == "" || strings.Contains(","+opt.modes+",", ","+m.name+",") {
			chosen = append(chosen, m)
		}
	}
	if opt.script != "" {
		s, err := readScript(opt.script)
		if err != nil {
			return false, err
		}
		if opt.times > 1 {
			x := newTable(t, chosen)
			for k := 0; k < opt.times; k++ {
				r, err := x.try(s)
				if err == nil && r.difference == "" {
					continue
				}
				x.stop()
				if err == nil {
					fmt.Printf("after %d times, %s: %s\n", k+1, r.mode, r.difference)
				}
				return false, err
			}
			x.stop()
			fmt.Printf("%d times without a difference\n", opt.times)
			return true, nil
		}
		if opt.record {
			x := newTable(t, chosen[:1])
			defer x.stop()
			r, err := x.tryWithin(s, 3, playTime, playTime)
			if err != nil {
				return false, err
			}
			if r.unsteady {
				return false, errors.New("TCP does not observe the same each time")
			}
			s.want = r.bare.lines
			return true, os.WriteFile(opt.script, []byte(s.String()), 0o644)
		}
		return show(t, chosen, s)
	}
	return fuzz(ctx, t, chosen, opt, l)
}

// A table is the players of one worker.
type table struct {
	players []*player // the first one is bare
}

func newTable(t *tool, chosen []mode) *table {
	x := &table{}
	for _, m := range chosen {
		x.players = append(x.players, &player{tool: t, mode: m})
	}
	return x
}

func (x *table) stop() {
	for _, p := range x.players {
		p.stop()
	}
}

// A result is the outcome of a script.
type result struct {
	unsteady   bool // TCP does not observe the same each time
	difference string
	mode       string
	bare       *play
	moved, of  int
	joined     int // plays that were not compared: see joinedTimes
}

// joinedTimes is how often a script is played in a mode until no supervisor has joined a connection
// to TCP, as it does where the server was late on a busy machine: sent bytes come later then, and
// the steps are too fast for it.
const joinedTimes = 4

// plays says whether a script is to be played in a mode.
func plays(s *script, m mode) bool {
	if len(s.modes) == 0 {
		return true
	}
	for _, name := range s.modes {
		if name == m.name {
			return true
		}
	}
	return false
}

// try plays a script over TCP, and then in the other modes until one differs.
func (x *table) try(s *script) (*result, error) { return x.tryWithin(s, 1, playTime, playTime) }

// confirms is how often a script that differs is played over TCP again: one that observes different
// things there each time is no good.
const confirms = 2

// tryWithin plays a script over TCP so many times first.
func (x *table) tryWithin(s *script, times int, bare, moved time.Duration) (*result, error) {
	r := &result{}
	if err := x.overTCP(r, s, times, bare); err != nil || r.unsteady {
		return r, err
	}
	for _, player := range x.players[1:] {
		if !plays(s, player.mode) {
			continue
		}
		var p *play
		for range joinedTimes {
			var err error
			if p, err = player.play(s, moved); err != nil {
				return r, err
			}
			r.moved += p.moved
			r.of += p.of
			if p.joined == 0 {
				break
			}
			r.joined++
		}
		if p.joined > 0 {
			continue
		}
		if d := compare(s, r.bare, p); d != "" {
			err := x.overTCP(r, s, confirms, bare)
			if err == nil && !r.unsteady {
				r.difference, r.mode = d, player.mode.name
			}
			return r, err
		}
	}
	return r, nil
}

// overTCP plays a script over TCP so many times, and takes note of its observations, and of whether
// they are the same each time, also as before.
func (x *table) overTCP(r *result, s *script, times int, most time.Duration) error {
	for range times {
		p, err := x.players[0].play(s, most)
		if err != nil {
			return err
		}
		for _, line := range p.lines {
			if line == "HANGS" || line == "NEVER" || strings.Contains(line, "STUCK") || strings.Contains(line, "WRONG") {
				r.unsteady = true
			}
		}
		if p.died != "" || r.bare != nil && !slices.Equal(r.bare.lines, p.lines) {
			r.unsteady = true
		}
		r.bare = p
		if r.unsteady {
			return nil
		}
	}
	return nil
}

// again says how many times of ten a script differs, and how many times TCP itself does.
func (x *table) again(s *script, mode string, times int) (differs, unsteady int) {
	t := *s
	t.modes = []string{mode}
	for range times {
		r, err := x.try(&t)
		switch {
		case err != nil || r.unsteady:
			unsteady++
		case r.difference != "":
			differs++
		}
	}
	return differs, unsteady
}

// hangs says whether a script differs in that something does not end.
func hangs(r *result) bool {
	return strings.Contains(r.difference, "HANGS") || strings.Contains(r.difference, "NEVER") || strings.Contains(r.difference, "STUCK")
}

// differing is the operation that has observed something else, so that a smaller script does not
// stand for another difference.
func differing(r *result) string {
	_, rest, _ := strings.Cut(r.difference, ", ")
	if !isStep(rest) {
		return ""
	}
	_, op, _ := fields(rest)
	return op
}

// repeats is how many times a script is played again that differs.
const repeats = 6

// report makes a script smaller that differs, prints it, and writes it to a directory.
func (x *table) report(s *script, r *result, dir string) {
	differs, unsteady := x.again(s, r.mode, repeats)
	fmt.Printf("%s, %s: %s (again %d times of %d; TCP itself %d)\n", s.name, r.mode, r.difference, differs, repeats, unsteady)
	small := *s
	small.modes = []string{r.mode}
	last := r
	if differs > 0 {
		tries, most := 1, shortTime
		if hangs(r) {
			most = playTime
		}
		if differs < repeats {
			tries = 4
		}
		for _, p := range x.players[1:] {
			p.stall = longStall
			defer func() { p.stall = 0 }()
		}
		small = *shrink(&small, func(t *script) bool {
			for range tries {
				if r, err := x.tryWithin(t, 1, shortTime, most); err == nil && !r.unsteady && r.difference != "" && hangs(r) == hangs(last) && (hangs(r) || differing(r) == differing(last)) {
					last = r
					return true
				}
			}
			return false
		})
	}
	small.want = last.bare.lines
	if len(small.want) != len(small.steps) {
		small.want = nil
	}
	small.notes = []string{fmt.Sprintf("%s, %s: %s", s.name, last.mode, last.difference)}
	if differs < repeats {
		small.notes = append(small.notes, fmt.Sprintf("The whole script differs %d times of %d.", differs, repeats))
	}
	small.modes = nil
	if len(s.modes) > 0 {
		small.modes = s.modes
	}
	fmt.Printf("%s\n", small.String())
	if dir == "" {
		return
	}
	path := filepath.Join(dir, "found-"+strings.ReplaceAll(s.name, " ", "-")+".txt")
	if err := os.WriteFile(path, []byte(small.String()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "equal:", err)
		return
	}
	fmt.Printf("written to %s\n", path)
}

// show prints the observations of each step of a script in each mode.
func show(t *tool, chosen []mode, s *script) (bool, error) {
	x := newTable(t, chosen)
	defer x.stop()
	good := true
	var bare *play
	for i, p := range x.players {
		if i > 0 && !plays(s, p.mode) {
			continue
		}
		r, err := p.play(s, playTime)
		if err != nil {
			return false, err
		}
		fmt.Printf("%s, %d of %d connections left TCP\n", p.mode.name, r.moved, r.of)
		if i == 0 {
			bare = r
		}
		for k, step := range s.steps {
			if i == 0 || r.lines[k] != bare.lines[k] {
				fmt.Printf("%4d %-40s => %s\n", k+1, step, r.lines[k])
			}
		}
		if i == 0 {
			continue
		}
		if d := compare(s, bare, r); d != "" {
			fmt.Printf("differs: %s\n", d)
			good = false
		}
	}
	return good, nil
}
