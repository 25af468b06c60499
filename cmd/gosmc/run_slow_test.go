package main

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/procs"
)

// acceptProgram prints the port of its listener, and a line for each connection.
const acceptProgram = `import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
kept = []
while True:
    kept.append(s.accept())
    print("accepted", flush=True)
`

// markedSize is the segment size of connections that were offered by letter: MARK_MAXSEG of preload/src/letters.c.
const markedSize = 16381

// TestRunSlow has a server whose supervisor does not answer wait for it once, and not for each connection that claims to be offered.
func TestRunSlow(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	cmd := runCommand(t, runEnviron(t), python, "-c", acceptProgram)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	lines := bufio.NewReader(out)
	port, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, markedSize) })
		return err
	}}
	connect := func() {
		t.Helper()
		c, err := dialer.DialContext(t.Context(), "tcp", "127.0.0.1:"+strings.TrimSpace(port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if line, err := lines.ReadString('\n'); line != "accepted\n" {
			t.Fatal(fmt.Sprintf("the server says %q", line), err)
		}
	}
	connect()
	supervisor := supervisorOf(t, procs.Supervisor(cmd.Process.Pid))
	if err := unix.Kill(supervisor, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(supervisor, unix.SIGCONT)
	begin := time.Now()
	connect()
	connect()
	if took := time.Since(begin); took > 10*time.Second { // four times two seconds for each before
		t.Errorf("two connections took %v", took)
	}
}
