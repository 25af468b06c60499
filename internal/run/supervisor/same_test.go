package supervisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/run/proto"
)

// said runs testdata/same and returns its output, line by line.
func said(t *testing.T, path string, seed int, environ ...string) []string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, path, strconv.Itoa(seed), "1500")
	cmd.Env = append(os.Environ(), environ...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("seed %d, %v: %v\n%s", seed, environ, err, complaints.String())
	}
	return strings.Split(string(out), "\n")
}

// compareSaid has a program do random things over TCP, and then with connections that are moved.
func compareSaid(t *testing.T, path string, seed int, environ ...string) {
	t.Helper()
	bare, moved := said(t, path, seed, "BARE=1"), said(t, path, seed, environ...)
	// That an edge was not told counts if TCP had told it.
	missed := func(line string) bool { return strings.Contains(line, "NO EDGE") }
	told := slices.DeleteFunc(slices.Clone(bare), missed)
	moved = slices.DeleteFunc(moved, func(line string) bool { return missed(line) && slices.Contains(bare, line) })
	bare = told
	for i, line := range bare {
		if i < len(moved) && moved[i] == line {
			continue
		}
		t.Errorf("seed %d: they say from line %d on, bare:\n%s\nand moved:\n%s", seed, i+1,
			strings.Join(bare[max(0, i-8):min(len(bare), i+3)], "\n"), strings.Join(moved[min(len(moved), max(0, i-8)):min(len(moved), i+3)], "\n"))
		return
	}
}

// TestSame has a program notice nothing: its output about random calls is the same as over TCP.
func TestSame(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "same")
	source, err := filepath.Glob("testdata/same/*.c")
	if err != nil || len(source) == 0 {
		t.Fatalf("no source: %v", err)
	}
	compile(t, append([]string{"-O1", "-Wall", "-Wextra", "-Werror", "-o", path}, source...)...)
	for _, seed := range []int{1, 2, 3, 4, 5, 6, 7, 8, 14, 39} { // the last two have sides answer after the peer has gone
		compareSaid(t, path, seed, "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	}
}
