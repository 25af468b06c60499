package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// suiteTimeout bounds one run of one package's tests, as go test -timeout.
const suiteTimeout = "4m"

// retries is how often a test that failed over SMC-D only is run again by itself. A test that passes then
// depends on time or on luck, as several of these do on a busy machine, over TCP too.
const retries = 3

// afterTests stands for a process that fails although its tests have passed.
const afterTests = "(after the tests)"

// A runner runs suites in a copy of GOROOT.
type runner struct {
	opt          options
	goroot, work string
}

// An outcome is what one run of a package's tests gave.
type outcome struct {
	passed, failed, skipped map[string]bool
	output                  map[string]string // of each test
	smcd                    int               // connections that moved to shared memory
}

// suite runs a package's tests both ways and prints what differs. It reports whether that was expected.
func (r *runner) suite(ctx context.Context, s suite) (good bool, err error) {
	began := time.Now()
	dir, err := r.prepare(ctx, s)
	if err != nil {
		return false, err
	}
	plain, err := r.run(ctx, dir, s, true, r.opt.run)
	if err != nil {
		return false, fmt.Errorf("over TCP: %w", err)
	}
	over, err := r.run(ctx, dir, s, false, r.opt.run)
	if err != nil {
		return false, fmt.Errorf("over SMC-D: %w", err)
	}
	var lucky []string
	differs := make(map[string]bool)
	for name := range over.failed {
		if plain.failed[name] {
			continue
		}
		if hasFailingChild(name, over.failed) { // which says what is wrong
			continue
		}
		if _, listed := expected[s.pkg][name]; !listed {
			ok, err := r.again(ctx, dir, s, name)
			if err != nil {
				return false, err
			}
			if ok {
				lucky = append(lucky, name)
				continue
			}
		}
		differs[name] = true
	}
	good = true
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(differs)) {
		if why, ok := expected[s.pkg][name]; ok {
			notes = append(notes, fmt.Sprintf("expected   %s: %s", name, why))
			continue
		}
		good = false
		notes = append(notes, "DIFFERENT  "+name)
		if r.opt.verbose {
			notes = append(notes, indent(over.output[name]))
		}
	}
	for name, why := range expected[s.pkg] {
		if r.opt.run == "" && !differs[name] && over.passed[name] && !strings.HasPrefix(why, sometimes) {
			good = false
			notes = append(notes, "NO MORE    "+name+" passes: take it from the list")
		}
	}
	for _, name := range lucky {
		notes = append(notes, "once       "+name+" failed, and passed when run again")
	}
	if over.smcd == 0 && !noConnections[s.pkg] && r.opt.run == "" {
		good = false
		notes = append(notes, "NO SMC-D   not one connection moved to shared memory")
	}
	verdict := "ok  "
	if !good {
		verdict = "FAIL"
	}
	fmt.Printf("%s  %-32s %4d passed, %d failed over both, %d skipped, %d connections SMC-D, %.0f s\n",
		verdict, s.pkg, len(over.passed), countBoth(plain.failed, over.failed), len(over.skipped), over.smcd, time.Since(began).Seconds())
	for _, n := range notes {
		fmt.Println("      " + n)
	}
	return good, nil
}

func hasFailingChild(name string, failed map[string]bool) bool {
	for other := range failed {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}

func countBoth(a, b map[string]bool) (n int) {
	for name := range a {
		if b[name] {
			n++
		}
	}
	return n
}

// prepare returns the directory from which the tests of a suite can be run.
func (r *runner) prepare(ctx context.Context, s suite) (string, error) {
	if s.version == "" {
		return filepath.Join(r.goroot, "src"), nil
	}
	module := s.module
	if module == "" {
		module = s.pkg
	}
	dir, err := os.MkdirTemp(r.work, "module-")
	if err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"mod", "init", "example.com/std"},
		{"get", "-t", s.pkg + "@" + s.version},
	} {
		if _, err := r.goCommand(ctx, dir, nil, args...); err != nil {
			return "", err
		}
	}
	// The tests run in a copy of the module, where go.mod is their own.
	from, err := r.goCommand(ctx, dir, nil, "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", err
	}
	copied := filepath.Join(dir, "copy")
	if _, err := run(ctx, "", "cp", "-r", firstLine(from), copied); err != nil {
		return "", err
	}
	if _, err := run(ctx, "", "chmod", "-R", "u+w", copied); err != nil {
		return "", err
	}
	_, err = r.goCommand(ctx, copied, nil, "mod", "download")
	return copied, err
}

