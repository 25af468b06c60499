package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestSandbox has a program refuse itself one of the system calls that the library needs, before it
// connects or accepts, or with rings; or connect with a descriptor above its limit: the bytes that
// it writes are read all the same.
func TestSandbox(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sandbox")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/sandbox.c")
	cases := []string{"eperm", "enosys", "getsockopt", "fcntl", "ioctl", "sendmsg", "connect", "accept", "limit", "nonblock"}
	runRings(t, program, cases, 1)
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, program, cases, 1, "RINGS=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// TestStack has threads see how much of their stacks calls take that the library does more in.
func TestStack(t *testing.T) {
	program := filepath.Join(t.TempDir(), "stack")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,-z,now", "-o", program, "testdata/stack.c")
	cases := []string{"calls"}
	runRings(t, program, cases, 1)
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, program, cases, 1, "RINGS=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}
