package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/wire/clc"
)

// runEnviron is the environment in which 'gosmc run' finds a run directory of its own. A file that
// is left there in the end is an error.
func runEnviron(t *testing.T) []string {
	t.Helper()
	dir, err := os.MkdirTemp("", "run") // a short name: sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return append(os.Environ(), "GOSMC_DIR="+dir)
}

// runCommand is 'gosmc run' with arguments, by the binary of this test.
func runCommand(t *testing.T, environ []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"run"}, args...)...)
	cmd.Env = environ
	return cmd
}

// TestRunScarce has a program start, with TCP, however few files may be open.
func TestRunScarce(t *testing.T) {
	for _, n := range []string{"4", "5", "6", "7", "9", "12", "20"} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -n "$0"; exec "$@"`, n, os.Args[0], "run", "--", "sh", "-c", "echo started; exit 7")
		cmd.Env = runEnviron(t)
		var out, text bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &text
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 7 || out.String() != "started\n" || strings.Count(text.String(), "\n") != 1 {
			t.Errorf("with %s files: %v\n%s%s", n, err, &out, &text)
		}
	}
}

// TestRunStatus checks that a program keeps its own properties: process ID, descriptors, arguments,
// exit status.
func TestRunStatus(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := runCommand(t, runEnviron(t), "sh", "-c", `echo $$ "$@"; echo five >&5; exec 5>&-; read x; echo children $(cat /proc/$$/task/$$/children); exit 7`, "sh", "-x", "a b")
	cmd.ExtraFiles = []*os.File{nil, nil, w}
	var out bytes.Buffer
	cmd.Stdout = &out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	// The end of file shows that the supervisor, which is there, has not kept the descriptor.
	r.SetReadDeadline(time.Now().Add(20 * time.Second))
	if got, err := io.ReadAll(r); err != nil || string(got) != "five\n" {
		t.Errorf("descriptor 5 has %q, %v", got, err)
	}
	in.Close()
	pid := cmd.Process.Pid
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit status %d, want 7", code)
	}
	want := strconv.Itoa(pid) + " -x a b\nchildren"
	if got := out.String(); !strings.HasPrefix(got, want) {
		t.Errorf("output %q, want %q", got, want)
	}
}

// TestRunErrors has the exit statuses of a program that cannot be run.
func TestRunErrors(t *testing.T) {
	environ := runEnviron(t)
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("not a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		text string
	}{
		{nil, exitUsage, "run needs a PROGRAM"},
		{[]string{"no-such-program"}, exit.NotFound, "not found"},
		{[]string{plain}, exit.NotExecutable, "permission denied"},
		{[]string{"--require", os.Args[0], "version"}, exitFellBack, "cannot be moved from TCP"},
	} {
		out, err := runCommand(t, environ, tt.args...).CombinedOutput()
		code := -1
		if e, ok := err.(*exec.ExitError); ok {
			code = e.ExitCode()
		}
		if code != tt.code || !strings.Contains(string(out), tt.text) {
			t.Errorf("run %q: status %d, %q; want %d, %q", tt.args, code, out, tt.code, tt.text)
		}
	}
	out, err := runCommand(t, environ, os.Args[0], "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "stays with TCP: ") {
		t.Errorf("run of a Go program: %v, %q; want a line that it stays with TCP", err, out)
	}
}

// An echoProgram is a program that serves, or one that asks it, for tests that have python3.
const echoProgram = `
import os, socket, sys
if len(sys.argv) == 1:
    l = socket.create_server(("127.0.0.1", 0))
    print(l.getsockname()[1], os.environ.get("GOSMC_RUN", ""), flush=True)
    while True:
        c, _ = l.accept()
        if os.fork() == 0:
            while d := c.recv(65536): c.sendall(d)
            os._exit(0)
        c.close()
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for line in sys.stdin:
    c.sendall(line.encode())
    print(c.recv(65536).decode(), end="", flush=True)
`

// A talker is a program with which the test exchanges lines.
type talker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startTalker(t *testing.T, cmd *exec.Cmd) *talker {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &talker{cmd, in, bufio.NewReader(out)}
}

func (p *talker) exchange(t *testing.T, line string) {
	t.Helper()
	io.WriteString(p.in, line+"\n")
	if got, err := p.out.ReadString('\n'); err != nil || got != line+"\n" {
		t.Errorf("sent %q, got %q, %v", line, got, err)
	}
}

// movedModes returns the mode of each connection to a port that is not TCP, as ss has it.
func movedModes(t *testing.T, environ []string, port string) (list []string) {
	t.Helper()
	for _, c := range shown(t, environ, port) {
		if c.Mode != "TCP" {
			list = append(list, c.Mode)
		}
	}
	return list
}

// tcpReasons returns why each connection to a port is TCP that ss has: code and words.
func tcpReasons(t *testing.T, environ []string, port string) (list []string) {
	t.Helper()
	for _, c := range shown(t, environ, port) {
		if c.Mode == "TCP" && c.PID != 0 && c.Command != "" {
			list = append(list, strings.TrimSpace(c.ReasonCode.String()+" "+c.Reason))
		}
	}
	return list
}

// isElsewhere reports whether a process has a supervisor in another run directory: programs of other
// tests may have the same port a moment later, or earlier.
func isElsewhere(environ []string, pid int) bool {
	dir := ""
	for _, e := range environ { // the last one counts
		if v, ok := strings.CutPrefix(e, "GOSMC_DIR="); ok {
			dir = v
		}
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for _, e := range strings.Split(string(text), "\x00") {
		if socket, ok := strings.CutPrefix(e, proto.EnvSocket+"="); ok {
			return !strings.HasPrefix(socket, dir)
		}
	}
	return false
}

func shown(t *testing.T, environ []string, port string) (list []inventory.Conn) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "ss", "--json")
	cmd.Env = environ
	out, err := cmd.Output()
	var report ssReport
	if err != nil || json.Unmarshal(out, &report) != nil {
		t.Fatalf("ss: %v, %s", err, out)
	}
	for _, c := range report.Connections {
		if (strings.HasSuffix(c.Local, ":"+port) || strings.HasSuffix(c.Peer, ":"+port)) && !isElsewhere(environ, c.PID) {
			list = append(list, c)
		}
	}
	return list
}

// checkBytes expects so many bytes to have gone in each direction at every end of a mode.
func checkBytes(t *testing.T, environ []string, port, mode string, want int) {
	t.Helper()
	for _, c := range shown(t, environ, port) {
		if c.Mode != mode {
			continue
		}
		if c.BytesIn == nil || c.BytesOut == nil || *c.BytesIn != uint64(want) || *c.BytesOut != uint64(want) {
			t.Errorf("the %s of %v %s has received %s bytes and sent %s, want %d each", c.Role, c.Local, mode, text.Count(c.BytesIn), text.Count(c.BytesOut), want)
		}
	}
}

// TestRunMoves has two programs that do not know us talk, and a third one that was not started by us. When the supervisor is
// killed their connection goes on, and the next one is TCP.
func TestRunMoves(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	environ := runEnviron(t)
	server := startTalker(t, runCommand(t, environ, python, "-c", echoProgram))
	line, err := server.out.ReadString('\n')
	port, socket, ok := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !ok {
		t.Fatalf("the server says %q, %v", line, err)
	}
	client := startTalker(t, runCommand(t, environ, python, "-c", echoProgram, port))
	client.exchange(t, "over a pair")
	if got := movedModes(t, environ, port); len(got) != 2 || got[0] != modeUnix || got[1] != modeUnix {
		t.Errorf("ss shows %q, want two ends of a pair", got)
	}
	checkBytes(t, environ, port, modeUnix, len("over a pair\n"))
	total := strconv.Itoa(len("over a pair\n"))
	for verb, want := range map[string]string{
		"stats --json":          `"Unix": 1`,
		"ss -i sport = " + port: " " + total + "         " + total + "\n",
		"metrics":               `smc_connection_bytes_total{mode="Unix",direction="in"} ` + strconv.Itoa(2*len("over a pair\n")),
		"top --once --json":     `"bytes_in_rate":0,"bytes_out_rate":0`,
		"info --json":           `"pid": ` + strconv.Itoa(server.cmd.Process.Pid),
		"dump --history 100 --count 2 --pid " + strconv.Itoa(server.cmd.Process.Pid): "established a pair of Unix sockets pid=" + strconv.Itoa(server.cmd.Process.Pid),
		"dump --history 100 --count 2 --pid " + strconv.Itoa(client.cmd.Process.Pid): "Offer pid=" + strconv.Itoa(client.cmd.Process.Pid),
	} {
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second) // dump waits for missing events
		cmd := exec.CommandContext(ctx, os.Args[0], strings.Fields(verb)...)
		cmd.Env = environ
		out, _ := cmd.CombinedOutput() // info may say that this machine has no shared memory
		stop()
		if !strings.Contains(string(out), want) {
			t.Errorf("gosmc %s has no %s:\n%s", verb, want, out)
		}
	}
	foreign := exec.Command(python, "-c", echoProgram, port)
	foreign.Env = environ
	other := startTalker(t, foreign)
	other.exchange(t, "over TCP")
	if got := movedModes(t, environ, port); len(got) != 2 {
		t.Errorf("ss shows %q, want two ends still", got)
	}
	checkBytes(t, environ, port, "TCP", len("over TCP\n"))
	if got := tcpReasons(t, environ, port); len(got) != 1 || !strings.HasPrefix(got[0], control.ReasonCode(clc.DiagPeerNoSMC).String()) {
		t.Errorf("ss says of the end of the server that it is TCP for %q", got)
	}
	why := exec.Command(os.Args[0], "ss", "--why", "-H", "mode", "tcp", "sport", "=", ":"+port)
	why.Env = environ
	if out, err := why.CombinedOutput(); err != nil || !strings.Contains(string(out), "cause:  The client, "+process(foreign.Process.Pid, commOf(t, foreign.Process.Pid))+", was not started by 'gosmc run'.") {
		t.Errorf("ss --why = %v\n%s", err, out)
	}
	pid := supervisorOf(t, socket)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	client.exchange(t, "without a supervisor")
	late := startTalker(t, runCommand(t, environ, python, "-c", echoProgram, port))
	late.exchange(t, "over TCP, too")
	if got := tcpReasons(t, environ, port); len(got) != 3 || !slices.Contains(got, inventory.Ended) {
		t.Errorf("ss says of connections that are TCP: %q; want %q of one that could have been moved", got, inventory.Ended)
	}
	ss := exec.Command(os.Args[0], "ss", "--summary", "--port", port, "--require", "smc")
	ss.Env = environ
	out, err := ss.CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != exitFellBack || !strings.Contains(string(out), "PEER_NO_SMC 1, SUPERVISOR_ENDED 1") {
		t.Errorf("ss --summary --require smc = %v\n%s", err, out)
	}
	if got := movedModes(t, environ, port); len(got) != 2 {
		t.Errorf("ss shows %q, want the two ends of before", got)
	}
}

// commOf is the name of a process.
func commOf(t *testing.T, pid int) string {
	t.Helper()
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(comm))
}

// A droppingProgram is a server that has root's rights until it listens, as nginx has: the process
// that accepts in the end may not look into root's run directory.
const droppingProgram = `
import os, socket
l = socket.create_server(("127.0.0.1", 0))
print(l.getsockname()[1], flush=True)
if os.fork() == 0:
    os.setgid(65534)
    os.setuid(65534)
    while True:
        c, _ = l.accept()
        while d := c.recv(65536): c.sendall(d)
os.wait()
`

// TestRunMovesDropped has a server accept that has given up its privileges since it was started.
func TestRunMovesDropped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	environ := runEnviron(t)
	cmd := runCommand(t, environ, python, "-c", droppingProgram)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	server := startTalker(t, cmd)
	defer unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	line, err := server.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	port := strings.TrimSpace(line)
	for range 2 {
		client := startTalker(t, runCommand(t, environ, python, "-c", echoProgram, port))
		client.exchange(t, "to nobody")
		if got := movedModes(t, environ, port); len(got) != 2 || got[0] != modeUnix || got[1] != modeUnix {
			t.Errorf("ss shows %q, want two ends of a pair", got)
		}
		client.in.Close()
		client.cmd.Wait()
	}
}

// supervisorOf returns the process that listens on a supervisor's socket. It has handled all
// earlier events.
func supervisorOf(t *testing.T, path string) (pid int) {
	t.Helper()
	for range 3 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Fatalf("the supervisor does not answer: %v", err)
		}
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			t.Fatal(err)
		}
		pid = int(cred.Pid)
		unix.Write(fd, []byte("no message"))
		unix.Read(fd, make([]byte, 1)) // until it hangs up
	}
	return pid
}

// TestRunLeavesNothing has the supervisor end with the last of its programs, though that was left behind by the first.
func TestRunLeavesNothing(t *testing.T) {
	environ := runEnviron(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := runCommand(t, environ, "sh", "-c", `(read line) <&3 >/dev/null 2>&1 & echo $GOSMC_RUN`)
	cmd.ExtraFiles = []*os.File{r}
	out, err := cmd.Output()
	r.Close()
	if err != nil {
		t.Fatal(err)
	}
	socket := strings.TrimSpace(string(out))
	pidfd, err := unix.PidfdOpen(supervisorOf(t, socket), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	w.Close() // the last program ends
	if ended, err := readable(pidfd, 20*time.Second); !ended {
		t.Fatalf("the supervisor has not ended: %v", err)
	}
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("its socket: %v, want none", err)
	}
}

// TestRunInherits has signals that the caller ignores stay ignored, as nohup wants it.
func TestRunInherits(t *testing.T) {
	cmd := exec.Command("sh", "-c", `trap "" HUP INT; exec "$0" run grep SigIgn /proc/self/status`, os.Args[0])
	cmd.Env = append(runEnviron(t), childOfTest+"=main")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	_, mask, _ := strings.Cut(strings.TrimSpace(string(out)), "\t")
	ignored, err := strconv.ParseUint(mask, 16, 64)
	want := uint64(1)<<(syscall.SIGHUP-1) | 1<<(syscall.SIGINT-1)
	if err != nil || ignored&want != want {
		t.Errorf("%q, %v; want SIGHUP and SIGINT ignored", out, err)
	}
}

// TestBenchRun measures rows in which two programs that do not know us talk, bare and under 'gosmc run': their connections have to be
// moved then, of one at a time, of many, and of one of many that are short.
func TestBenchRun(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("no program for " + runtime.GOARCH)
	}
	benchPrograms(t, "run-connect", "run-fanout")
}

// TestBenchOneshot does so where clients leave short connections to TCP: one of many is moved.
func TestBenchOneshot(t *testing.T) {
	needsPrograms(t, "nginx", "ab")
	benchPrograms(t, "run-oneshot-nginx")
}

func needsPrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := exec.LookPath(name)
		if _, inSbin := os.Stat("/usr/sbin/" + name); err != nil && inSbin != nil {
			t.Skip(err)
		}
	}
}

// benchPrograms measures rows of programs in all ways.
func benchPrograms(t *testing.T, rows ...string) {
	t.Helper()
	out, err := exec.Command(os.Args[0], "bench", "--quick", "--json", "--only", strings.Join(rows, ",")).CombinedOutput()
	var report struct {
		Benchmarks []struct {
			Name    string
			Results []struct {
				Transport, Mode, Error string
				Median                 float64
				CPUEach                float64 `json:"cpu_us_each"`
			}
		}
	}
	if err != nil || json.Unmarshal(out, &report) != nil || len(report.Benchmarks) != len(rows) {
		t.Fatalf("bench: %v\n%s", err, out)
	}
	for _, b := range report.Benchmarks {
		if len(b.Results) < 2 {
			t.Errorf("%s has %d results", b.Name, len(b.Results))
		}
		for _, r := range b.Results {
			want := "gosmc run"
			if strings.HasPrefix(r.Transport, "tcp") {
				want = "TCP"
			}
			if r.Error != "" || r.Mode != want || r.Median <= 0 || r.CPUEach <= 0 {
				t.Errorf("%s: %+v, want something over %s", b.Name, r, want)
			}
		}
	}
}
