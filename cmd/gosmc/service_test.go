package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/service"
)

// serviceRoot makes the file system of a machine with a unit and an installed gosmc.
func serviceRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"usr/lib/systemd/system/echo.service": "[Service]\nUser=echo\nExecStart=/usr/bin/echo-server --port 7\n",
		"usr/lib/tmpfiles.d/gosmc.conf":       "d /run/gosmc 1777 root root -\n",
		"usr/lib/gosmc/lib64/x":               "",
		"usr/bin/gosmc":                       "",
		"etc/systemd/system/keep":             "",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestService enables, lists and disables a service of a system that does not run.
func TestService(t *testing.T) {
	root := serviceRoot(t)
	file := filepath.Join(root, "etc/systemd/system/echo.service.d/zz-gosmc.conf")
	const start = "ExecStart=/usr/bin/gosmc run -- /usr/bin/echo-server --port 7\n"

	got := gosmc(t, "", "service", "enable", "--root", root, "--dry-run", "echo")
	if _, err := os.Stat(file); got.code != exitOK || !strings.Contains(got.stdout, start) || err == nil {
		t.Errorf("enable --dry-run = %+v, and the file: %v", got, err)
	}
	if got = gosmc(t, "", "service", "enable", "--root", root, "echo"); got.code != exitOK || !strings.Contains(got.stdout, file) || !strings.Contains(got.stdout, "the user echo under 'gosmc run'.\n") {
		t.Errorf("enable = %+v", got)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), start) {
		t.Errorf("the drop-in is %q, %v", text, err)
	}
	if got = gosmc(t, "", "service", "enable", "--root", root, "echo"); got.code != exitOK || !strings.Contains(got.stdout, "already") {
		t.Errorf("enable again = %+v", got)
	}

	if got = gosmc(t, "", "service", "list", "--root", root); got.code != exitOK || !strings.Contains(got.stdout, "\necho     ok     n/a      /run/gosmc     "+file+"\n") {
		t.Errorf("list = %+v", got)
	}
	var r serviceReport
	got = gosmc(t, "", "service", "--json", "--root", root)
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || len(r.Services) != 1 || r.Schema != jsonSchema || r.Services[0] != (service.Status{Unit: "echo.service", File: file, State: "ok", Dir: "/run/gosmc"}) {
		t.Errorf("service --json = %+v, %v", r, err)
	}

	if err := os.WriteFile(file, []byte("[Service]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"enable", "disable"} {
		if got = gosmc(t, "", "service", verb, "--root", root, "echo"); got.code != exitFailure || !strings.Contains(got.stderr, "--force") {
			t.Errorf("%s of a drop-in that was changed = %+v", verb, got)
		}
	}
	if got = gosmc(t, "", "service", "disable", "--root", root, "--force", "echo.service"); got.code != exitOK {
		t.Errorf("disable --force = %+v", got)
	}
	if _, err := os.Stat(filepath.Dir(file)); err == nil {
		t.Error("disable has left the directory behind")
	}
	for range 2 {
		if got = gosmc(t, "", "service", "enable", "--root", root, "echo"); got.code != exitOK {
			t.Errorf("enable = %+v", got)
		}
		got = gosmc(t, "", "service", "disable", "--root", root, "--all")
		if _, err := os.Stat(filepath.Dir(file)); got.code != exitOK || err == nil {
			t.Errorf("disable --all = %+v, and there is the directory: %v", got, err == nil)
		}
	}
	if got = gosmc(t, "", "service", "disable", "--root", root, "echo"); got.code != exitFailure || !strings.Contains(got.stderr, "gosmc service list") {
		t.Errorf("disable again = %+v", got)
	}
}

// TestServiceErrors runs command lines that cannot be carried out: each names the remedy, and
// writes nothing.
func TestServiceErrors(t *testing.T) {
	root := serviceRoot(t)
	bare := t.TempDir()
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"enable --root ROOT", exitUsage, "takes the name of one service"},
		{"enable --root ROOT ../../echo", exitUsage, "no name of a service"},
		{"enable --root ROOT echo.socket", exitUsage, "echo.service"},
		{"enable --root ROOT --dir relative echo", exitUsage, "absolute path"},
		{"enable --root ROOT --dir /a%b echo", exitUsage, "absolute path"},
		{"enable --root ROOT ech", exitFailure, "there is echo"},
		{"enable --root BARE echo", exitFailure, "make install"},
		{"enable --root BARE/none echo", exitFailure, "--root"},
		{"disable --root ROOT --all echo", exitUsage, "takes no arguments"},
		{"disable --root ROOT 'a b'", exitUsage, "takes the name of one service"},
		{"lost", exitUsage, "disable, enable, list"},
	} {
		args := strings.Fields(strings.NewReplacer("ROOT", root, "BARE", bare).Replace(tt.args))
		got := gosmc(t, "", append([]string{"service"}, args...)...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.want) {
			t.Errorf("service %s = %+v, want %d and %q", tt.args, got, tt.code, tt.want)
		}
	}
	if names, err := os.ReadDir(filepath.Join(root, "etc/systemd/system")); err != nil || len(names) != 1 {
		t.Errorf("written: %v, %v", names, err)
	}
}

// TestConfirmed has only a yes write, and the end of the input be none.
func TestConfirmed(t *testing.T) {
	for answer, want := range map[string]bool{"\n": true, "y\n": true, " YES \n": true, "n\n": false, "what\n": false, "": false, "y": false} {
		if got := confirmed(strings.NewReader(answer), new(strings.Builder)); got != want {
			t.Errorf("confirmed by %q: %v", answer, got)
		}
	}
}

// TestRunArgv0 has a program get the name that --argv0 says.
func TestRunArgv0(t *testing.T) {
	cmd := runCommand(t, runEnviron(t), "--argv0", "another", "--", "/bin/sh", "-c", "echo $0; tr '\\0' ' ' < /proc/$$/cmdline")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "another -c ") {
		t.Errorf("run --argv0: %q, %v", out, err)
	}
	if got := gosmc(t, "", "run", "--argv0", "x", "--explain", "127.0.0.1:1", "sh"); got.code != exitUsage {
		t.Errorf("--explain --argv0 = %+v", got)
	}
}
