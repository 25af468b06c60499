package supervisor

import (
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestRoom has a program that is told that it can write do so without waiting, as it does on TCP: many write to a descriptor that waits when select says so, and
// read nothing meanwhile.
func TestRoom(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	program := filepath.Join(t.TempDir(), "room")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/room.c")
	cases := []string{"poll", "select", "epoll", "late"}
	environ := []string{"LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path}
	runRings(t, program, cases, 1, "GOSMC_DISABLED=1")
	runRings(t, program, cases, 1, append(environ, "RINGS=1")...)
	runRings(t, program, cases, 1, append(environ, "RINGS=0", "GOSMC_RUN_RINGS=0")...)
	for _, seed := range []string{"1", "2", "3"} {
		runRings(t, program, []string{"poll", "select"}, 1, append(environ, "GOSMC_RUN_SHAKE="+seed)...)
	}
}
