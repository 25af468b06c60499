package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestNoFile has a program use its connections that may open no more files, so that the kernel polls no
// descriptor for the library either: first over TCP, then moved, in-band and with rings.
func TestNoFile(t *testing.T) {
	program := filepath.Join(t.TempDir(), "nofile")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/nofile.c")
	cases := []string{"whole", "whole-limited", "whole-ring", "whole-limited-ring", "closed", "closed-ring", "unseen"}
	runRings(t, program, cases, 1)
	s := newTestSupervisor(t)
	runRings(t, program, cases, 1, "RINGS=1", "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+s.Path)
}
