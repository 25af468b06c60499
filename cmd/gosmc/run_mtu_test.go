package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
)

// TestRunUnmarked has a network that loses the mark of a letter: a loopback interface with small packets, and SYN cookies. Clients ask before they connect, and are moved all the same.
func TestRunUnmarked(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a network namespace")
	}
	for _, program := range []string{"perl", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs ", program)
		}
	}
	t.Setenv(config.EnvDisabled, "")
	const both = `
perl -e "$0" "$1" >port &
while ! [ -s port ]; do sleep 0.1; done
perl -e "$0" "$1" $(cat port)
kill $!`
	for name, network := range map[string]string{
		"small MTU": "ip link set lo mtu 1500 up",
		"cookies":   "ip link set lo up && echo 2 >/proc/sys/net/ipv4/tcp_syncookies",
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", network+` && exec "$@"`, "sh",
			os.Args[0], "run", "--short-after", "off", "--", "sh", "-c", both, sharedProgram, strconv.Itoa(unix.SYS_GETSOCKOPT))
		cmd.Env, cmd.Dir, cmd.Stderr = append(runEnviron(t), config.EnvFile+"=/dev/null"), t.TempDir(), os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		out, err := cmd.Output()
		if want := strings.Repeat("1", 20) + "\n"; err != nil || string(out) != want {
			t.Errorf("%s: of 20 connections those moved are 1: %q, %v", name, out, err)
		}
	}
}