// goCommand runs the go command of the copy.
func (r *runner) goCommand(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := r.command(ctx, dir, env, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func (r *runner) command(ctx context.Context, dir string, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(r.goroot, "bin", "go"), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOROOT="+r.goroot, "GOFLAGS=-mod=mod", "GOTOOLCHAIN=local", "GOWORK=off",
		"PATH="+filepath.Join(r.goroot, "bin")+":"+os.Getenv("PATH"))
	if strings.HasPrefix(dir, r.goroot) {
		cmd.Env = append(cmd.Env, "GOFLAGS=")
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run runs a package's tests once, those that match pattern.
func (r *runner) run(ctx context.Context, dir string, s suite, plain bool, pattern string) (outcome, error) {
	o := outcome{passed: map[string]bool{}, failed: map[string]bool{}, skipped: map[string]bool{}, output: map[string]string{}}
	rundir, err := os.MkdirTemp("", "gosmc-") // short: it holds Unix sockets
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(rundir)
	count := filepath.Join(rundir, "count")
	env := []string{"GOSMC_DIR=" + filepath.Join(rundir, "run"), "GOSMC_STD_COUNT=" + count}
	if plain {
		env = append(env, "GOSMC_STD_PLAIN=1")
	}
	args := append([]string{"test", "-json", "-count=1", "-vet=off", "-timeout", suiteTimeout}, s.args...)
	if pattern != "" {
		args = append(args, "-run", pattern)
	}
	cmd := r.command(ctx, dir, env, append(args, s.pkg)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, runErr := cmd.Output()
	var rest strings.Builder // what belongs to no test
	running := make(map[string]bool)
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			rest.Write(lines.Bytes())
			continue
		}
		switch e.Action {
		case "run":
			running[e.Test] = true
		case "output":
			o.output[e.Test] += e.Output
		case "pass":
			o.passed[e.Test] = true
			delete(running, e.Test)
		case "fail":
			o.failed[e.Test] = true
			delete(running, e.Test)
		case "skip":
			o.skipped[e.Test] = true
			delete(running, e.Test)
		}
	}
	for name := range running { // when the process ended
		o.failed[name] = true
	}
	for _, m := range []map[string]bool{o.passed, o.failed, o.skipped} {
		delete(m, "") // the package
	}
	if marks, err := os.ReadFile(count); err == nil {
		o.smcd = len(marks)
	}
	var exit *exec.ExitError
	if runErr != nil && !errors.As(runErr, &exit) {
		return o, runErr
	}
	if runErr != nil && len(o.failed) == 0 {
		if len(o.passed) == 0 && len(o.skipped) == 0 {
			return o, fmt.Errorf("%w\n%s%s%s", runErr, o.output[""], rest.String(), stderr.String())
		}
		// The process failed after its tests: a check for leaks, most likely.
		o.failed[afterTests] = true
		o.output[afterTests] = o.output[""]
	}
	return o, nil
}

// again runs one test that failed over SMC-D, by itself, and reports whether it passes.
func (r *runner) again(ctx context.Context, dir string, s suite, name string) (bool, error) {
	if strings.HasPrefix(name, "(") {
		return false, nil
	}
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + quote(p) + "$"
	}
	for range retries {
		o, err := r.run(ctx, dir, s, false, strings.Join(parts, "/"))
		if err != nil {
			return false, err
		}
		if len(o.failed) == 0 {
			return true, nil
		}
	}
	return false, nil
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

// run runs a program of this machine and returns what it printed on standard output.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return string(out), nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSpace(line)
}

func indent(s string) string {
	return "  | " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n        | ")
}
