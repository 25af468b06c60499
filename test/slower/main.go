// Command slower looks for ways to use connections in which 'gosmc run' is slower than TCP. A C
// program, which cc compiles at that moment, does each of some seventy for a moment, over TCP and
// under gosmc run by turns, and the medians are compared. It measures, and judges nothing: a
// machine that does other things besides shows large differences. See README.md.
//
// It exits with 0 if all could be measured, and with 2 if not.
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
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
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

//go:embed patterns/patterns.c
var source []byte

type options struct {
	only   *regexp.Regexp
	rounds int
	time   time.Duration
	gosmc  string
	json   bool
	list   bool
}

func parseFlags() (options, error) {
	var opt options
	only := flag.String("only", "", "measure only the patterns whose names match the regular expression")
	flag.IntVar(&opt.rounds, "rounds", 5, "how often to measure each, over TCP and under gosmc run: medians are compared")
	flag.DurationVar(&opt.time, "time", 300*time.Millisecond, "how long a measurement takes")
	flag.StringVar(&opt.gosmc, "gosmc", "", "the gosmc to try; empty: it is built")
	flag.BoolVar(&opt.json, "json", false, "print JSON, a line for each pattern")
	flag.BoolVar(&opt.list, "list", false, "list the patterns, and end")
	flag.Parse()
	if flag.NArg() != 0 {
		return opt, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if opt.rounds < 1 || opt.time < time.Millisecond {
		return opt, errors.New("-rounds must be 1 or more, and -time 1ms or more")
	}
	var err error
	if opt.only, err = regexp.Compile(*only); err != nil {
		return opt, fmt.Errorf("-only: %w", err)
	}
	return opt, nil
}

func main() {
	opt, err := parseFlags()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		err = run(ctx, opt)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "slower:", err)
		os.Exit(2)
	}
}

// A result is what a pattern has done in a second: medians of all rounds.
type result struct {
	Pattern string  `json:"pattern"`
	Unit    string  `json:"unit"`
	TCP     float64 `json:"tcp"`
	Gosmc   float64 `json:"gosmc"`
	Ratio   float64 `json:"ratio"` // of Gosmc to TCP; below 1 it is slower
}

func run(ctx context.Context, opt options) error {
	dir, err := os.MkdirTemp("", "slower")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "patterns")
	if err := compile(ctx, program); err != nil {
		return err
	}
	patterns, err := list(ctx, program, opt.only)
	if err != nil {
		return err
	}
	if opt.list {
		for _, p := range patterns {
			fmt.Println(p.Pattern)
		}
		return nil
	}
	if opt.gosmc == "" {
		opt.gosmc = filepath.Join(dir, "gosmc")
		if err := output(exec.CommandContext(ctx, "go", "build", "-o", opt.gosmc, "github.com/gosmc/smc/cmd/gosmc"), nil); err != nil {
			return err
		}
	}
	for i := range patterns {
		if err := patterns[i].measure(ctx, opt, program); err != nil {
			return err
		}
		if opt.json {
			if err := json.NewEncoder(os.Stdout).Encode(patterns[i]); err != nil {
				return err
			}
		} else {
			fmt.Fprintf(os.Stderr, "\r%d of %d", i+1, len(patterns))
		}
	}
	if !opt.json {
		fmt.Fprint(os.Stderr, "\r")
		fmt.Print(table(patterns))
	}
	return nil
}

func compile(ctx context.Context, program string) error {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return errors.New("needs a C compiler: no cc in PATH (Debian: apt-get install gcc libc6-dev)")
	}
	cmd := exec.CommandContext(ctx, cc, "-O2", "-Wall", "-pthread", "-o", program, "-x", "c", "-")
	cmd.Stdin = bytes.NewReader(source)
	return output(cmd, nil)
}

// list returns the patterns that match, without results.
func list(ctx context.Context, program string, only *regexp.Regexp) ([]result, error) {
	var text bytes.Buffer
	if err := output(exec.CommandContext(ctx, program), &text); err != nil {
		return nil, err
	}
	var patterns []result
	for lines := bufio.NewScanner(&text); lines.Scan(); {
		if name, unit, _ := strings.Cut(lines.Text(), " "); only.MatchString(name) {
			patterns = append(patterns, result{Pattern: name, Unit: unit})
		}
	}
	if len(patterns) == 0 {
		return nil, errors.New("no pattern matches; -list lists them")
	}
	return patterns, nil
}

// measure takes turns, so that what else the machine does concerns both.
func (r *result) measure(ctx context.Context, opt options, program string) error {
	words := []string{program, r.Pattern, strconv.FormatInt(opt.time.Milliseconds(), 10)}
	moved := append([]string{opt.gosmc, "run", "--"}, words...)
	var tcp, gosmc []float64
	for range opt.rounds {
		for _, side := range []struct {
			words []string
			rates *[]float64
		}{{words, &tcp}, {moved, &gosmc}} {
			const patience = time.Minute // beyond the time that was asked for
			ctx, cancel := context.WithTimeout(ctx, opt.time+patience)
			var text bytes.Buffer
			err := output(exec.CommandContext(ctx, side.words[0], side.words[1:]...), &text)
			cancel()
			if err != nil {
				return err
			}
			rate, err := strconv.ParseFloat(strings.TrimSpace(text.String()), 64)
			if err != nil {
				return fmt.Errorf("%s: %w", r.Pattern, err)
			}
			*side.rates = append(*side.rates, rate)
		}
	}
	r.TCP, r.Gosmc = median(tcp), median(gosmc)
	if r.TCP > 0 {
		r.Ratio = r.Gosmc / r.TCP
	}
	return nil
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
}

// table has the slowest first.
func table(results []result) string {
	results = slices.Clone(results)
	slices.SortStableFunc(results, func(a, b result) int {
		switch {
		case a.Ratio < b.Ratio:
			return -1
		case a.Ratio > b.Ratio:
			return 1
		}
		return 0
	})
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "pattern\tTCP\tgosmc run\tratio\t\t")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.2f\t%s\t\n", r.Pattern, r.TCP, r.Gosmc, r.Ratio, r.Unit)
	}
	w.Flush()
	return b.String()
}

// output runs a command, of which an error has what it says.
func output(cmd *exec.Cmd, out *bytes.Buffer) error {
	var said bytes.Buffer
	cmd.Stderr = &said
	if out != nil {
		cmd.Stdout = out
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, said.String())
	}
	return nil
}
