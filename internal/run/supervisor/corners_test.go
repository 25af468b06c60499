package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/corners.c.
var cornerCases = []string{"bounded", "meanwhile", "parted", "reset", "reset-unread", "reset-processes", "reset-inherited", "reset-ring", "reset-cut"} // the last one leaves no table behind

func cornerProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "corners")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path, "testdata/corners.c")
	return path
}

// TestCorners has a program make calls that few programs make, first bare, then with the library
// that is committed.
func TestCorners(t *testing.T) {
	program := cornerProgram(t)
	t.Run("bare", func(t *testing.T) { runRings(t, program, cornerCases, 1) })
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, program, cornerCases, 1, "MOVED=1", "GOSMC_MEMORY=2097152", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// TestCornersSanitized has the sanitizers look at it.
func TestCornersSanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, cornerProgram(t), cornerCases, 1, "MOVED=1", "GOSMC_MEMORY=2097152", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
