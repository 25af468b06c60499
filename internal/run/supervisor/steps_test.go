package supervisor

import (
	"flag"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

var stepsApart = flag.Int("steps-apart", 6, "how much further than it could be it is in TestSteps from one place to the next; 1 takes minutes")

// Cases of testdata/steps.c.
var stepCases = []string{
	"write", "write-more", "write-full", "offer", "join", "leave-out", "read", "read-part", "read-half", "read-full", "attach", "mark", "leave-in",
	"use", "use-nodefer", "use-above", "use-below", "use-third", "loop", "loop-turns", "loop-forks",
}

// TestSteps has a signal come at one place after another of a call on a ring, which TestJumps leaves to chance: its handler leaves the call by siglongjmp, uses the
// connection, or forks.
func TestSteps(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	program := filepath.Join(t.TempDir(), "steps")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/steps.c")
	runRings(t, program, stepCases, 1, "RINGS=1", "APART="+strconv.Itoa(*stepsApart), "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
