package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/sending.c.
var sendingCases = []string{"partly", "beside", "urgent", "whole", "brief"}

func sendingProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sending")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path, "testdata/sending.c")
	return path
}

// TestSending has a program send in ways in which bytes could be lost or come in another order, first bare, then with the library that is committed.
func TestSending(t *testing.T) {
	program := sendingProgram(t)
	t.Run("bare", func(t *testing.T) { runRings(t, program, sendingCases, 1) })
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, program, sendingCases, 1, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
