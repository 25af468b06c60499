package smctest

import (
	"os"

	"github.com/gosmc/smc/internal/config"
)

// ClearEnvironment takes away what the environment and the configuration file of this machine say to all programs, which is none of the tests'.
// TestMain calls it, before there are goroutines; not in a child, which has its environment from its test.
func ClearEnvironment() {
	for _, name := range config.Variables {
		os.Unsetenv(name) // rule: TestClearEnvironment
	}
	os.Unsetenv(config.EnvDisabled)       // rule: TestClearEnvironment
	os.Setenv(config.EnvFile, os.DevNull) // rule: TestClearEnvironment
}
