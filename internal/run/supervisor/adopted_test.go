package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/rings in which a program gets a connection from another one.
var adoptedCases = []string{"adopted-exec", "adopted-spawn", "adopted-chain", "adopted-passed", "adopted-strangers", "adopted-filtered"}

// TestAdopted has programs be executed with a connection, and be sent one: they receive over the offer of a ring, and hear of a reset. Descriptors
// that only look like a connection are left alone, and others are asked nothing.
func TestAdopted(t *testing.T) {
	program := ringProgram(t)
	source, _ := filepath.Glob("testdata/rings/*.c")
	static := filepath.Join(t.TempDir(), "static")
	compile(t, append([]string{"-O1", "-static", "-pthread", "-o", static}, source...)...)
	t.Run("bare", func(t *testing.T) { runRings(t, program, adoptedCases, 1, "STATIC="+static) })
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	t.Run("moved", func(t *testing.T) {
		runRings(t, program, adoptedCases, 1, "STATIC="+static, "RINGS=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	})
}

// TestAdoptedSanitized has the sanitizers look at it.
func TestAdoptedSanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, ringProgram(t), adoptedCases, 1, "RINGS=1", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
