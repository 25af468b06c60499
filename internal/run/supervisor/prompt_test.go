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

// TestPrompt has a server accept at once a client that says nothing, whatever the client has set before it connected: testdata/prompt.c.
func TestPrompt(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "prompt")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/prompt.c")
	ways := map[string][]string{
		"bare":     {"SPEAKS=1"},
		"moved":    {"MOVED=1", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path},
		"disabled": {"SPEAKS=1", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path, "GOSMC_DISABLED=1"},
	}
	for way, environ := range ways {
		for _, name := range []string{"plain", "quickack", "quickack-waits", "defer"} {
			t.Run(way+"/"+name, func(t *testing.T) {
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
