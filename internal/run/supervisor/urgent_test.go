package supervisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/run/proto"
)

// urgentCases are the cases of testdata/urgent.c.
var urgentCases = []string{"urgent", "urgent-inline", "urgent-joined", "urgent-offered"}

// TestUrgent has a program told the same of a connection as over TCP: by poll, epoll, select,
// FIONREAD and SIOCATMARK, of urgent data and the bytes around it.
func TestUrgent(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "urgent")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/urgent.c")
	compareTold(t, path, urgentCases, "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// compareTold has a program print in each case the same as over TCP.
func compareTold(t *testing.T, path string, cases []string, environ ...string) {
	t.Helper()
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bare, moved := told(t, path, name), told(t, path, name, append(slices.Clone(environ), "MOVED=1")...)
			for i := range max(len(bare), len(moved)) {
				if i >= len(bare) || i >= len(moved) || bare[i] != moved[i] {
					t.Fatalf("line %d, bare:\n%s\nand moved:\n%s", i+1, strings.Join(bare[min(len(bare), max(i-3, 0)):min(len(bare), i+2)], "\n"),
						strings.Join(moved[min(len(moved), max(i-3, 0)):min(len(moved), i+2)], "\n"))
				}
			}
		})
	}
}

// told runs a case and returns its output, line by line.
func told(t *testing.T, path, name string, environ ...string) []string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, path, name)
	cmd.Env = append(os.Environ(), environ...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", environ, err, complaints.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
