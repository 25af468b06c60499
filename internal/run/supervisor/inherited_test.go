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

// inheritedCases say where options of a connection are asked for: testdata/inherited.c.
var inheritedCases = []string{"connect", "fork", "dup", "passed", "exec", "shared", "off", "number"}

// TestInherited has connections read back the options of their listener, and of the socket that
// connected, though accept and connect of a moved connection set none of them. The kernel's socket
// has them when another process, or another descriptor, has it.
func TestInherited(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "inherited")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/inherited.c")
	ways := map[string][]string{
		"bare":  nil,
		"moved": {"MOVED=1", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path},
	}
	for way, environ := range ways {
		for _, name := range inheritedCases {
			t.Run(way+"/"+name, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
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
