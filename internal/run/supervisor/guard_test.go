package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestGuard has a server give itself a filter of system calls after its first connection, which kills it for any that it does not make on TCP: that connection
// goes on, and others are TCP.
func TestGuard(t *testing.T) {
	program := filepath.Join(t.TempDir(), "guard")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/guard.c")
	cases := []string{"strict", "prctl", "seccomp"}
	runRings(t, program, cases, 1)
	s := newTestSupervisor(t)
	runRings(t, program, cases, 1, "RINGS=1", "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+s.Path)
}
