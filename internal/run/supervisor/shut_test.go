package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestShutdownOfReading has a program read bytes that come after it has shut reading down, as with
// TCP, and its peer send.
func TestShutdownOfReading(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "shut")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/shut.c", "-pthread")
	cases := []string{"reads", "shared", "spliced", "wakes"}
	t.Run("bare", func(t *testing.T) { runRings(t, path, cases, 1) })
	t.Run("moved", func(t *testing.T) {
		runRings(t, path, cases, 1, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	})
}
