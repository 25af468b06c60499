package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestIOUring has a program read and write with system calls that the library sees first, and then with an io_uring: one that was made before by an inline
// call, or that a process has from before a fork; or by one that is made by syscall(2) while bytes are in a ring. Or the queue is given a socket before that connects. It used to lose bytes, and to take tokens for some.
func TestIOUring(t *testing.T) {
	program := filepath.Join(t.TempDir(), "uring")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/uring.c")
	cases := []string{"before", "registered", "forked", "after", "given", "given-later"}
	runRings(t, program, cases, 1)
	s := newTestSupervisor(t)
	runRings(t, program, cases, 1, "RINGS=1", "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+s.Path)
}
