package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// testTimeout bounds each run of a test. Without its rule a test may wait for an event that never
// comes, and has then failed.
const testTimeout = 90 * time.Second

// A result tells the outcome of the tests of a rule without it.
type result struct {
	passed []test
	hung   bool  // one of them did not end in time, which counts as failed
	err    error // the reason why they were not run
}

// runWithout runs the tests of r with r taken out.
func (r rule) runWithout(ctx context.Context) result {
	dir, err := os.MkdirTemp("", "gosmc-rules")
	if err != nil {
		return result{err: err}
	}
	defer os.RemoveAll(dir)
	overlay, err := r.writeOverlay(dir)
	if err != nil {
		return result{err: err}
	}
	var res result
	for _, t := range r.tests {
		failed, output, err := runTests(ctx, t.dir, []string{t.name}, "-overlay", overlay)
		switch {
		case err != nil:
			return result{err: fmt.Errorf("%v: %w\n%s", t, err, output)}
		case !failed:
			res.passed = append(res.passed, t)
		case bytes.Contains(output, []byte("panic: test timed out")):
			res.hung = true
		}
	}
	return res
}

// writeOverlay writes the file without the rule, and the list of files that the go command is to
// read in place of others, whose name it returns.
func (r rule) writeOverlay(dir string) (string, error) {
	original, err := filepath.Abs(filepath.FromSlash(r.file))
	if err != nil {
		return "", err
	}
	src, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	src, err = r.without(src)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(r.file))
	if err := os.WriteFile(changed, src, 0o644); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, list, 0o644)
}

// checkWhole runs all the tests with nothing taken out: one that fails anyway says nothing.
func checkWhole(ctx context.Context, rules []rule) error {
	tests := make(map[string][]string) // by directory
	var dirs []string
	for _, r := range rules {
		for _, t := range r.tests {
			if tests[t.dir] == nil {
				dirs = append(dirs, t.dir)
			}
			if !slices.Contains(tests[t.dir], t.name) {
				tests[t.dir] = append(tests[t.dir], t.name)
			}
		}
	}
	for _, dir := range dirs {
		failed, output, err := runTests(ctx, dir, tests[dir], "-v")
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w\n%s", dir, err, output)
		case failed:
			return fmt.Errorf("the tests in %s fail with all rules in place:\n%s", dir, complaints(output))
		}
		for _, name := range tests[dir] {
			if !bytes.Contains(output, []byte("--- PASS: "+name+" ")) {
				return fmt.Errorf("%s has no %s, or it was skipped", dir, name)
			}
		}
	}
	return nil
}

// complaints returns the output of "go test -v" without the lines that say that a test runs, or passed.
func complaints(output []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(output) {
		if text := bytes.TrimSpace(line); !bytes.HasPrefix(text, []byte("=== ")) && !bytes.HasPrefix(text, []byte("--- PASS")) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// runTests runs tests of one package, and returns whether one failed. An error means that they
// could not be run.
func runTests(ctx context.Context, dir string, names []string, flags ...string) (failed bool, output []byte, err error) {
	args := append([]string{"test", "-count=1", "-vet=off", "-timeout", testTimeout.String(),
		"-run", "^(" + strings.Join(names, "|") + ")$"}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+dir)...)
	output, err = cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false, output, nil
	case ctx.Err() != nil:
		return false, nil, ctx.Err()
	case !errors.As(err, &exit):
		return false, output, err
	case bytes.Contains(output, []byte("[build failed]")) || bytes.Contains(output, []byte("[setup failed]")):
		return false, output, errors.New("it does not build")
	}
	return true, output, nil
}
