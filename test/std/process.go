package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Bounds. The values seen are a fraction of each.
const (
	// suiteTimeout is for one process that runs a package's tests, as go test -timeout.
	suiteTimeout = 4 * time.Minute

	// quietTimeout is how long a process may go without a test that begins, ends or prints: then
	// those that are running hang.
	quietTimeout = 60 * time.Second

	// againTimeout is for a test that is run again by itself.
	againTimeout = 60 * time.Second

	// drainTime is for the output that a process has printed when it ended.
	drainTime = 5 * time.Second

	// maxProcesses is how many processes are tried for the tests of one package: each may end in
	// the middle, of a panic, and the next one runs the remaining tests.
	maxProcesses = 6
)

// afterTests stands for a process that fails although its tests have passed.
const afterTests = "(after the tests)"

// A program is the compiled tests of one package.
type program struct {
	file string
	dir  string // in which they run
	env  []string
}

// An outcome is the result of running a package's tests. Names are as go test prints them, of
// subtests with a slash.
type outcome struct {
	passed, failed, skipped map[string]bool
	hung                    map[string]bool   // the failed ones that did not end
	output                  map[string]string // of each test
	dialled                 map[string]int    // connections, by mode and reason, as "SMC-D " or "TCP NO_LISTENER"
	over                    bool              // every test had its turn
}

func newOutcome() outcome {
	return outcome{passed: map[string]bool{}, failed: map[string]bool{}, skipped: map[string]bool{}, hung: map[string]bool{},
		output: map[string]string{}, dialled: map[string]int{}}
}

// finished returns the tests that have a result, without subtests.
func (o *outcome) finished() map[string]bool {
	names := make(map[string]bool)
	for _, m := range []map[string]bool{o.passed, o.failed, o.skipped} {
		for name := range m {
			if top, _, sub := strings.Cut(name, "/"); !sub || o.failed[name] {
				names[top] = true
			}
		}
	}
	return names
}

// add adds the outcome of another process.
func (o *outcome) add(p outcome) {
	maps.Copy(o.passed, p.passed)
	maps.Copy(o.failed, p.failed)
	maps.Copy(o.skipped, p.skipped)
	maps.Copy(o.hung, p.hung)
	maps.Copy(o.output, p.output)
	for what, n := range p.dialled {
		o.dialled[what] += n
	}
	o.over = p.over
}

// A choice says which tests to run, and how.
type choice struct {
	plain   bool   // over TCP
	pattern string // as go test -run
	skip    string // as go test -skip
	timeout time.Duration
}

// runAll runs the tests of a program, in as many processes as it takes.
func (r *runner) runAll(ctx context.Context, p program, s suite, plain bool) (outcome, error) {
	all := newOutcome()
	for range maxProcesses {
		skip := slices.Clone(s.skip)
		for _, name := range slices.Sorted(maps.Keys(all.finished())) {
			skip = append(skip, "^"+quote(name)+"$")
		}
		before := len(skip)
		o, err := r.process(ctx, p, s, choice{plain: plain, pattern: r.opt.run, skip: strings.Join(skip, "|"), timeout: suiteTimeout})
		if err != nil {
			return all, err
		}
		all.add(o)
		if all.over || len(s.skip)+len(all.finished()) == before { // not a step further
			break
		}
	}
	return all, nil
}

