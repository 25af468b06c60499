package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/epoll.c.
var epollCases = []string{"random", "random-data", "others", "gone", "passed", "many", "quiet"}

func epollProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "epoll")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/epoll.c", "-pthread")
	return path
}

// TestEpollBare has TCP do all that is expected of epoll with moved connections.
func TestEpollBare(t *testing.T) {
	runRings(t, epollProgram(t), epollCases, 1)
}

// TestEpoll has a program change its registrations all the time, and compares the events of epoll
// with those that poll returns.
func TestEpoll(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	program := epollProgram(t)
	for seed := 1; seed <= 2; seed++ {
		runRings(t, program, epollCases, seed, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	}
	runRings(t, program, []string{"random", "others", "gone"}, 3, "MOVED=1", "GOSMC_RUN_SHAKE=3", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// TestEpollSanitized has the sanitizers look at it.
func TestEpollSanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, epollProgram(t), epollCases[:6], 5, "MOVED=1", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
