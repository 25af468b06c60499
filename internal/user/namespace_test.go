package user

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

func TestHomeOf(t *testing.T) {
	if h, err := HomeOf(os.Getpid()); err != nil || h != (Home{0, os.Getuid()}) {
		t.Errorf("HomeOf(this process) = %v, %v, want user %d in no namespace", h, err, os.Getuid())
	}
	if h, err := HomeOf(1 << 30); err == nil {
		t.Errorf("HomeOf(no process) = %v, want an error", h)
	}
	if os.Geteuid() != 0 {
		return
	}
	const user = 60001
	start := func(script string) (pid int) {
		t.Helper()
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			in.Close()
			cmd.Wait()
		})
		b := make([]byte, 1)
		if _, err := out.Read(b); err != nil {
			t.Skipf("needs user namespaces: %v", err)
		}
		return cmd.Process.Pid
	}
	// Each shell becomes the one within it, so that the process stays the same.
	for _, tt := range []struct {
		name, script string
		inside       bool
	}{
		{"no namespace", "echo; read x", false},
		{"one", "exec unshare -U -r sh -c 'echo; read x'", true},
		{"one in another", "exec unshare -U -r unshare -U -r sh -c 'echo; read x'", true},
		{"as nobody", "exec unshare -U sh -c 'echo; read x'", true},
	} {
		pid := start(tt.script)
		if h, err := HomeOf(pid); err != nil || h.Owner != user || (h.Namespace != 0) != tt.inside { // the owner of the outermost, not of the innermost
			t.Errorf("%s: HomeOf = %v, %v, want owner %d", tt.name, h, err, user)
		}
	}
}