// process runs tests of a program in one process.
func (r *runner) process(ctx context.Context, p program, s suite, ch choice) (outcome, error) {
	o := newOutcome()
	rundir, err := os.MkdirTemp("", "gosmc-") // short: it holds Unix sockets
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(rundir)
	count := filepath.Join(rundir, "count")
	args := append([]string{"-test.v=test2json", "-test.paniconexit0", "-test.timeout", ch.timeout.String()}, s.args...)
	if ch.pattern != "" {
		args = append(args, "-test.run", ch.pattern)
	}
	if ch.skip != "" {
		args = append(args, "-test.skip", ch.skip)
	}
	cmd := exec.Command(p.file, args...)
	cmd.Dir = p.dir
	cmd.Env = append(slices.Clip(p.env), "PWD="+p.dir, "GOSMC_DIR="+filepath.Join(rundir, "run"), "GOSMC_STD_COUNT="+count, "GOSMC_SHORT_AFTER=off")
	if ch.plain {
		cmd.Env = append(cmd.Env, "GOSMC_DISABLED=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // tests start processes, some of which outlive them
	t := newTally(&o)
	exit, err := r.follow(ctx, cmd, t)
	if err != nil {
		return o, err
	}
	if text, err := os.ReadFile(count); err == nil {
		for line := range strings.Lines(string(text)) {
			o.dialled[strings.TrimSuffix(line, "\n")]++
		}
	}
	t.end(exit)
	if exit != 0 && ch.skip == "" && o.failed[afterTests] && len(o.failed)+len(o.passed)+len(o.skipped) == 1 {
		return o, fmt.Errorf("exit status %d without a test\n%s", exit, o.output[""])
	}
	return o, nil
}

// follow starts a test process and passes its output to t, until it ends or is ended. It returns
// its exit status.
func (r *runner) follow(ctx context.Context, cmd *exec.Cmd, t *tally) (exit int, err error) {
	out, in, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr = in, in
	convert := exec.Command(r.converter)
	convert.Stdin = out
	events, err := convert.StdoutPipe()
	if err == nil {
		err = convert.Start()
	}
	out.Close()
	if err != nil {
		in.Close()
		return 0, err
	}
	err = cmd.Start()
	in.Close()
	if err != nil {
		convert.Process.Kill()
		convert.Wait()
		return 0, err
	}
	lines := make(chan []byte)
	go read(events, lines)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	quiet := time.NewTimer(quietTimeout)
	defer quiet.Stop()
	group := func(s syscall.Signal) { syscall.Kill(-cmd.Process.Pid, s) }
	var wait error
	for lines != nil || ended != nil {
		select {
		case line, ok := <-lines:
			if !ok {
				lines = nil
				continue
			}
			t.line(line)
			quiet.Reset(quietTimeout)
		case wait = <-ended:
			ended = nil
			time.AfterFunc(drainTime, func() { group(syscall.SIGKILL) }) // heirs of the pipe
		case <-quiet.C:
			t.hang()
			if syscall.Kill(cmd.Process.Pid, syscall.SIGQUIT) != nil { // which prints where everybody is
				group(syscall.SIGKILL)
			}
			quiet.Reset(drainTime)
		case <-ctx.Done():
			group(syscall.SIGKILL)
			convert.Process.Kill()
			convert.Wait()
			return 0, ctx.Err()
		}
	}
	group(syscall.SIGKILL)
	convert.Wait()
	var status *exec.ExitError
	if wait != nil && !errors.As(wait, &status) {
		return 0, wait
	}
	return cmd.ProcessState.ExitCode(), nil
}

// read passes lines on.
func read(from io.Reader, lines chan<- []byte) {
	defer close(lines)
	for b := bufio.NewReader(from); ; {
		line, err := b.ReadBytes('\n')
		if err != nil {
			return
		}
		lines <- line
	}
}

// A tally makes an outcome of the events of one process.
type tally struct {
	o       *outcome
	running map[string]bool // true while it is paused
}

func newTally(o *outcome) *tally { return &tally{o: o, running: make(map[string]bool)} }

// line takes an event as go tool test2json prints it.
func (t *tally) line(b []byte) {
	var e struct{ Action, Test, Output string }
	if json.Unmarshal(b, &e) != nil {
		return
	}
	if e.Action == "output" {
		t.o.output[e.Test] += e.Output
		return
	}
	if e.Test == "" { // the package
		return
	}
	switch e.Action {
	case "run", "cont":
		t.running[e.Test] = false
	case "pause":
		t.running[e.Test] = true
	case "pass":
		t.o.passed[e.Test] = true
		delete(t.running, e.Test)
	case "fail":
		t.o.failed[e.Test] = true
		delete(t.running, e.Test)
	case "skip":
		t.o.skipped[e.Test] = true
		delete(t.running, e.Test)
	}
}

// hang says that the running tests will not end.
func (t *tally) hang() {
	for _, name := range t.suspects() {
		t.o.hung[name] = true
	}
}

// suspects returns the tests that are running now, and have no subtest that is.
func (t *tally) suspects() (names []string) {
	for name, paused := range t.running {
		if !paused && !hasChild(name, t.running) {
			names = append(names, name)
		}
	}
	return names
}

// end says that the process has ended, with an exit status.
func (t *tally) end(exit int) {
	o := t.o
	for _, name := range t.suspects() { // one of which has ended it
		o.failed[name] = true
	}
	switch {
	case exit == 0 || exit == 1 && len(t.running) == 0:
		o.over = true
		if exit != 0 && len(o.failed) == 0 { // a check for leaks, most likely
			o.failed[afterTests] = true
			o.output[afterTests] = o.output[""]
		}
	case len(t.running) == 0: // something panicked between two tests, or after them
		o.failed[afterTests] = true
		o.output[afterTests] = o.output[""]
	}
}

// hasChild reports whether a test has a subtest in a set.
func hasChild[V any](name string, set map[string]V) bool {
	for other := range set {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}

// quote makes a pattern of a test's name as go test prints it.
func quote(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune(`\.+*?()|[]{}^$`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
