package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestThreads has threads that send over one connection wake each other: those that slept until their time was up, 10 ms, made one of 60 sends
// slower than that.
func TestThreads(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "threads")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path, "testdata/threads.c")
	runRings(t, path, []string{"send"}, 1, "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
