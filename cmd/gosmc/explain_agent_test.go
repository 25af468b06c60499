package main

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/survey"
)

// needIntroductions starts an agent that introduces programs, or skips the test.
func needIntroductions(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: an agent, and another user")
	}
	if _, err := exec.LookPath("perl"); err != nil {
		t.Skip("needs perl, which every user can run")
	}
	withAgent(t, "--no-port")
	t.Setenv(smctest.LibraryTokens())
	if c := survey.Pairing(context.Background(), ""); !c.Available {
		t.Skip(c.Why)
	}
}

// introducedServer starts a server of user nobody under 'gosmc run', from an environment, and returns its port.
func introducedServer(t *testing.T, environ []string, in func(func())) (port string) {
	t.Helper()
	cmd := runCommand(t, environ, "perl", "-e", sharedProgram, strconv.Itoa(unix.SYS_GETSOCKOPT))
	cmd.Path, cmd.Dir = copyForAll(t), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var server *talker
	in(func() { server = startTalker(t, cmd) })
	line, err := server.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// explained runs 'gosmc run --explain', and returns its status and output.
func explained(t *testing.T, environ []string, in func(func()), address string) (int, string) {
	t.Helper()
	cmd := runCommand(t, environ, "--explain", address)
	var out []byte
	in(func() { out, _ = cmd.CombinedOutput() })
	return cmd.ProcessState.ExitCode(), string(out)
}

// connectsOutside runs a client, and reports whether its connections left TCP.
func connectsOutside(t *testing.T, environ []string, in func(func()), port string) bool {
	t.Helper()
	cmd := runCommand(t, environ, "perl", "-e", sharedProgram, strconv.Itoa(unix.SYS_GETSOCKOPT), port)
	var out []byte
	var err error
	in(func() { out, err = cmd.Output() })
	if err != nil {
		t.Fatalf("the client: %v", err)
	}
	return strings.Contains(string(out), "1")
}

func here(f func()) { f() }

// TestExplainIntroduced has --explain and doctor say of programs of two users that the agent introduces them, as it
// does, and that the policy of users refuses, where it does.
func TestExplainIntroduced(t *testing.T) {
	needIntroductions(t)
	environ := append(runEnviron(t), config.EnvFile+"=/dev/null")
	if err := os.Chmod(strings.TrimPrefix(environ[len(environ)-2], "GOSMC_DIR="), 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	port := introducedServer(t, environ, here)
	address := "127.0.0.1:" + port
	if !connectsOutside(t, environ, here, port) {
		t.Error("the agent has not introduced the programs")
	}
	if status, out := explained(t, environ, here, address); status != exitOK || !strings.Contains(out, "it runs as nobody (65534) and the client as root (0): the agent introduces them") {
		t.Errorf("--explain = %d, %s", status, out)
	}
	if r := doctorOf(t, environ, address); !r.Healthy {
		t.Errorf("doctor: %q", r.bad())
	}
	same := append(slices.Clone(environ), "GOSMC_USERS=same")
	if connectsOutside(t, same, here, port) {
		t.Error("the agent has introduced the programs against the policy")
	}
	if status, out := explained(t, same, here, address); status != exitFellBack || !strings.Contains(out, "the policy of users here refuses the server's") {
		t.Errorf("--explain = %d, %s", status, out)
	}
}

// TestExplainNamespace has a server in another network namespace of this machine be found there.
func TestExplainNamespace(t *testing.T) {
	needIntroductions(t)
	c := smctest.NewCables(t, 1)
	at := c.Addr[0][1].String()
	environ := append(runEnviron(t), config.EnvFile+"=/dev/null", "AT="+at)
	theirs := append(runEnviron(t), config.EnvFile+"=/dev/null", "AT="+at) // as in a container
	if err := os.Chown(strings.TrimPrefix(theirs[len(theirs)-3], "GOSMC_DIR="), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	port := introducedServer(t, theirs, c.Run[1])
	if !connectsOutside(t, environ, c.Run[0], port) {
		t.Error("the agent has not introduced the programs")
	}
	if status, out := explained(t, environ, c.Run[0], at+":"+port); status != exitOK || !strings.Contains(out, at+" is an address of this machine, in another network namespace") ||
		!strings.Contains(out, "the programs are in different network namespaces: the agent introduces them") {
		t.Errorf("--explain = %d, %s", status, out)
	}
	if status, out := explained(t, environ, c.Run[0], at+":1"); status != exitFellBack || !strings.Contains(out, "in another network namespace") || !strings.Contains(out, "nobody listens") {
		t.Errorf("--explain of a port that has no listener = %d, %s", status, out)
	}
}
