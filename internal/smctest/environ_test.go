package smctest

import (
	"os"
	"testing"

	"github.com/gosmc/smc/internal/config"
)

// TestClearEnvironment has every variable that tells programs what to do set, and none of them left.
func TestClearEnvironment(t *testing.T) {
	t.Setenv(config.EnvFile, "/nowhere")
	t.Setenv(config.EnvDisabled, "1")
	for _, name := range config.Variables {
		t.Setenv(name, "x")
	}
	ClearEnvironment()
	if got := os.Getenv(config.EnvFile); got != os.DevNull {
		t.Errorf("%s = %q", config.EnvFile, got)
	}
	if v, ok := os.LookupEnv(config.EnvDisabled); ok {
		t.Errorf("%s = %q", config.EnvDisabled, v)
	}
	for _, name := range config.Variables {
		if v, ok := os.LookupEnv(name); ok {
			t.Errorf("%s = %q", name, v)
		}
	}
}
