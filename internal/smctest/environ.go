package smctest

import (
	"os"
	"strconv"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/port"
)

// envDir names the run directory: internal/rundir.
const envDir = "GOSMC_DIR"

// Apart keeps the process away from an agent of this machine: its programs in the kernel see all
// sockets, and its socket is where every program looks. Agents that tests start themselves are
// found as before. TestMain calls it first, also in children; [ClearEnvironment] and [RunChild] do
// so by themselves.
func Apart() {
	// "SMCT", "PAIT" and "SMNT", and a path at which nothing can be.
	option.Name = 0x534d4354                  // rule: TestApart
	pairing.Name = 0x50414954                 // rule: TestApart
	pairing.NameOption = 0x534d4e54           // rule: TestApart
	port.SystemSocket = os.DevNull + "/agent" // rule: TestApart
}

// LibraryTokens is the variable by which the library of 'gosmc run' asks for the tokens of [Apart].
func LibraryTokens() (name, value string) {
	return "GOSMC_RUN_TOKENS", strconv.FormatUint(uint64(pairing.Name), 10)
}

// LibraryOption is the same for TCP option 254.
func LibraryOption() (name, value string) {
	return "GOSMC_RUN_OPTION", strconv.FormatUint(uint64(option.Name), 10)
}

// ClearEnvironment takes away the settings that the environment, the configuration file, the agent
// and the run directory of this machine have for all programs, which are none of the tests'.
// TestMain calls it, before there are goroutines; not in a child, which has its environment from
// its test. The function that it returns removes the run directory that it has made in their place.
func ClearEnvironment() (remove func()) {
	Apart()
	os.Unsetenv(port.EnvSocket) // rule: TestClearEnvironment
	for _, name := range config.Variables {
		os.Unsetenv(name) // rule: TestClearEnvironment
	}
	os.Unsetenv(config.EnvDisabled)       // rule: TestClearEnvironment
	os.Setenv(config.EnvFile, os.DevNull) // rule: TestClearEnvironment
	dir, err := os.MkdirTemp("", "gosmc-test-")
	if err != nil {
		panic(err)
	}
	os.Setenv(envDir, dir) // rule: TestClearEnvironment
	return func() { os.RemoveAll(dir) }
}
