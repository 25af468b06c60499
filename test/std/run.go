package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/overlay"
)

// retries is how often a test that failed over SMC-D only is run again by itself. A test that passes then
// depends on time or on luck, as several of these do on a busy machine, over TCP too.
const retries = 3

// overSMCD is the hook's text for a connection that moved to shared memory.
const overSMCD = "SMC-D "

// A runner runs suites with an overlay.
type runner struct {
	opt       options
	goroot    string
	overlay   string // its file
	work      string
	converter string // makes events of the output of tests
}

//go:embed overlay/count.go.txt
var countSource string

//go:embed overlay/hooks.go.txt
var hooksSource string

// newRunner makes the overlay of 'gosmc go', with files that count connections.
func newRunner(ctx context.Context, opt options, work string) (*runner, error) {
	out, err := run(ctx, "", "go", "env", "GOROOT", "GOVERSION")
	if err != nil {
		return nil, err
	}
	var t overlay.Toolchain
	if _, err := fmt.Sscanf(out, "%s\n%s\n", &t.GOROOT, &t.Version); err != nil {
		return nil, fmt.Errorf("go env: %q: %w", out, err)
	}
	const condition = "//go:build linux && (amd64 || arm64)\n\n"
	file, err := overlay.Make(overlay.Options{Toolchain: t, Version: "std-test", Cache: filepath.Join(work, "overlay"), Extra: map[string]string{
		"net/smc_count.go":   condition + countSource,
		"gosmc/net/hooks.go": condition + hooksSource,
	}})
	if err != nil {
		return nil, err
	}
	return &runner{opt: opt, goroot: t.GOROOT, overlay: file, work: work}, nil
}

// A report is the verdict on a package's tests, and the notes to print.
type report struct {
	good  bool
	notes []string
}

func (r *report) note(what, format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf("%-10s ", what)+fmt.Sprintf(format, args...))
}

func (r *report) bad(what, format string, args ...any) {
	r.good = false
	r.note(what, format, args...)
}

// suite runs a package's tests both ways and prints the differences. It reports whether they were
// expected.
func (r *runner) suite(ctx context.Context, s suite) (good bool, err error) {
	began := time.Now()
	p, err := r.compile(ctx, s)
	if err != nil {
		return false, err
	}
	plain, err := r.runAll(ctx, p, s, true)
	if err != nil {
		return false, fmt.Errorf("over TCP: %w", err)
	}
	over, err := r.runAll(ctx, p, s, false)
	if err != nil {
		return false, fmt.Errorf("over SMC-D: %w", err)
	}
	rep := &report{good: true}
	differs, err := r.differences(ctx, p, s, plain, over, rep)
	if err != nil {
		return false, err
	}
	listed := make(map[string]bool) // entries of the list that were seen
	for _, name := range differs {
		if entry := expectedAs(s.pkg, name, over.output[name]); entry != "" {
			if !listed[entry] { // once, for all of its subtests
				rep.note("expected", "%s: %s", entry, expected[s.pkg][entry].why)
			}
			listed[entry] = true
			continue
		}
		what := "DIFFERENT"
		if over.hung[name] {
			what = "HANGS"
		}
		rep.bad(what, "%s", name)
		if r.opt.verbose {
			rep.notes = append(rep.notes, indent(over.output[name]))
		}
	}
	r.wholeness(s, plain, over, listed, rep)
	smcd, dialled := 0, 0
	for _, what := range slices.Sorted(maps.Keys(over.dialled)) {
		dialled += over.dialled[what]
		if what == overSMCD {
			smcd = over.dialled[what]
			continue
		}
		rep.note("stayed", "%d connections stayed %s", over.dialled[what], what)
	}
	verdict := "ok  "
	if !rep.good {
		verdict = "FAIL"
	}
	fmt.Printf("%s  %-32s %4d passed, %d failed over both, %d skipped, %d of %d connections SMC-D, %.0f s\n",
		verdict, s.pkg, len(over.passed), countBoth(plain.failed, over.failed), len(over.skipped), smcd, dialled, time.Since(began).Seconds())
	for _, n := range rep.notes {
		fmt.Println("      " + n)
	}
	return rep.good, nil
}

