package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestPatterns has each pattern do something over TCP, for a moment.
func TestPatterns(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs a C compiler")
	}
	program := filepath.Join(t.TempDir(), "patterns")
	if err := compile(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	patterns, err := list(t.Context(), program, regexp.MustCompile(""))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range patterns {
		t.Run(p.Pattern, func(t *testing.T) {
			if p.Unit == "" {
				t.Error("no unit")
			}
			var rate string
			for _, ms := range []string{"5", "100", "2000"} { // where others have the processors, a moment may be too short for anything
				text, err := exec.CommandContext(t.Context(), program, p.Pattern, ms).Output()
				if exit, ok := errors.AsType[*exec.ExitError](err); ok {
					t.Fatalf("%v: %s", err, exit.Stderr)
				}
				if err != nil {
					t.Fatal(err)
				}
				if rate = strings.TrimSpace(string(text)); rate != "" && rate[0] != '-' && !strings.HasPrefix(rate, "0.000") {
					return
				}
			}
			t.Errorf("%q", rate)
		})
	}
}

// TestMeasure has a program that is slower under a gosmc that is none be seen so.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	program, gosmc := filepath.Join(dir, "program"), filepath.Join(dir, "gosmc")
	script := func(path, text string) {
		t.Helper()
		if err := exec.CommandContext(t.Context(), "sh", "-c", `printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod 755 "$1"`, "sh", path, text).Run(); err != nil {
			t.Fatal(err)
		}
	}
	script(program, "echo ${MOVED:-10}")
	script(gosmc, `shift 2; MOVED=4 exec "$@"`)
	r := result{Pattern: "some", Unit: "things/s"}
	opt := options{rounds: 3, time: time.Millisecond, gosmc: gosmc}
	if err := r.measure(t.Context(), opt, program); err != nil || r.TCP != 10 || r.Gosmc != 4 || r.Ratio != 0.4 {
		t.Errorf("measure = %v: %+v, want 10 and 4", err, r)
	}
	got := table([]result{{Pattern: "equal", TCP: 1, Gosmc: 1, Ratio: 1, Unit: "x"}, r})
	if lines := strings.Split(got, "\n"); !strings.Contains(lines[1], "some") || !strings.Contains(lines[1], "0.40") {
		t.Errorf("the slowest is not the first:\n%s", got)
	}
	script(program, "echo no >&2; exit 3")
	if err := r.measure(t.Context(), opt, program); err == nil || !strings.Contains(err.Error(), "no") {
		t.Errorf("measure of a program that fails = %v", err)
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		of   []float64
		want float64
	}{{[]float64{7}, 7}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(tt.of); got != tt.want {
			t.Errorf("median(%v) = %v, want %v", tt.of, got, tt.want)
		}
	}
}
