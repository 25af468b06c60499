package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// filterProgram gives itself a filter of system calls that does the first argument for the call with the second one, and executes the rest.
const filterProgram = `import ctypes, os, struct, sys
action, call = int(sys.argv[1]), int(sys.argv[2])
code = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (6, 0, 0, action), (6, 0, 0, 0x7fff0000)]
filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filter))
prctl = ctypes.CDLL(None).prctl
if prctl(38, 1, 0, 0, 0) != 0 or prctl(22, 2, ctypes.c_char_p(program), 0, 0) != 0:
    sys.exit("no filter")
os.execv(sys.argv[3], sys.argv[3:])
`

// TestRunDeadly has a program start, with TCP, under a filter of system calls that kills gosmc for a call that it makes, and have its own way under one that refuses the call.
func TestRunDeadly(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	const killed, refused, trap = 0x80000000, 0x00050000 | int64(unix.ENOSYS), 0x00030000
	for _, tt := range []struct{ action, call int64 }{
		{killed, unix.SYS_PIDFD_OPEN}, {killed, unix.SYS_FACCESSAT2}, {killed, unix.SYS_FCHMODAT2}, {trap, unix.SYS_PIDFD_OPEN}, {refused, unix.SYS_PIDFD_OPEN},
	} {
		for _, program := range []string{"sh", "/bin/sh"} {
			cmd := exec.CommandContext(t.Context(), python, "-c", filterProgram, strconv.FormatInt(tt.action, 10), strconv.FormatInt(tt.call, 10), os.Args[0], "run", "--", program, "-c", "echo started; exit 7")
			cmd.Env = runEnviron(t)
			var out, text bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &text
			err := cmd.Run()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.ExitCode() != 7 || out.String() != "started\n" {
				t.Errorf("%s, %#x for %d: %v, %q, %q", program, tt.action, tt.call, err, out.String(), text.String())
			}
			if got := strings.Contains(text.String(), "stays with TCP: a filter of system calls"); got != (tt.action != refused) {
				t.Errorf("%s, %#x for %d: it says %q", program, tt.action, tt.call, text.String())
			}
		}
	}
}

// TestRunExplainObstacle has --explain see that 'gosmc run' leaves every program to TCP where it can do nothing.
func TestRunExplainObstacle(t *testing.T) {
	for _, tt := range []struct{ limit, dir, want string }{
		{"17", "/tmp/none", "too few files may be open"}, {"1024", "relative", "is not an absolute path"},
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -n "$0"; exec "$@"`, tt.limit, os.Args[0], "run", "--explain", "127.0.0.1:1")
		cmd.Env = append(os.Environ(), "GOSMC_DIR="+tt.dir)
		out, err := cmd.CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != exitFellBack || !strings.Contains(string(out), "no   'gosmc run' can do nothing here: ") || !strings.Contains(string(out), tt.want) {
			t.Errorf("ulimit -n %s, GOSMC_DIR=%s: %v, %q", tt.limit, tt.dir, err, out)
		}
	}
}
