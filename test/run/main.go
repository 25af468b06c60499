// Command run tries programs that know nothing of gosmc under 'gosmc run': servers and clients of
// Debian, and Python's own tests of its sockets. Each does the same work four times: bare, under
// 'gosmc run', under it with GOSMC_DISABLED=1, and under it with the library's debug switch, which
// has connections join and leave tiny rings at random; with -shake that and bare only. The results
// have to be equal, and 'gosmc ss' has to show that connections were moved under 'gosmc run', and
// in no other case.
//
// It exits with 0 if that is so, with 1 if not, and with 2 if it could not run. As root, and where
// there is apt-get, it installs the packages that are missing; elsewhere it names the missing ones,
// and tries the rest.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Bounds. The times seen on two busy cores are a fraction of each.
const (
	totalTimeout   = 40 * time.Minute
	installTimeout = 8 * time.Minute // packages come over a network
	buildTimeout   = 5 * time.Minute
)

type options struct {
	only    []string
	list    bool
	json    bool
	install bool
	verbose bool
	shake   bool // all programs, and only the ways that it needs
	seed    uint
	gosmc   string
	confine string // the restrictions of this process before it executes a program
	boot    string // the file that describes the root file system that this process makes before it becomes systemd
	work    bool   // this process is one that was started to do the work of one way
}

func parseFlags() (options, error) {
	var opt options
	only := flag.String("only", "", "try only these programs: names, separated by commas")
	flag.BoolVar(&opt.list, "list", false, "list the programs and end")
	flag.BoolVar(&opt.json, "json", false, "print a report on standard output in the end; progress goes to standard error")
	flag.BoolVar(&opt.install, "install", true, "install missing packages, as root and where there is apt-get")
	flag.BoolVar(&opt.verbose, "v", false, "print what the programs print on standard error")
	flag.StringVar(&opt.gosmc, "gosmc", "", "the gosmc to try; empty: it is built")
	flag.BoolVar(&opt.shake, "shake", false, "have each program do its work bare and with the library's debug switch on, instead of the other ways")
	flag.UintVar(&opt.seed, "seed", 1, "the number that the debug switch is given, at least 1")
	flag.BoolVar(&opt.work, "work", false, "for the program's own use")
	flag.StringVar(&opt.confine, "confine", "", "for the program's own use")
	flag.StringVar(&opt.boot, "boot", "", "for the program's own use")
	flag.Parse()
	if flag.NArg() != 0 {
		return opt, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if opt.seed == 0 {
		return opt, errors.New("-seed is at least 1")
	}
	if *only != "" {
		opt.only = regexp.MustCompile(`[ ,]+`).Split(strings.Trim(*only, " ,"), -1)
	}
	for _, name := range opt.only {
		if find(name) == nil {
			return opt, fmt.Errorf("no program %q; there are: %s", name, strings.Join(names(), ", "))
		}
	}
	return opt, nil
}

func main() {
	opt, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "run-test:", err)
		os.Exit(2)
	}
	if opt.confine != "" {
		fmt.Fprintln(os.Stderr, "run-test:", confine(opt.confine))
		os.Exit(2)
	}
	if opt.boot != "" {
		fmt.Fprintln(os.Stderr, "run-test:", boot(opt.boot))
		os.Exit(2)
	}
	if opt.work {
		os.Exit(work())
	}
	if opt.list {
		for _, p := range programs {
			fmt.Printf("%-12s %s\n", p.name, p.what)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), totalTimeout)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	good, err := runAll(ctx, opt)
	stop()
	cancel()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "run-test:", err)
		os.Exit(2)
	case !good:
		os.Exit(1)
	}
}

// A report is the output of --json.
type report struct {
	Schema   int             `json:"schema"`
	Time     time.Time       `json:"time"` // of the start
	Seconds  float64         `json:"seconds"`
	Programs []programReport `json:"programs"`
}

// runAll tries the programs, and reports whether all is as it should be.
func runAll(ctx context.Context, opt options) (good bool, err error) {
	out := os.Stdout
	if opt.json {
		out = os.Stderr
	}
	r := report{Schema: 1, Time: time.Now(), Programs: []programReport{}}
	var chosen []*program
	for _, p := range programs {
		if len(opt.only) == 0 || slices.Contains(opt.only, p.name) {
			chosen = append(chosen, p)
		}
	}
	dir, err := os.MkdirTemp("", "gosmc-run-test-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // servers read here that give up root's privileges
		return false, err
	}
	must := false
	if opt.install {
		must = install(ctx, out, chosen)
	}
	if opt.gosmc == "" {
		fmt.Fprintln(out, "building gosmc")
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
	good = true
	passed, failed, lacking := 0, 0, 0
	for _, p := range chosen {
		pr := p.try(ctx, opt, dir, must)
		if ctx.Err() != nil {
			return false, fmt.Errorf("%s: %w", p.name, context.Cause(ctx))
		}
		pr.print(out)
		r.Programs = append(r.Programs, pr)
		switch {
		case pr.Lacks != "":
			lacking++
		case pr.Good:
			passed++
		default:
			failed++
		}
		good = good && pr.Good
	}
	r.Seconds = time.Since(r.Time).Seconds()
	if lacking > 0 {
		fmt.Fprintf(out, "%d programs were not tried, for what they lack\n", lacking)
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, failed)
	if opt.json {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(r); err != nil {
			return false, err
		}
	}
	return good, nil
}
