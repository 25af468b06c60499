package supervisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestTicking has a program with an interval timer wait no longer than others for a supervisor that
// is stopped. Each signal used to begin the wait anew, so that a program waited for ever if its
// timer was shorter than the time limit. The library is built from its source.
func TestTicking(t *testing.T) {
	program := filepath.Join(t.TempDir(), "ticking")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/ticking.c")
	dir, err := os.MkdirTemp("", "run") // a short name: sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	stopped, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stopped)
	path := filepath.Join(dir, "stopped")
	if err := unix.Bind(stopped, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(stopped, 10); err != nil {
		t.Fatal(err)
	}
	library := sanitizedLibrary(t)
	ctx, stop := context.WithTimeout(t.Context(), 8*proto.TalkTimeout)
	defer stop()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+path)
	start := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if took := time.Since(start); took < proto.TalkTimeout {
		t.Errorf("it has ended after %v: it has not asked", took)
	}
}
