package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestRunLate has clients that do not wait give offers up while servers take them: either both ends are moved, or both are TCP.
func TestRunLate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a network namespace whose packets another processor receives")
	}
	const clients, each = 6, 500
	program := compiled(t, "late")
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), program, "setup", os.Args[0], "run", program, fmt.Sprint(clients), fmt.Sprint(each))
	cmd.Env, cmd.Stderr = runEnviron(t), &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	out, err := cmd.Output()
	var made, late, moved int
	if _, scanErr := fmt.Sscan(string(out), &made, &late, &moved); err != nil || scanErr != nil || stderr.Len() != 0 {
		t.Fatalf("%v, %q\n%s", err, out, stderr.String())
	}
	t.Logf("%d connections, %d not there at once, %d moved", made, late, moved)
	if made != clients*each {
		t.Errorf("%d connections were made, want %d", made, clients*each)
	}
	if late == 0 || moved == 0 {
		t.Errorf("of %d connections %d were not there at once, and %d moved; want some of both, or nothing was tried", made, late, moved)
	}
}