// differences returns the tests that fail over SMC-D and not over TCP, sorted.
func (r *runner) differences(ctx context.Context, p program, s suite, plain, over outcome, rep *report) (names []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(over.failed)) {
		if hasChild(name, over.failed) { // the child reports the error
			continue
		}
		if plain.failed[name] {
			lucky, err := r.again(ctx, p, s, name, true, 1)
			if err != nil {
				return nil, err
			}
			if !lucky {
				rep.note("both", "%s fails over TCP, too", name)
				continue
			}
		}
		if !over.hung[name] && expectedAs(s.pkg, name, over.output[name]) == "" {
			lucky, err := r.again(ctx, p, s, name, false, retries)
			if err != nil {
				return nil, err
			}
			if lucky {
				rep.note("once", "%s failed, and passed when run again", name)
				continue
			}
		}
		names = append(names, name)
	}
	return names, nil
}

// wholeness finds the reasons that make a result worth nothing: tests that did not run, connections
// that stayed TCP, a list that is not true any more.
func (r *runner) wholeness(s suite, plain, over outcome, listed map[string]bool, rep *report) {
	if !over.over {
		rep.bad("UNFINISHED", "the tests end early again and again")
	}
	for _, name := range slices.Sorted(maps.Keys(plain.passed)) {
		if !strings.Contains(name, "/") && !over.passed[name] && !over.failed[name] && !hasChild(name, over.failed) {
			rep.bad("NOT RUN", "%s passes over TCP and is left out over SMC-D", name)
		}
	}
	if r.opt.run != "" {
		return
	}
	if n := over.dialled[overSMCD]; n < s.least {
		rep.bad("NO SMC-D", "only %d connections moved to shared memory, want %d", n, s.least)
	}
	for _, name := range slices.Sorted(maps.Keys(expected[s.pkg])) {
		if !listed[name] && !over.failed[name] && !expected[s.pkg][name].sometimes {
			rep.bad("NO MORE", "%s passes: take it from the list", name)
		}
	}
}

// again runs one test up to times times by itself, until it passes, and reports whether it did. An
// error after the tests is not the test's: coder/websocket's TestMain finds goroutines that others
// would have awaited.
func (r *runner) again(ctx context.Context, p program, s suite, name string, plain bool, times int) (bool, error) {
	if strings.HasPrefix(name, "(") {
		return false, nil
	}
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + quote(p) + "$"
	}
	for range times {
		o, err := r.process(ctx, p, s, choice{plain: plain, pattern: strings.Join(parts, "/"), timeout: againTimeout})
		if err != nil {
			return false, err
		}
		if o.passed[name] && !o.failed[name] {
			return true, nil
		}
		if len(o.hung) != 0 {
			break
		}
	}
	return false, nil
}

func countBoth(a, b map[string]bool) (n int) {
	for name := range a {
		if b[name] {
			n++
		}
	}
	return n
}

// compile compiles a package's tests.
func (r *runner) compile(ctx context.Context, s suite) (program, error) {
	dir, err := r.prepare(ctx, s)
	if err != nil {
		return program{}, err
	}
	if r.converter == "" {
		r.converter = filepath.Join(r.work, "test2json")
		if _, err := r.goCommand(ctx, filepath.Join(r.goroot, "src"), "build", "-o", r.converter, "cmd/test2json"); err != nil {
			return program{}, err
		}
	}
	file := filepath.Join(r.work, strings.ReplaceAll(s.pkg, "/", "_")+".test")
	if _, err := r.goCommand(ctx, dir, "test", "-vet=off", "-c", "-o", file, s.pkg); err != nil {
		return program{}, err
	}
	in, err := r.goCommand(ctx, dir, "list", "-f", "{{.Dir}}", s.pkg)
	if err != nil {
		return program{}, err
	}
	return program{file: file, dir: firstLine(in), env: r.environment(dir)}, nil
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
		if _, err := r.goCommand(ctx, dir, args...); err != nil {
			return "", err
		}
	}
	// The tests run in a copy of the module, where go.mod is their own.
	from, err := r.goCommand(ctx, dir, "list", "-m", "-f", "{{.Dir}}", module)
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
	_, err = r.goCommand(ctx, copied, "mod", "download")
	return copied, err
}

// goCommand runs the go command and returns its standard output.
func (r *runner) goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = r.environment(dir)
	cmd.WaitDelay = 10 * time.Second
	return output(cmd)
}

// environment is the environment of commands and tests in a directory.
func (r *runner) environment(dir string) []string {
	flags := "-overlay=" + r.overlay
	if !strings.HasPrefix(dir, r.goroot) {
		flags += " -mod=mod"
	}
	return append(os.Environ(), "GOFLAGS="+flags, "GOTOOLCHAIN=local", "GOWORK=off")
}

// run runs a program of this machine and returns its standard output.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	return output(cmd)
}

func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.String())
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
