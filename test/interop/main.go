// Command interop proves internal/rdma against real Linux: it boots a stock Debian kernel with
// soft-RoCE (rdma_rxe) in a small virtual machine and has verbs programs there talk to queue pairs
// of ours. README.md beside this file describes the cases and how to look inside.
//
// It exits with 0 if every case passed, with 1 if one did not, and with 2 if it could not run them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Limits. Each is twice or more of the largest value seen on a machine with two busy cores and no
// KVM.
const (
	totalTimeout   = 30 * time.Minute // for everything
	prepareTimeout = 8 * time.Minute  // packages and kernel come over a network
	bootTimeout    = 2 * time.Minute
	kvmBootTimeout = 30 * time.Second // then it is tried without KVM
	shellTimeout   = time.Second      // for the guest's shell to answer, while it is tried again and again
	caseTimeout    = 10 * time.Minute
	commandTimeout = 30 * time.Second // for a command in the guest, unless a case says otherwise
	killDelay      = 5 * time.Second  // between asking and ending
)

// options are the flags of the command line.
type options struct {
	run     *regexp.Regexp
	list    bool
	verbose bool
	accel   string // of qemu
	pcap    string // file, empty for none
	guest   string // shell command, empty for none
	again   int    // how many failed cases are tried once more
	inside  string // directory of the prepared files: this process is the one in the namespace
}

// cases returns those that are to run.
func (o options) cases() (cases []testCase) {
	for _, c := range allCases() {
		if o.run.MatchString(c.name) {
			cases = append(cases, c)
		}
	}
	return cases
}

func parseFlags() (options, error) {
	var opt options
	run := flag.String("run", "", "run only the cases whose names match the regular expression")
	flag.BoolVar(&opt.list, "list", false, "list the cases and end")
	flag.BoolVar(&opt.verbose, "v", false, "print the guest's console, the output of its programs, and all counters")
	flag.StringVar(&opt.accel, "accel", "auto", "how qemu runs the guest: kvm, tcg, or auto: kvm if it works")
	flag.StringVar(&opt.pcap, "pcap", "", "write the packets of the data network to this file")
	flag.StringVar(&opt.guest, "guest", "", "run this shell command in the guest after the cases, and print its output")
	flag.IntVar(&opt.again, "again", 0, "try so many failed cases once more; none that found other bytes than were sent")
	flag.StringVar(&opt.inside, "inside", "", "for the program's own use: it is in its network namespace")
	flag.Parse()
	var err error
	if opt.run, err = regexp.Compile(*run); err != nil {
		return opt, fmt.Errorf("-run: %w", err)
	}
	if !slices.Contains([]string{"auto", "kvm", "tcg"}, opt.accel) {
		return opt, fmt.Errorf("-accel %s: want auto, kvm or tcg", opt.accel)
	}
	if flag.NArg() != 0 {
		return opt, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	return opt, nil
}

// Errors of which the reader has been told.
var (
	errCases = errors.New("not every case passed")
	errTold  = errors.New("the part in the namespace ended with an error")
)

// init keeps the main goroutine on the main thread: a child process with a parent-death signal gets
// it when the thread that started it ends, and the main thread ends last.
func init() { runtime.LockOSThread() }

func main() {
	opt, err := parseFlags()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), totalTimeout)
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		switch {
		case opt.list:
			for _, c := range allCases() {
				fmt.Printf("%-28s %s\n", c.name, c.what)
			}
		case opt.inside != "":
			err = runInside(ctx, opt)
		default:
			err = runOutside(ctx, opt)
		}
		stop()
		cancel()
	}
	switch {
	case errors.Is(err, errCases):
		os.Exit(1)
	case errors.Is(err, errTold):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "interop: %v\n", err)
		os.Exit(2)
	}
}

// runOutside prepares the files that the guest needs and starts this program again in a network
// namespace of its own. The namespace has no name: with its last process it is gone, and the
// interfaces in it.
func runOutside(ctx context.Context, opt options) error {
	if len(opt.cases()) == 0 {
		return errors.New("no case matches; -list lists them")
	}
	if runtime.GOARCH != "amd64" {
		return errors.New("the guest runs programs of this machine on an emulated amd64: this must be one")
	}
	if os.Getuid() != 0 {
		return errors.New("a network namespace with tap interfaces needs root; try: sudo env PATH=\"$PATH\" make interop")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("tap interfaces are needed: %w; try: modprobe tun", err)
	}
	dir, err := os.MkdirTemp("", "gosmc-interop-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	prepared, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	if err := prepare(prepared, dir); err != nil {
		return err
	}

	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, append(os.Args[1:], "-inside", dir)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * killDelay
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case exit.ExitCode() == 1:
			return errCases
		case exit.ExitCode() == 2:
			return errTold
		}
		return fmt.Errorf("the part in the namespace ended: %w", err)
	}
	return err
}

