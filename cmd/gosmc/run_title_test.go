package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/wire/clc"
)

// A titledProgram writes over its arguments and environment, as servers do that have a title, and then serves.
const titledProgram = `
import ctypes, os, socket, sys
stat = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
arguments, end = int(stat[45]), int(stat[48]) # arg_start, env_end: fields 48 and 51 of proc(5)
ctypes.memset(arguments, 0, end - arguments)
ctypes.memmove(arguments, b"titled: serving", 15)
l = socket.create_server(("127.0.0.1", 0))
print(l.getsockname()[1], flush=True)
while True:
    c, _ = l.accept()
    if os.fork() == 0:
        while d := c.recv(65536): c.sendall(d)
        os._exit(0)
    c.close()
`

// startServer starts a program that prints its port first, and returns that.
func startServer(t *testing.T, cmd *exec.Cmd) (server *talker, port string) {
	t.Helper()
	server = startTalker(t, cmd)
	line, err := server.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	port, _, _ = strings.Cut(strings.TrimSpace(line), " ")
	return server, port
}

// gosmcIn runs a verb in an environment, and returns its output with its errors, and its exit
// status.
func gosmcIn(t *testing.T, environ []string, args ...string) (string, int) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second) // dump waits for missing events
	defer stop()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = environ
	out, err := cmd.CombinedOutput()
	code := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return string(out), code
}

// TestRunTitle has the tools know a server that has written its title over its environment, and the
// programs that it started. The tools know its connections that are TCP, its listener and its
// policy. Its supervisor lives as long as it does.
func TestRunTitle(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	environ := runEnviron(t)
	dir := strings.TrimPrefix(environ[len(environ)-1], "GOSMC_DIR=")
	// The shell ends, so that only the environment or the mark leads to the server.
	server, port := startServer(t, runCommand(t, environ, "sh", "-c", `"$@" & exec 1>&-; wait`, "sh", python, "-c", titledProgram))
	foreign := exec.Command(python, "-c", echoProgram, port)
	foreign.Env = environ
	other := startTalker(t, foreign)
	other.exchange(t, "over TCP")
	client := startTalker(t, runCommand(t, environ, python, "-c", echoProgram, port))
	client.exchange(t, "over a pair")
	if got := movedModes(t, environ, port); len(got) != 2 {
		t.Errorf("ss shows %q, want two ends of a pair", got)
	}
	if got := tcpReasons(t, environ, port); len(got) != 1 || !strings.HasPrefix(got[0], control.ReasonCode(clc.DiagPeerNoSMC).String()) {
		t.Errorf("ss says of the server's end of a TCP connection %q, want PEER_NO_SMC", got)
	}
	for _, flags := range [][]string{nil, {"--dir", dir}} {
		out, _ := gosmcIn(t, environ[:len(environ)-1], append([]string{"ss", "-a", "--json"}, flags...)...)
		var r ssReport
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("ss %q: %v, %s", flags, err, out)
		}
		var pid int
		for _, l := range r.Listeners {
			if l.Local == "127.0.0.1:"+port && !l.Unannounced && l.Mode == modeUnix && l.Dir == dir {
				pid = l.PID
			}
		}
		unixEnds := 0
		for _, c := range r.Connections {
			if c.Mode != modeUnix || !strings.HasSuffix(c.Local, ":"+port) && !strings.HasSuffix(c.Peer, ":"+port) {
				continue
			}
			unixEnds++
			if c.NetNS == 0 || c.PeerPID == 0 || c.PeerPID == c.PID || c.PeerCommand == "" {
				t.Errorf("ss %q knows of an end of the pair network namespace %d, process %d, its peer %d %q", flags, c.NetNS, c.PID, c.PeerPID, c.PeerCommand)
			}
			if c.AgeSeconds != nil || c.RcvBuf != nil || c.SndBuf != nil {
				t.Errorf("ss %q has numbers of an end of the pair that nobody counts: %+v", flags, c)
			}
			// The supervisor counts the bytes, and only the directory that it is in leads to it.
			if counted := len(flags) > 0; (c.BytesIn != nil) != counted || (c.BytesOut != nil) != counted {
				t.Errorf("ss %q has bytes of an end of the pair: %+v, want %t", flags, c, counted)
			}
		}
		if pid == 0 || unixEnds != 2 {
			t.Errorf("ss -a %q has listeners %+v and %d ends of the pair, want port %s and 2", flags, r.Listeners, unixEnds, port)
			continue
		}
		if out, _ := gosmcIn(t, environ, "info", "--json"); !strings.Contains(out, `"pid": `+strconv.Itoa(pid)) {
			t.Errorf("info does not know process %d:\n%s", pid, out)
		}
		if out, _ := gosmcIn(t, environ, "dump", "--history", "100", "--count", "1", "--pid", strconv.Itoa(pid)); !strings.Contains(out, "127.0.0.1:"+port) {
			t.Errorf("dump --pid %d shows nothing of it:\n%s", pid, out)
		}
	}
	elsewhere := t.TempDir()
	if out, code := gosmcIn(t, environ, "ss", "--dir", elsewhere, "-a"); code != 0 || strings.Contains(out, ":"+port) {
		t.Errorf("ss --dir of another directory: %d,\n%s", code, out)
	}
	server.in.Close()
	server.cmd.Process.Kill() // the shell
	server.cmd.Wait()
	again := startTalker(t, runCommand(t, environ, python, "-c", echoProgram, port))
	again.exchange(t, "over another pair")
	if got := movedModes(t, environ, port); len(got) != 4 {
		t.Errorf("behind the shell's end ss shows %q, want two pairs", got)
	}
	for _, p := range []*talker{other, client, again} {
		p.cmd.Process.Kill()
	}
	out, _ := gosmcIn(t, environ, "ss", "-l", "--json")
	var r ssReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Listeners) == 0 {
		t.Fatalf("ss -l: %v, %s", err, out)
	}
	for _, l := range r.Listeners {
		if l.Local == "127.0.0.1:"+port {
			unix.Kill(l.PID, unix.SIGKILL)
		}
	}
}

