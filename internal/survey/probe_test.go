package survey

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProbe(t *testing.T) {
	t.Setenv("GOSMC_DIR", t.TempDir())
	p, err := NewProbe(t.Context())
	if err != nil || !p.Capabilities.SMCDv2.Available || p.GID == "" || p.Dir != os.Getenv("GOSMC_DIR") || p.PID != os.Getpid() || p.Others != 0 || len(p.Limits) == 0 {
		t.Errorf("NewProbe = %+v, %v, want SMC-D and limits", p, err)
	}
}

// To look at a directory that is not there, as one that is misspelt, does not make it.
func TestProbeLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "misspelt")
	t.Setenv("GOSMC_DIR", dir)
	p, err := NewProbe(t.Context())
	if err != nil || !p.Capabilities.SMCDv2.Available {
		t.Errorf("NewProbe = %+v, %v, want SMC-D", p, err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("Stat of the run directory after that = %v, want it gone", err)
	}
}

// Where shared memory cannot be used, the probe has all that can be said, and the error says how to
// change that.
func TestProbeWithoutRunDirectory(t *testing.T) {
	t.Setenv("GOSMC_DIR", "/dev/null/x")
	p, err := NewProbe(t.Context())
	if err == nil || !strings.Contains(err.Error(), "/dev/null/x: not a directory") || !strings.Contains(err.Error(), "Set GOSMC_DIR to a directory") {
		t.Errorf("NewProbe = %v, want the cause and advice", err)
	}
	c := p.Capabilities
	if c.SMCDv2.Available || c.SMCDv2.Why == "" || c.SMCDv2.Advice == "" || c.SMCDv1.Why == "" || len(p.Limits) == 0 || p.Dir != "/dev/null/x" {
		t.Errorf("NewProbe = %+v, want reasons and limits", p)
	}
}
