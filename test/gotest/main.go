// Command gotest builds released Go programs, unchanged, with 'gosmc go build', and has them work
// for clients that are built so, too. The sources come through the module proxy, in the versions
// of the table. Each program does its work twice: over SMC, and with GOSMC_DISABLED=1 over TCP. The
// results have to be equal, and 'gosmc stats' has to show that the connections of the first way
// moved, and none of the second.
//
// It exits with 0 if that is so, with 1 if not, and with 2 if it could not run.
package main

import (
	"context"
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
	totalTimeout = 2 * time.Hour
	fetchTimeout = 10 * time.Minute // of one program's modules
	buildTimeout = 40 * time.Minute // of one program
	workTimeout  = 5 * time.Minute  // of one program in one way
)

type options struct {
	only  []string
	small bool
	list  bool
	cache string
	gosmc string
}

func parseFlags() (options, error) {
	var opt options
	only := flag.String("only", "", "try only these programs: names, separated by commas")
	flag.BoolVar(&opt.small, "small", false, "try only programs that compile quickly")
	flag.BoolVar(&opt.list, "list", false, "list the programs and end")
	flag.StringVar(&opt.cache, "cache", "", "where programs are kept; empty: the user's cache directory")
	flag.StringVar(&opt.gosmc, "gosmc", "", "the gosmc to try; empty: it is built")
	flag.Parse()
	if flag.NArg() != 0 {
		return opt, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *only != "" {
		opt.only = strings.Split(*only, ",")
	}
	for _, name := range opt.only {
		if !slices.ContainsFunc(programs, func(p *program) bool { return p.name == name }) {
			return opt, fmt.Errorf("no program %q; see -list", name)
		}
	}
	if opt.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return opt, err
		}
		opt.cache = filepath.Join(dir, "gosmc-gotest")
	}
	return opt, nil
}

func main() {
	opt, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), totalTimeout)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	good, err := runAll(ctx, opt, os.Stdout)
	stop()
	cancel()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(2)
	case !good:
		os.Exit(1)
	}
}

// chosen returns the programs that the options name, in the order of the table.
func (opt options) chosen() (list []*program) {
	for _, p := range programs {
		if (len(opt.only) == 0 || slices.Contains(opt.only, p.name)) && (p.small || !opt.small) {
			list = append(list, p)
		}
	}
	return list
}

// runAll tries the programs, and reports whether all is as it should be.
func runAll(ctx context.Context, opt options, out io.Writer) (good bool, err error) {
	if opt.list {
		for _, p := range opt.chosen() {
			fmt.Fprintf(out, "%-12s %s\n", p.name, p.what)
		}
		return true, nil
	}
	dir, err := os.MkdirTemp("", "gosmc-gotest-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	if opt.gosmc == "" {
		opt.gosmc = filepath.Join(dir, "gosmc")
		cmd := exec.CommandContext(ctx, "go", "build", "-o", opt.gosmc, "github.com/gosmc/smc/cmd/gosmc")
		if text, err := cmd.CombinedOutput(); err != nil {
			return false, fmt.Errorf("go build: %w\n%s", err, text)
		}
	}
	if opt.gosmc, err = filepath.Abs(opt.gosmc); err != nil {
		return false, err
	}
	if opt.cache, err = filepath.Abs(opt.cache); err != nil {
		return false, err
	}
	passed, failed := 0, 0
	for _, p := range opt.chosen() {
		v := p.try(ctx, opt, dir)
		if ctx.Err() != nil {
			return false, fmt.Errorf("%s: %w", p.name, context.Cause(ctx))
		}
		v.print(out)
		if len(v.problems) == 0 {
			passed++
		} else {
			failed++
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, failed)
	return failed == 0 && passed > 0, nil
}
