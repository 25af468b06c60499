package supervisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestSignals has SIGIO and SIGURG come to a program that has asked for them before it connected, or later, as they do over TCP.
func TestSignals(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "signals")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", path, "testdata/signals.c")
	moved := []string{"MOVED=1", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path}
	for way, environ := range map[string][]string{"bare": nil, "moved": moved, "shaken": append(moved, "GOSMC_RUN_SHAKE=1")} {
		for _, name := range []string{"before", "after", "first", "accepted"} {
			t.Run(way+"/"+name, func(t *testing.T) {
				t.Parallel()
				ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
				defer stop()
				cmd := exec.CommandContext(ctx, path, name)
				cmd.Env = append(os.Environ(), environ...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}
