package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestLow has poll, select and receives wait for as much as SO_RCVLOWAT says. A socket that has it
// before it connects or listens stays TCP; one that gets it later is read in-band.
func TestLow(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "low")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path, "testdata/low.c")
	compareTold(t, path, []string{"before", "listener", "listener-one", "after", "accepted"}, "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
