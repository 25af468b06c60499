package smctest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/port"
)

// TestClearEnvironment sets every variable that programs obey, and has none of them left.
func TestClearEnvironment(t *testing.T) {
	t.Setenv(config.EnvFile, "/nowhere")
	t.Setenv(config.EnvDisabled, "1")
	for _, name := range config.Variables {
		t.Setenv(name, "x")
	}
	t.Setenv(envDir, "/run/gosmc")
	t.Setenv(port.EnvSocket, "/run/agent")
	remove := ClearEnvironment()
	dir := os.Getenv(envDir)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%s = %q, which has %v, %v; want an empty directory", envDir, dir, entries, err)
	}
	remove()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v, want it removed", dir, err)
	}
	if v, ok := os.LookupEnv(port.EnvSocket); ok {
		t.Errorf("%s = %q", port.EnvSocket, v)
	}
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

// TestApart checks that tests ask no agent of this machine, neither its programs in the kernel nor itself.
func TestApart(t *testing.T) {
	name, socket := option.Name, port.SystemSocket
	pair, service := pairing.Name, pairing.NameOption
	defer func() {
		option.Name, port.SystemSocket = name, socket
		pairing.Name, pairing.NameOption = pair, service
	}()
	option.Name, port.SystemSocket = 0x534d4352, "/run/gosmc-agent.sock"
	pairing.Name, pairing.NameOption = 0x50414952, 0x534d4e53
	Apart()
	if option.Name == 0x534d4352 || pairing.Name == 0x50414952 || pairing.NameOption == 0x534d4e53 {
		t.Error("a socket option is one that agents catch")
	}
	if _, err := os.Stat(port.SystemSocket); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("an agent may be at %s: %v", port.SystemSocket, err)
	}
}
