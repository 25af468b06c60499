package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/busy.c. Those with poll- have a loop with poll in place of epoll.
var busyCases = []string{
	"again", "edge", "edge-again", "writable", "gone", "oneshot", "poll", "select", "copy", "other", "nested", "nested-else", "polled",
	"fork", "thread", "receiver", "poller", "reset", "shut", "passed", "exec", "signal", "struck", "apart", "arrived", "turning", "many", "resting",
	"poll-again", "poll-writable", "poll-select", "poll-fork", "poll-thread", "poll-receiver", "poll-reset", "poll-shut", "poll-passed", "poll-exec", "poll-signal", "poll-struck", "poll-apart", "poll-arrived",
	"poll-beside", "poll-instance", "poll-company", "poll-parent",
}

func busyProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "busy")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result", "-o", path, "testdata/busy.c", "-pthread")
	return path
}

// TestBusyBare has TCP do all that is expected of event loops with moved connections.
func TestBusyBare(t *testing.T) {
	runRings(t, busyProgram(t), busyCases, 1)
}

// TestBusy has event loops look into rings, and bytes there of which the kernel does not know reach
// each call that could wait for them.
func TestBusy(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, busyProgram(t), busyCases, 1, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// TestBusySanitized has the sanitizers look at it.
func TestBusySanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, busyProgram(t), busyCases, 1, "MOVED=1", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
