// Command rules takes the rules of the protocol out of the code, one at a time, and runs the tests that
// are named beside them. A rule whose test still passes is held by nobody, and is reported.
//
// A rule is a line with a marker, or the line below a marker that has a line of its own:
//
//	case p.RMBEIndex == 0: // rule: TestClientChecksAccept, TestServerChecksConfirm
//	// rule: TestOutOfSync
//	s.dropGroup()
//	a.FCE.MaxLinks = min(ours, theirs) // rule: TestHandshakeTypes: min(ours, theirs) -> ours
//
// CONTRIBUTING.md explains the markers. The files of the tree are not touched: the go command is
// given others in their place.
//
// It exits with 0 if every test failed without its rule, with 1 if one did not, and with 2 if it could
// not find out.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"sync"
)

func main() {
	run := flag.String("run", "", "only the rules whose file:line, code or tests match the regular expression")
	list := flag.Bool("list", false, "list the rules and run nothing")
	jobs := flag.Int("p", max(1, runtime.NumCPU()/2), "how many tests run at a time")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "rules: unexpected arguments; see -help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := check(ctx, *run, *list, *jobs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "rules:", err)
		code = 2
	}
	stop()
	os.Exit(code)
}

// check lists or checks the rules as the flags ask, and returns the exit status.
func check(ctx context.Context, pattern string, list bool, jobs int) (int, error) {
	match, err := regexp.Compile(pattern)
	if err != nil {
		return 2, err
	}
	all, err := findRules(".")
	if err != nil {
		return 2, err
	}
	var rules []rule
	for _, r := range all {
		if match.MatchString(r.String()) {
			rules = append(rules, r)
		}
	}
	switch {
	case len(rules) == 0:
		return 2, fmt.Errorf("no rule matches %q", pattern)
	case list:
		for _, r := range rules {
			fmt.Println(r)
		}
		return 0, nil
	}
	if err := checkWhole(ctx, rules); err != nil {
		return 2, err
	}
	return report(ctx, rules, jobs)
}

// report runs the tests without each rule, prints the outcome, and returns the exit status.
func report(ctx context.Context, rules []rule, jobs int) (int, error) {
	results := make([]chan result, len(rules))
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, max(1, jobs))
	for i, r := range rules {
		results[i] = make(chan result, 1)
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] <- r.runWithout(ctx)
		})
	}
	loose, broken := 0, 0
	for i, r := range rules {
		res := <-results[i]
		switch {
		case ctx.Err() != nil:
			return 2, ctx.Err()
		case res.err != nil:
			broken++
			fmt.Printf("ERROR     %v\n          %v\n", r, res.err)
		case len(res.passed) > 0:
			loose++
			for _, t := range res.passed {
				fmt.Printf("NOT HELD  %v\n          %v passes without it\n", r, t)
			}
		case res.hung:
			fmt.Printf("held      %v\n          by a test that did not end within %v\n", r, testTimeout)
		default:
			fmt.Printf("held      %v\n", r)
		}
	}
	fmt.Printf("%d rules: %d held, %d not, %d could not be tried\n", len(rules), len(rules)-loose-broken, loose, broken)
	switch {
	case broken > 0:
		return 2, nil
	case loose > 0:
		return 1, nil
	}
	return 0, nil
}
