package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// unseenCases are the cases of testdata/unseen.c.
var unseenCases = []string{
	"seen", "unseen", "unseen-late", "unseen-partly", "many", "many-unseen", "reused",
	"nowhere", "nowhere-accepted", "nowhere-edge", "nowhere-two", "nowhere-unseen",
}

// TestUnseen has epoll tell a program the same as over TCP. One socket is registered by a system
// call of the program's own, before it connects; another connects to nothing and then again.
func TestUnseen(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "unseen")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/unseen.c")
	compareTold(t, path, unseenCases, "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
