// Command std runs the tests of package net, of the packages of the standard library above it, and
// of some well-known ones beyond, over SMC-D: with the overlay of 'gosmc go', in which package net
// makes its TCP connections with package smc. A test that fails finds a difference between the two
// that a program would find.
//
// Each package's tests run twice, over plain TCP and over SMC-D. It exits with 0 if the tests that
// fail over SMC-D, and not over TCP, are exactly the ones that expect.go lists with reasons, with 1
// if not, and with 2 if the tests could not be run.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

// totalTimeout is for everything; it is several times the time seen on two cores.
const totalTimeout = 30 * time.Minute

type options struct {
	pkg     *regexp.Regexp
	run     string
	verbose bool
}

func main() {
	var opt options
	pkg := flag.String("pkg", "", "run only the packages whose import paths match the regular expression")
	flag.StringVar(&opt.run, "run", "", "run only the tests that match, as go test -run; the lists of expected differences are not checked")
	flag.BoolVar(&opt.verbose, "v", false, "print the output of tests that fail over SMC-D only")
	flag.Parse()
	var err error
	if opt.pkg, err = regexp.Compile(*pkg); err != nil || flag.NArg() != 0 {
		fmt.Fprintln(os.Stderr, "std: wrong arguments; see -help")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), totalTimeout)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	good, err := runAll(ctx, opt)
	stop()
	cancel()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "std:", err)
		os.Exit(2)
	case !good:
		os.Exit(1)
	}
}

// runAll makes the overlay and runs the suites.
func runAll(ctx context.Context, opt options) (good bool, err error) {
	work, err := os.MkdirTemp("", "gosmc-std-")
	if err != nil {
		return false, err
	}
	defer func() {
		os.Chmod(work, 0o700)
		os.RemoveAll(work)
	}()
	r, err := newRunner(ctx, opt, work)
	if err != nil {
		return false, err
	}
	good = true
	ran := 0
	for _, s := range suites {
		if !opt.pkg.MatchString(s.pkg) {
			continue
		}
		ran++
		ok, err := r.suite(ctx, s)
		if err != nil {
			return false, fmt.Errorf("%s: %w", s.pkg, err)
		}
		good = good && ok
	}
	if ran == 0 {
		return false, fmt.Errorf("no package matches %q", opt.pkg)
	}
	return good, nil
}
