package run

import (
	"path/filepath"
	"testing"
)

// unseenCases are those of testdata/unseen.c.
var unseenCases = []string{
	"seen", "unseen", "unseen-late", "unseen-partly", "many", "many-unseen", "reused",
	"nowhere", "nowhere-accepted", "nowhere-edge", "nowhere-two", "nowhere-unseen",
}

// TestUnseen has epoll tell a program of a socket that it has registered by a system call of its own, before it connects, and of one that it connects to nothing and
// then again, what it tells over TCP.
func TestUnseen(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "unseen")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/unseen.c")
	compareTold(t, path, unseenCases, "LD_PRELOAD="+library, EnvSocket+"="+s.path)
}
