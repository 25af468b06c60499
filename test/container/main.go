// Command container starts real containers with Debian's runc, and has the programs in them talk: bare, under 'gosmc
// run', and with package smc. Each container has network, PID, mount, IPC and user namespaces of its own, users of its
// own, a read-only root that this command builds, the capabilities and the seccomp profile of podman, and
// no_new_privs. A bridge joins them. Its router translates a service address and published ports to the servers, and
// hides the clients behind its own address. Nothing of the agent is mounted.
//
// The output has to equal that of the bare programs. The counters of gosmc have to show that each connection left
// TCP, and the kernel's, how many there were. README.md has the list.
//
// It needs root and Linux 6.16, and installs missing packages. It exits with 0 if all is so, with 1 if not, and with 2 if it
// could not run. Whatever it makes has a name of its own, and is taken away in the end, also when it is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Bounds. The times seen on two busy cores are a fraction of each.
const (
	totalTimeout   = 3 * time.Hour    // a million connections take the most of it
	installTimeout = 8 * time.Minute  // packages come over a network
	patience       = 60 * time.Second // for one program
	longPatience   = 10 * time.Minute // for one that does many things
	pollTime       = 10 * time.Millisecond
)

// Exit statuses.
const (
	exitBad    = 1 // something is not as it should be
	exitUnable = 2 // the test could not run
)

// errUnable is wrapped by errors that say that the test could not run.
var errUnable = errors.New("cannot run")

// A trial is one part of the test.
type trial struct {
	name  string
	about string // what is tried
	small bool   // it is part of -small
	run   func(*lab) error
}

var trials = []trial{
	{"library", "package smc at both ends: a static program in an empty root, with both seccomp profiles, and without capabilities", true, (*lab).library},
	{"ipv6", "package smc, nginx with curl, and both mixed, by IPv6", false, (*lab).ipv6},
	{"crun", "the same as library and nginx in containers of crun", false, (*lab).withCrun},
	{"many", "10,000 connections of package smc through the service address", false, (*lab).many},
	{"redis", "redis and its clients; package smc at one end, at both", true, (*lab).redis},
	{"nginx", "nginx with curl and busybox; package smc at one end, at both", true, (*lab).nginx},
	{"postgres", "postgres with psql and pgbench", false, (*lab).postgres},
	{"haproxy", "haproxy between curl and nginx, three containers", false, (*lab).haproxy},
	{"socat", "socat sends and receives files, with half of a connection closed", false, (*lab).socat},
	{"nettest", "the tests of connections of golang.org/x/net, with the other end in another container", false, (*lab).nettest},
	{"range", "a million connections over 50 ports, of clients that die at every point; -small: 3,000", false, (*lab).ranged},
	{"agent", "the agent is killed during transfers, and comes back", true, (*lab).agentKilled},
	{"killed", "a container is killed during transfers", true, (*lab).containerKilled},
	{"noticed", "how long the death of a container takes to be noticed, and that no accepted byte is lost", false, (*lab).noticed},
	{"removed", "a network namespace is removed during transfers", false, (*lab).networkRemoved},
	{"forger", "an attacker replays and invents tokens, with raw sockets in a private network", false, (*lab).forger},
	{"impostor", "an attacker takes the names of an agent that was killed", false, (*lab).impostor},
	{"proofs", "an attacker passes foreign, listening, closed and self-connected sockets to the agent", false, (*lab).proofs},
	{"filler", "an attacker fills every table", false, (*lab).filler},
	{"liar", "an attacker is introduced, and does not keep to the protocol with its peers", false, (*lab).liar},
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == keeperArg {
		keep(os.Args[2])
		return
	}
	only := flag.String("only", "", "try only these parts: names, separated by commas")
	list := flag.Bool("list", false, "list the parts and end")
	small := flag.Bool("small", false, "leave out the parts that take long")
	all := flag.Bool("all", false, "go on after a part that fails")
	verbose := flag.Bool("v", false, "print what servers print")
	flag.Parse()
	if *list {
		for _, t := range trials {
			fmt.Printf("%-10s %s\n", t.name, t.about)
		}
		return
	}
	names := regexp.MustCompile(`[ ,]+`).Split(strings.Trim(*only, " ,"), -1)
	chosen := slices.DeleteFunc(slices.Clone(trials), func(t trial) bool {
		if *only != "" {
			return !slices.Contains(names, t.name)
		}
		return *small && !t.small
	})
	if flag.NArg() != 0 || len(chosen) == 0 {
		fmt.Fprintln(os.Stderr, "container-test: no such part; -list has the names")
		os.Exit(exitUnable)
	}
	ctx, cancel := context.WithTimeout(context.Background(), totalTimeout)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	err := runAll(ctx, chosen, &lab{ctx: ctx, verbose: *verbose, small: *small, all: *all, runtime: runc})
	stop()
	cancel()
	switch {
	case errors.Is(err, errUnable):
		fmt.Fprintln(os.Stderr, "container-test:", err)
		os.Exit(exitUnable)
	case err != nil:
		fmt.Fprintln(os.Stderr, "container-test:", err)
		os.Exit(exitBad)
	}
	fmt.Println("ok")
}

// runAll runs the chosen parts one after another, up to the first that fails, or all of them.
func runAll(ctx context.Context, chosen []trial, l *lab) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: needs root", errUnable)
	}
	if err := l.install(); err != nil {
		return fmt.Errorf("%w: %w", errUnable, err)
	}
	defer func() { err = errors.Join(err, l.clean()) }()
	for _, step := range []func() error{l.make, l.build, l.roots, l.network, l.startAgent} {
		if err := step(); err != nil {
			return fmt.Errorf("%w: %w", errUnable, err)
		}
	}
	var failed error
	for _, t := range chosen {
		start := time.Now()
		fmt.Printf("%s: %s\n", t.name, t.about)
		err := t.run(l)
		l.stopAll()
		if err == nil {
			err = l.agentWell()
		}
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", t.name, err)
			if !l.all || ctx.Err() != nil {
				return errors.Join(failed, err)
			}
			fmt.Println("  FAILED:", err)
			if failed = errors.Join(failed, err); l.agentWell() != nil {
				if err := l.startAgent(); err != nil {
					return errors.Join(failed, err)
				}
			}
			continue
		}
		fmt.Printf("  done in %.1f s\n", time.Since(start).Seconds())
	}
	return failed
}
