package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/looks.c.
var looksCases = []string{"accept", "accept4", "recv", "read", "peek", "dontwait"}

func looksProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "looks")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/looks.c")
	return path
}

// TestLooks has blocking calls look before they sleep where that pays, and only now and then where it does not.
func TestLooks(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, looksProgram(t), looksCases, 1, "LOOKS=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// TestLooksOff has none of them look.
func TestLooksOff(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, looksProgram(t), looksCases, 1, "GOSMC_RUN_RINGS=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// TestLooksSanitized has the sanitizers look at it.
func TestLooksSanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, looksProgram(t), looksCases, 1, "LOOKS=1", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
