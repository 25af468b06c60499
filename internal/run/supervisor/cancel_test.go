package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/cancel.c.
var cancelCases = []string{"read", "read-same", "write", "write-same", "async-read", "async-read-same", "async-write", "async-write-same", "exit-read", "exit-write"}

func cancelProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cancel")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path, "testdata/cancel.c")
	return path
}

// TestThreadsEnd has threads cancelled in calls on a connection: first over TCP, then on rings. The connection goes
// on, and its rings end with it.
func TestThreadsEnd(t *testing.T) {
	program := cancelProgram(t)
	t.Run("bare", func(t *testing.T) { runRings(t, program, cancelCases, 1) })
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	t.Run("rings", func(t *testing.T) {
		runRings(t, program, cancelCases, 1, "ROUNDS=200", "RINGS=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	})
}

// TestThreadsEndSanitized has the sanitizers look at it.
func TestThreadsEndSanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, cancelProgram(t), cancelCases, 1, "ROUNDS=30", "RINGS=1", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
