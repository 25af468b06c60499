package supervisor

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestCrowd has a user without privileges have as many descriptors on their way as there may be
// (ETOOMANYREFS) when the library has one to pass on: the socket of a connection that was offered, an
// end that is another connection's, the bytes of a ring. Nothing is lost, bare and with the library.
func TestCrowd(t *testing.T) {
	program := filepath.Join(t.TempDir(), "crowd")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/crowd.c")
	cases := []string{"connected", "handed"}
	runRings(t, program, cases, 1)
	returned(t, nil, program)
	s := newTestSupervisor(t)
	environ := []string{"RINGS=1", "LD_PRELOAD=" + committedLibrary(t), proto.EnvSocket + "=" + s.Path}
	runRings(t, program, cases, 1, environ...)
	returned(t, s, program, environ...)
}

// returned has a program accept while its supervisor takes no letters out of letterboxes, unless that
// is nil.
func returned(t *testing.T, s *supervisor, program string, environ ...string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, program, "returned")
	cmd.Env = append(os.Environ(), environ...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() { // ready
		t.Fatal("the program does not begin")
	}
	if s != nil {
		s.Mu.Lock()
	}
	_, err = io.WriteString(in, "go\n")
	accepted := lines.Scan()
	if s != nil {
		s.Mu.Unlock()
	}
	if err != nil || !accepted {
		t.Errorf("the program has not accepted: %v", err)
	}
	io.WriteString(in, "go\n")
	if err := cmd.Wait(); err != nil {
		t.Errorf("returned, supervisor %v: %v", s != nil, err)
	}
}