// TestRunExplain has --explain name the one thing that keeps a connection from leaving TCP: another user, another run directory, a supervisor that was killed, a program
// that was started without us.
func TestRunExplain(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	type asked struct {
		environ []string
		port    string
		flags   []string
	}
	for name, tt := range map[string]struct {
		ask  func(t *testing.T) asked
		code int
		why  string
		root bool
	}{
		"moved": {func(t *testing.T) asked {
			environ := runEnviron(t)
			_, port := startServer(t, runCommand(t, environ, python, "-c", echoProgram))
			return asked{environ, port, nil}
		}, exitOK, "its supervisor answers", false},
		"without gosmc run": {func(t *testing.T) asked {
			environ := runEnviron(t)
			cmd := exec.Command(python, "-c", echoProgram)
			cmd.Env = environ
			_, port := startServer(t, cmd)
			return asked{environ, port, nil}
		}, exitFellBack, "it was not started by 'gosmc run'", false},
		"switched off": {func(t *testing.T) asked {
			environ := runEnviron(t)
			_, port := startServer(t, runCommand(t, environ, "env", "GOSMC_DISABLED=1", python, "-c", echoProgram))
			return asked{environ, port, nil}
		}, exitFellBack, "SMC is switched off for it", false},
		"another run directory": {func(t *testing.T) asked {
			_, port := startServer(t, runCommand(t, runEnviron(t), python, "-c", echoProgram))
			return asked{runEnviron(t), port, nil}
		}, exitFellBack, "its run directory is ", false},
		"a killed supervisor": {func(t *testing.T) asked {
			environ := runEnviron(t)
			server := startTalker(t, runCommand(t, environ, python, "-c", echoProgram))
			line, _ := server.out.ReadString('\n')
			port, socket, _ := strings.Cut(strings.TrimSpace(line), " ")
			unix.Kill(supervisorOf(t, socket), unix.SIGKILL)
			runCommand(t, environ, "true").Run() // which tidies up
			return asked{environ, port, nil}
		}, exitFellBack, "its supervisor has ended", false},
		"another user": {func(t *testing.T) asked {
			environ := runEnviron(t)
			_, port := startServer(t, runCommand(t, environ, python, "-c", echoProgram))
			return asked{environ, port, []string{"--user", "65534"}}
		}, exitFellBack, "memory is not shared between users", false},
		"root, of another user's server in the same directory": {func(t *testing.T) asked {
			environ := runEnviron(t)
			dir := strings.TrimPrefix(environ[len(environ)-1], "GOSMC_DIR=")
			if err := errors.Join(os.Chown(dir, 65534, 65534), os.Chmod(dir, 0o700)); err != nil {
				t.Fatal(err)
			}
			// Every user can run perl; python3 may be in somebody's home.
			cmd := runCommand(t, environ, "perl", "-MIO::Socket", "-e", `$l = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1"); $| = 1; print $l->sockport, "\n"; sleep`)
			cmd.Path, cmd.Args[0] = copyForAll(t), "gosmc"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			_, port := startServer(t, cmd)
			return asked{environ, port, nil}
		}, exitFellBack, "memory is not shared between users", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.root && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			a := tt.ask(t)
			out, code := gosmcIn(t, a.environ, append([]string{"run", "--explain", "127.0.0.1:" + a.port}, append(a.flags, python)...)...)
			if code != tt.code || !strings.Contains(out, tt.why) {
				t.Errorf("--explain: status %d, want %d and %q:\n%s", code, tt.code, tt.why, out)
			}
		})
	}
}

// copyForAll returns a copy of this test's program that every user can run.
func copyForAll(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "gosmc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "gosmc")
	if err := errors.Join(os.WriteFile(path, b, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}
