package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/forks.c.
var forkCases = []string{"blocked", "often", "within", "otherwise", "server", "again", "shared", "executed"}

// TestForks has a program make processes while it makes connections, first bare, then with the library that is committed.
func TestForks(t *testing.T) {
	program := filepath.Join(t.TempDir(), "forks")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/forks.c", "-lutil")
	t.Run("bare", func(t *testing.T) { runRings(t, program, forkCases, 1) })
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, program, forkCases, 1, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