// runInside boots the guest and runs the cases.
func runInside(ctx context.Context, opt options) error {
	cases := opt.cases()
	if err := makeNetworks(ctx); err != nil {
		return err
	}
	vm, err := boot(ctx, opt)
	if err != nil {
		return err
	}
	defer func() { vm.close() }()

	var second []string // the cases that have passed at a second try
	failed, panics := 0, 0
	for _, c := range cases {
		began := time.Now()
		l := &lab{vm: vm, dir: opt.inside, verbose: opt.verbose}
		err := runCase(ctx, l, c)
		if err != nil && vm.panicked() && panics < maxPanics && ctx.Err() == nil {
			panics++
			fmt.Printf("      %s: once more, with another guest: %v\n%s\n", c.name, err, tail(vm.console))
			guest, bootErr := boot(ctx, opt)
			if bootErr != nil {
				return bootErr
			}
			vm = guest
			l = &lab{vm: vm, dir: opt.inside, verbose: opt.verbose, notes: []string{"the guest's kernel has panicked, once more"}, again: true}
			err = runCase(ctx, l, c)
		}
		for tries := 1; tries < maxTries; tries++ {
			why := faultOfLinux(c, err)
			if why == "" {
				break
			}
			fmt.Printf("      %s: once more: %v\n", c.name, err)
			l = &lab{vm: vm, dir: opt.inside, verbose: opt.verbose, notes: []string{why + ", once more"}}
			err = runCase(ctx, l, c)
		}
		if len(second) < opt.again && mayPassAgain(err) && !vm.ended() && ctx.Err() == nil {
			fmt.Printf("      %s: once more: %s\n", c.name, indented(err.Error()))
			second = append(second, c.name)
			l = &lab{vm: vm, dir: opt.inside, verbose: opt.verbose, notes: []string{"has failed, once more"}}
			err = runCase(ctx, l, c)
		}
		seconds := time.Since(began).Seconds()
		if err == nil {
			fmt.Printf("ok    %-28s %5.1f s  %s\n", c.name, seconds, strings.Join(l.notes, "; "))
		} else {
			failed++
			fmt.Printf("FAIL  %-28s %5.1f s  %s\n", c.name, seconds, indented(err.Error()))
			for _, x := range []struct{ what, text string }{{"before", strings.Join(l.notes, "; ")}, {"our log", l.journal.String()}} {
				if x.text != "" {
					fmt.Printf("      %s: %s\n", x.what, indented(x.text))
				}
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("ended early: %w", context.Cause(ctx))
		}
		if err != nil && vm.ended() {
			return fmt.Errorf("the guest ended; the end of its console:\n%s", tail(vm.console))
		}
	}
	if opt.guest != "" {
		output, err := vm.run(ctx, commandTimeout, opt.guest)
		if err != nil {
			output = err.Error() + "\n" // with the output
		}
		fmt.Print(output)
	}
	if opt.verbose {
		fmt.Printf("console:\n%s\n", tail(vm.console))
	}
	fmt.Printf("%d passed, %d failed\n", len(cases)-failed, failed)
	if len(second) > 0 {
		fmt.Printf("tried a second time: %s\n", strings.Join(second, ", "))
	}
	if failed != 0 {
		return errCases
	}
	return nil
}

// boot starts a guest, and says so.
func boot(ctx context.Context, opt options) (*vm, error) {
	began := time.Now()
	vm, err := bootVM(ctx, opt)
	if err == nil {
		fmt.Printf("guest: %s, %s, up in %.1f s\n", vm.kernel, vm.accel, time.Since(began).Seconds())
	}
	return vm, err
}

// maxPanics is how many guests may panic in a run, the one of the case guest/panic with them. Each
// one's case runs once more with another guest, and fails if that one panics as well. An emulated
// kernel panics without a reason of its own, some once in a thousand cases: with bits set in EFLAGS
// that no processor has, in a place where it only reads its own memory.
const maxPanics = 3

// maxTries is how often a case is tried that fails by a known fault of Linux.
const maxTries = 3

// mayPassAgain reports whether the reason for which a case has failed may be that the guest and this
// machine were slow: a wait that ended, messages in another order. Other bytes than were sent are never
// that.
func mayPassAgain(err error) bool {
	return err != nil && !otherBytes.MatchString(err.Error())
}

// otherBytes is in every error that says of data that it differs.
var otherBytes = regexp.MustCompile(`want|wrong byte|has changed|has received`)

// faultOfLinux returns by which known fault of Linux a case has failed, empty for none.
//
// Where packets are lost, rxe does a registration of memory again when it goes back to a lost
// packet, which fails and ends the link group: some 1 of 150 connections is declined, see
// docs/interop.md. A reader that closes with data unread ends its connection by an Abort; Linux's answer, which is an
// Abort, sometimes comes twice, where a write that is under way meets it. And once a program of the guest waited for
// ever, with nothing on the way.
func faultOfLinux(c testCase, err error) string {
	const declined = "CLC Decline v2 REGERR (0x09990003) os=Linux" // a finding of gosmc dump
	switch {
	case err == nil:
		return ""
	case abortedTwice.MatchString(err.Error()):
		return "Linux has aborted a connection twice"
	case c.lossy && strings.Contains(err.Error(), declined):
		return "Linux has lost a buffer with its link, and declined"
	case errors.Is(err, errGuestSleeps):
		return errGuestSleeps.Error()
	}
	return ""
}

// abortedTwice is the error of a case whose only finding is an Abort of the guest after its Abort.
var abortedTwice = regexp.MustCompile(`^gosmc dump has 1 findings:\n` + regexp.QuoteMeta(guestAddr4.String()) +
	`:\d+ CDC .* abort  ! violation: a CDC message after both sides were done \(RFC 7609 p\.129\)$`)

// cacheDir is where kernels are kept from run to run.
func cacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "gosmc"), nil
}
