package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestRingAfter has a direction that only carries bytes stay in-band until it has carried as many
// bytes as 'gosmc run' says, and then go over. A policy counts in its place.
func TestRingAfter(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "after")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path, "testdata/after.c")
	runRings(t, path, []string{"bulk", "turns"}, 1, proto.EnvRingAfter+"=262144", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
