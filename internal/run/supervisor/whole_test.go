package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestWhole has receives with MSG_WAITALL end early, by a reset, a signal, a time limit or urgent
// data, and the program see the same as over TCP, then and afterwards.
func TestWhole(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "whole")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path, "testdata/whole.c")
	cases := []string{"reset", "signal", "limit", "all", "urgent"}
	t.Run("bare", func(t *testing.T) { runRings(t, path, cases, 1) })
	t.Run("moved", func(t *testing.T) {
		runRings(t, path, cases, 1, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	})
}
