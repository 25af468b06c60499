package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/smctest"
)

// TestRunReload changes the configuration while programs of 'gosmc run' run: new connections follow
// it, the one that is there stays as it is, and config set names the programs that have the value. The
// directory of the file is not there when the server starts, so nobody can watch it.
func TestRunReload(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	environ := runEnviron(t)
	file := filepath.Join(t.TempDir(), "later", "gosmc.conf")
	environ = append(environ[:len(environ):len(environ)], config.EnvFile+"="+file, config.EnvDisabled+"=")
	server, port := startServer(t, runCommand(t, environ, python, "-c", echoProgram))
	connect := func() *talker { return startTalker(t, runCommand(t, environ, python, "-c", echoProgram, port)) }
	ends := func(where string, want int) {
		t.Helper()
		smctest.Eventually(t, 10*time.Second, fmt.Sprintf("%s: %d ends that have left TCP", where, want),
			func() bool { return len(movedModes(t, environ, port)) == want })
	}
	old := connect()
	old.exchange(t, "before")
	ends("before", 2)
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	const now, later = "programs that run have the new value now: ", "programs that run keep the old value until they are started again: "
	program := process(server.cmd.Process.Pid, "python3")
	names := func(out, says string) bool { // a line that lists the server; the order is by PID
		_, list, _ := strings.Cut(out, says)
		list, _, _ = strings.Cut(list, "\n")
		return slices.Contains(strings.Split(list, ", "), program)
	}
	for _, step := range []struct {
		args, says, not string
		moves           bool
	}{
		{"set listen-port !" + port, now, later, false},
		{"set memory 64MiB", later, now, false},
		{"unset listen-port", now, later, true},
		{"set connect-port !" + port, later, now, true}, // the client that is started next has it, though
		{"unset connect-port", later, now, true},
		{"set smc off", now, later, false},
		{"unset smc", now, later, true},
	} {
		out, code := gosmcIn(t, environ, append([]string{"config"}, strings.Fields(step.args)...)...)
		if code != exitOK || !names(out, step.says) || names(out, step.not) {
			t.Errorf("config %s = %d\n%s\nwant %q and not %q", step.args, code, out, step.says, step.not)
		}
		if step.args == "set connect-port !"+port {
			continue
		}
		c := connect()
		c.exchange(t, step.args)
		old.exchange(t, "still there")
		moved := 2
		if step.moves {
			moved += 2
		}
		ends(step.args, moved)
		c.cmd.Process.Kill() // few programs, so that the next output has room for the server
		c.cmd.Wait()
		ends("a client ended", 2)
	}
}

// TestRunCopied has 'gosmc run' say which values of a program are the file's, and keep others.
func TestRunCopied(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gosmc.conf")
	if err := os.WriteFile(file, []byte("smc off\nlisten-port 1-9\nmemory 1MiB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := append(runEnviron(t), config.EnvFile+"="+file, config.EnvDisabled+"=", "GOSMC_SHORT_AFTER=9")
	for _, tt := range []struct {
		flags string
		want  []string // of the output of config show in the program
	}{
		{"", []string{"listen-port 1-9 at once " + file + ":2", "memory 1MiB at start " + file + ":3", "short-after 9 at once in package smc $GOSMC_SHORT_AFTER", "smc off at once $GOSMC_DISABLED"}},
		{"--listen-port 1-9 --smc on", []string{"listen-port 1-9 at once $GOSMC_LISTEN_PORTS", "smc on at once $GOSMC_DISABLED"}},
	} {
		args := append(append([]string{"run"}, strings.Fields(tt.flags)...), os.Args[0], "config", "show")
		out, code := gosmcIn(t, environ, args...)
		out = strings.Join(strings.Fields(out), " ")
		for _, want := range tt.want {
			if code != exitOK || !strings.Contains(out, want) {
				t.Errorf("with %q config show in the program = %d, %s\nwant %q", tt.flags, code, out, want)
			}
		}
	}
}
