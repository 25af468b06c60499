package run

import (
	"path/filepath"
	"testing"
)

// TestSandbox has a program with rings refuse itself the system call by which tokens are sent: what it writes is read all the same.
func TestSandbox(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sandbox")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/sandbox.c")
	cases := []string{"eperm", "enosys"}
	runRings(t, program, cases, 1)
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, program, cases, 1, "RINGS=1", "LD_PRELOAD="+library, EnvSocket+"="+s.path)
}
