// Command suite runs the test suites of other projects under 'gosmc run'. It gets their sources
// from Debian, builds each suite once into a cache, and runs it bare and under 'gosmc run', where
// all connections are moved. Each test has to have the same result in both ways. A difference that
// is known is in the table of its suite, with its reason.
//
// It exits with 0 if that is so, with 1 if not, and with 2 if it could not run. As root, each way
// has namespaces of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Bounds. The times measured on two idle cores are a fraction of each.
const (
	totalTimeout   = 3 * time.Hour
	fetchTimeout   = 5 * time.Minute  // sources come over a network
	installTimeout = 8 * time.Minute  // and so do packages
	buildTimeout   = 30 * time.Minute // of one suite
)

type options struct {
	only  []string
	list  bool
	cache string
	gosmc string
	shake bool
	seed  int64
	time  time.Duration
	work  bool // this process was started to run a suite in one way
	inner bool // and it is not the first process of its namespace
}

func parseFlags() (options, error) {
	var opt options
	only := flag.String("only", "", "run only these suites: names, separated by commas; NAME/UNIT runs one unit of a suite")
	flag.BoolVar(&opt.list, "list", false, "list the suites and their units, and end; units are known when a suite is built")
	flag.StringVar(&opt.cache, "cache", "", "the directory of sources, builds and logs; empty: gosmc-suite in the user's cache directory")
	flag.StringVar(&opt.gosmc, "gosmc", "", "the gosmc to try; empty: it is built")
	flag.BoolVar(&opt.shake, "shake", false, "use the library's debug switch, which has connections join and leave tiny rings at random")
	flag.Int64Var(&opt.seed, "seed", 0, "the number by which -time chooses, and that of -shake; 0: the day")
	flag.DurationVar(&opt.time, "time", 0, "run suites chosen at random that take this long together, built or not; 0: all")
	flag.BoolVar(&opt.work, "work", false, "for the program's own use")
	flag.BoolVar(&opt.inner, "inner", false, "for the program's own use")
	flag.Parse()
	if flag.NArg() != 0 {
		return opt, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if opt.seed < 0 {
		return opt, errors.New("-seed is not negative")
	}
	if opt.seed == 0 {
		opt.seed = time.Now().Unix() / (24 * 60 * 60)
	}
	if *only != "" {
		opt.only = strings.Split(*only, ",")
	}
	for _, name := range opt.only {
		name, _, _ = strings.Cut(name, "/")
		if find(name) == nil {
			return opt, fmt.Errorf("no suite %q; there are: %s", name, strings.Join(names(), ", "))
		}
	}
	if opt.cache == "" && !opt.work {
		dir, err := os.UserCacheDir()
		if err != nil {
			return opt, err
		}
		opt.cache = filepath.Join(dir, "gosmc-suite")
	}
	return opt, nil
}

func main() {
	opt, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	}
	if opt.work {
		os.Exit(work(opt.inner))
	}
	ctx, cancel := context.WithTimeout(context.Background(), totalTimeout)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	good, err := runAll(ctx, opt, os.Stdout)
	stop()
	cancel()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	case !good:
		os.Exit(1)
	}
}

// runAll runs the suites, and reports whether all is as it should be.
func runAll(ctx context.Context, opt options, out io.Writer) (good bool, err error) {
	var chosen []*suite
	for _, s := range suites {
		if len(opt.only) == 0 || slices.ContainsFunc(opt.only, func(name string) bool { return name == s.name || strings.HasPrefix(name, s.name+"/") }) {
			chosen = append(chosen, s)
		}
	}
	if opt.list {
		for _, s := range chosen {
			fmt.Fprintf(out, "%-10s %-9s %s\n", s.name, s.takes, s.what)
			units, err := s.units(s.tree(opt.cache))
			if err == nil {
				fmt.Fprintln(out, "          ", strings.Join(unitNames(units), " "))
			}
		}
		return true, nil
	}
	if opt.time > 0 {
		chosen = choose(chosen, opt.time, opt.seed)
		fmt.Fprintf(out, "seed %d: %s\n", opt.seed, strings.Join(namesOf(chosen), ", "))
	}
	if len(chosen) == 0 {
		return false, fmt.Errorf("no suite takes as little as %v", opt.time)
	}
	c, err := openCache(opt.cache)
	if err != nil {
		return false, err
	}
	defer c.close()
	install(ctx, out, chosen)
	dir, err := os.MkdirTemp("", "gosmc-suite-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	if opt.gosmc == "" {
		opt.gosmc = filepath.Join(dir, "gosmc")
		ctx, cancel := context.WithTimeout(ctx, buildTimeout)
		defer cancel()
		if text, err := exec.CommandContext(ctx, "go", "build", "-o", opt.gosmc, "github.com/gosmc/smc/cmd/gosmc").CombinedOutput(); err != nil {
			return false, fmt.Errorf("go build: %w\n%s", err, text)
		}
	}
	if opt.gosmc, err = filepath.Abs(opt.gosmc); err != nil {
		return false, err
	}
	passed, failed := 0, 0
	for _, s := range chosen {
		r := s.try(ctx, c, opt, dir)
		if ctx.Err() != nil {
			return false, fmt.Errorf("%s: %w", s.name, context.Cause(ctx))
		}
		r.print(out)
		if len(r.problems) == 0 {
			passed++
		} else {
			failed++
		}
	}
	fmt.Fprintf(out, "%d suites passed, %d failed\n", passed, failed)
	return failed == 0, nil
}
