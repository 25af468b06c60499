package demo

import (
	"errors"
	"os"
	"testing"
	"time"
)

// Two hosts have SMC-R between them, and everything is right; without root it is said why not.
func TestDemoHosts(t *testing.T) {
	const size = 5<<20 + 123
	r, err := Run(t.Context(), Options{Size: size, HTTPTime: 100 * time.Millisecond, Setting: Hosts})
	switch {
	case errors.Is(err, ErrNotRoot) && os.Geteuid() != 0:
		t.Skip("needs root, for network namespaces; without it the demo says so")
	case errors.Is(err, ErrNotRoot):
		t.Skipf("needs network namespaces: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	if !r.OK || len(r.Runs) != 2 || r.Network == "" {
		t.Fatalf("Run = %+v, want two runs and what is between the hosts", r)
	}
	for i, mode := range []string{"SMC-R", "TCP"} {
		run := r.Runs[i]
		if run.Mode != mode || !run.File.Right || run.File.SHA256 != r.SHA256 || run.HTTP.Requests == 0 || run.HTTP.Wrong != 0 {
			t.Errorf("run %d = %+v, want %s with everything right", i, run, mode)
		}
	}
	if run := r.Runs[0]; run.EID != "GOSMC.DEMO" || run.Version == "" {
		t.Errorf("run over SMC-R = %+v, want version and EID", run)
	}
}
