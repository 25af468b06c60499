package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/jumps.c.
var jumpCases = []string{"read", "read-deep", "read-stack", "read-nodefer", "write", "ask", "use", "use-stack"}

func jumpProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "jumps")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/jumps.c")
	return path
}

// TestJumps has handlers of signals leave calls by siglongjmp, and use the connection that they interrupt a call on: first over TCP, then on rings, then
// on rings that are joined and left at random.
func TestJumps(t *testing.T) {
	program := jumpProgram(t)
	t.Run("bare", func(t *testing.T) { runRings(t, program, jumpCases, 1, "JUMPS=300") })
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	t.Run("rings", func(t *testing.T) {
		runRings(t, program, jumpCases, 1, "JUMPS=2000", "RINGS=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	})
	t.Run("shaken", func(t *testing.T) {
		runRings(t, program, jumpCases, 1, "JUMPS=1000", "GOSMC_RUN_SHAKE=3", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	})
}

// TestJumpsSanitized has the sanitizers look at it.
func TestJumpsSanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, jumpProgram(t), jumpCases, 1, "JUMPS=1000", "RINGS=1", "ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
