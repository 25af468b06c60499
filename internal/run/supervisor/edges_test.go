package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/edges.c.
var edgeCases = []string{"each", "pointers", "exclusive", "alike", "beside", "nested", "once", "heirs", "reset", "signals", "flow", "flow-joined"}

func edgesProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edges")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/edges.c", "-pthread")
	return path
}

// TestEdgesBare has TCP do all that is expected of edges with moved connections.
func TestEdgesBare(t *testing.T) {
	runRings(t, edgesProgram(t), edgeCases, 1)
}

// TestEdges has a program told of every arrival where it is registered for edges, whatever it has read before.
func TestEdges(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	program := edgesProgram(t)
	for seed := 1; seed <= 3; seed++ {
		runRings(t, program, edgeCases, seed, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	}
	for seed := 1; seed <= 3; seed++ {
		runRings(t, program, edgeCases, seed, "MOVED=1", "SHAKE=1", "GOSMC_RUN_SHAKE=3", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	}
}

// TestEdgesSanitized has the sanitizers look at it.
func TestEdgesSanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, edgesProgram(t), edgeCases, 7, "MOVED=1", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
