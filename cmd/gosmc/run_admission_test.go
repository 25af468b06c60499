package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/config"
)

// briefProgram is a server that answers a byte, and with a port its client, which makes 20 connections, one after another.
const briefProgram = `
import socket, sys
if len(sys.argv) > 1:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as c:
            c.sendall(b"x")
            c.recv(1)
else:
    s = socket.create_server(("127.0.0.1", 0))
    print(s.getsockname()[1], flush=True)
    while True:
        c, _ = s.accept()
        with c:
            c.sendall(c.recv(1))
`

// TestRunShort has --explain say, and stats count, that connections are TCP because those before were short, when that is so; in every 'gosmc run' of the run directory.
func TestRunShort(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	t.Setenv(config.EnvDisabled, "")
	environ := runEnviron(t)
	_, dir, _ := strings.Cut(environ[len(environ)-1], "=")
	environ = append(environ, config.EnvFile+"=/dev/null")
	script := filepath.Join(t.TempDir(), "brief.py")
	if err := os.WriteFile(script, []byte(briefProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	// The file of the program, which a python3 in PATH may only start.
	file, err := exec.CommandContext(t.Context(), python, "-c", "import os; print(os.path.realpath('/proc/self/exe'))").Output()
	if err != nil {
		t.Fatal(err)
	}
	python = strings.TrimSpace(string(file))
	server := startTalker(t, runCommand(t, environ, python, script))
	port, err := server.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	port = strings.TrimSpace(port)
	explain := func(want string, flags ...string) {
		t.Helper()
		out, _ := runCommand(t, environ, append(flags, "--json", "--explain", "127.0.0.1:"+port, python, script)...).Output()
		var r explainReport
		if err := json.Unmarshal(out, &r); err != nil || len(r.Servers) != 1 {
			t.Fatalf("--explain: %v, %s", err, out)
		}
		if last := r.Servers[0].Steps[len(r.Servers[0].Steps)-1]; !strings.Contains(last.What, want) || last.OK == strings.Contains(want, "SHORT") {
			t.Errorf("--explain ends with %+v, want %q", last, want)
		}
	}
	client := func(flags ...string) {
		t.Helper()
		if out, err := runCommand(t, environ, append(flags, python, script, port)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	explain("its supervisor answers")
	client("--short-after", "25")
	explain("20 connections of "+python+" to it were short, one after another, and 25 would leave others to TCP", "--short-after", "25")
	explain("its supervisor answers", "--short-after", "off")
	explain("the last 20 connections of " + python + " to it that were moved were too short to gain, so others stay TCP (SHORT, 0 so far)")
	client()
	explain("(SHORT, 20 so far), but for one in 32")
	stats := exec.CommandContext(t.Context(), os.Args[0], "stats", "--dir", dir) // others' programs may have such connections, too
	stats.Env = environ
	if out, err := stats.Output(); err != nil || !strings.Contains(string(out), "20  0x7e010018  Earlier connections") {
		t.Errorf("stats: %v\n%s", err, out)
	}
}
