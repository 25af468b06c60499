package demo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/pod"
)

// Two containers have SMC-D between them, and everything is right. Nothing is left of them.
func TestDemoContainers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces; without it the demo says so")
	}
	temporary := t.TempDir()
	if err := os.Chmod(temporary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(temporary), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temporary)
	const size = 5<<20 + 123
	var r *Report
	var err error
	for range 5 { // a machine that is busy may be late with an introduction, and TCP is right then
		o := Options{Size: size, HTTPTime: 100 * time.Millisecond, Setting: Containers}
		r, err = Run(t.Context(), o)
		if err != nil && errors.Is(err, pod.ErrNoPairing) || errors.Is(err, ErrNotRoot) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if r.OK {
			break
		}
		t.Log(r.Problems)
	}
	if !r.OK || len(r.Runs) != 2 || !strings.Contains(r.Network, "introduced by an agent for the occasion") {
		t.Fatalf("Run = %+v, want two runs and what is between the containers", r)
	}
	for i, mode := range []string{"SMC-D", "TCP"} {
		run := r.Runs[i]
		if run.Mode != mode || !run.File.Right || run.HTTP.Requests == 0 || run.HTTP.Wrong != 0 {
			t.Errorf("run %d = %+v, want %s with everything right", i, run, mode)
		}
		if !strings.HasPrefix(run.Peer, serverPrefix.Addr().String()) {
			t.Errorf("run %d is with %s, want %v", i, run.Peer, serverPrefix)
		}
	}
	left, err := filepath.Glob(filepath.Join(temporary, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
