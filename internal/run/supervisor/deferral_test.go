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

// deferralCases say which process sets TCP_DEFER_ACCEPT for a listener, and when:
// testdata/deferral.c.
var deferralCases = []string{"late", "early", "copy", "child", "exec", "passed", "again"}

// TestDeferral has a server accept a client that waits for it to speak, though it has asked for
// clients that have spoken: the client's bytes do not come over TCP. Where connections stay TCP the
// kernel has the option, as it has without the library.
func TestDeferral(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "deferral")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/deferral.c")
	ways := map[string][]string{
		"bare":     nil,
		"moved":    {"MOVED=1", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path},
		"refused":  {"MOVED=0", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path, "GOSMC_LISTEN_PORTS=none"},
		"alone":    {"MOVED=0", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path + "x"},
		"disabled": {"MOVED=0", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path, "GOSMC_DISABLED=1"},
	}
	for way, environ := range ways {
		for _, name := range deferralCases {
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
