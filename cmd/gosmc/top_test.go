package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/top"
)

// TestTop has a connection shown in a pipe, by service and by program, and as JSON.
func TestTop(t *testing.T) {
	l := start(t, "listen", "--echo", "--json", "-v", "127.0.0.1:0")
	addr := l.addr()
	c := start(t, "connect", "--require", "smc-d", addr)
	if _, err := io.WriteString(c.stdin, "x"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testTimeout); c.stdout.String() == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no echo")
		}
	}
	dir, port := os.Getenv("GOSMC_DIR"), addr[strings.LastIndexByte(addr, ':')+1:]
	got := gosmc(t, "", "top", "--dir", dir, "--once", "-d", "100ms")
	if lines := strings.Split(strings.TrimSpace(got.stdout), "\n"); got.code != exitOK || len(lines) != 2 || !strings.Contains(lines[0], "Wakeups/s") || !strings.HasPrefix(strings.TrimSpace(lines[1]), port+" ") {
		t.Errorf("gosmc top --once = %+v", got)
	}
	got = gosmc(t, "", "top", "--dir", dir, "--once", "-d", "100ms", "--by", "program")
	if !strings.HasPrefix(strings.TrimSpace(got.stdout), "PID") || strings.Count(got.stdout, "\n") != 2 || !strings.Contains(got.stdout, fmt.Sprint(os.Getpid())) {
		t.Errorf("gosmc top --by program = %+v", got)
	}
	if got := gosmc(t, "", "top", "--dir", dir, "--once", "-d", "100ms", "mode", "tcp"); strings.Count(got.stdout, "\n") != 1 {
		t.Errorf("gosmc top mode tcp = %+v", got)
	}
	got = gosmc(t, "", "top", "--dir", dir, "-n", "2", "-d", "100ms", "--json")
	d := json.NewDecoder(strings.NewReader(got.stdout))
	for range 2 {
		var r top.Report
		if err := d.Decode(&r); err != nil || len(r.Activity) != 1 || r.Activity[0].Modes["SMC-D"] != 1 || r.Seconds < 0.1 || r.Activity[0].In == nil {
			t.Errorf("gosmc top --json = %+v, %v", r, err)
		}
	}
	if d.More() {
		t.Errorf("gosmc top --json -n 2 prints more than two objects: %q", got.stdout)
	}
}

// TestTopFlags checks command lines that are not understood.
func TestTopFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--by host": "want service or program", "--sort size": "want bytes", "-d 1ms": "want a time from 100ms", "-d 0": "want a time from 100ms", "-d x": "want a time such as", "-n -1": "want a number from 0", "x": `filter "x"`,
	} {
		if got := gosmc(t, "", append([]string{"top"}, strings.Fields(args)...)...); got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("gosmc top %s = %d, %q; want %q", args, got.code, got.stderr, want)
		}
	}
}

// A testTerminal is a terminal, and the text that it got and nobody has awaited.
type testTerminal struct {
	t             *testing.T
	master, slave *os.File
	shown         chan string
	seen          string
}

func newTestTerminal(t *testing.T) *testTerminal {
	t.Helper()
	t.Setenv("TERM", "xterm")
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs a terminal: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	tty := &testTerminal{t: t, master: master, slave: slave, shown: make(chan string, 1)}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			if err != nil {
				return
			}
			select {
			case tty.shown <- string(b[:n]):
			case <-t.Context().Done():
				return
			}
		}
	}()
	return tty
}

func (tty *testTerminal) termios() unix.Termios {
	tty.t.Helper()
	termios, err := unix.IoctlGetTermios(int(tty.slave.Fd()), unix.TCGETS)
	if err != nil {
		tty.t.Fatal(err)
	}
	return *termios
}

// start starts a command on the terminal.
func (tty *testTerminal) start(cmd *exec.Cmd) {
	tty.t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.slave, tty.slave, tty.slave
	if err := cmd.Start(); err != nil {
		tty.t.Fatal(err)
	}
	tty.t.Cleanup(func() { cmd.Process.Kill() })
}

// types has somebody type something, and awaits text.
func (tty *testTerminal) types(keys, want string) {
	tty.t.Helper()
	if _, err := io.WriteString(tty.master, keys); err != nil {
		tty.t.Fatal(err)
	}
	for timeout := time.After(testTimeout); ; {
		if at := strings.Index(tty.seen, want); at >= 0 {
			tty.seen = tty.seen[at+len(want):]
			return
		}
		select {
		case s := <-tty.shown:
			tty.seen += s
		case <-timeout:
			tty.t.Fatalf("the terminal has no %q: %q", want, tty.seen)
		}
	}
}

// TestTopDumb has a terminal that cannot move its cursor get tables, as a pipe does.
func TestTopDumb(t *testing.T) {
	tty := newTestTerminal(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "top", "--once", "-d", "100ms", "--dir", t.TempDir())
	cmd.Env = append(runEnviron(t), "TERM=dumb")
	tty.start(cmd)
	var first string
	for !strings.Contains(first, "\n") {
		select {
		case s := <-tty.shown:
			first += s
		case <-time.After(testTimeout):
			t.Fatalf("the terminal has %q", first)
		}
	}
	if !strings.HasPrefix(first, "Port  Server") {
		t.Errorf("gosmc top on a dumb terminal shows %q", first)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("gosmc top ends with %v", err)
	}
}

// TestTopTerminal has a view on a terminal take keys at once, although the next look is far away, and
// give the terminal back as it was.
func TestTopTerminal(t *testing.T) {
	tty := newTestTerminal(t)
	was := tty.termios()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "top", "-d", "3600", "--dir", t.TempDir())
	cmd.Env = runEnviron(t)
	tty.start(cmd)
	tty.types("", "sorted by bytes")
	tty.types("t", "sorted by tcp")
	tty.types("h", "b c n t f w  order by bytes")
	tty.types("q", "Wakeups/s  W") // any key goes back
	tty.types("?", "Any key goes back.")
	tty.types("p", "Wakeups/s  W")
	tty.types("p", "PID")
	tty.types("q", "\x1b[?1049l")
	if err := cmd.Wait(); err != nil {
		t.Errorf("gosmc top ends with %v", err)
	}
	if now := tty.termios(); now != was {
		t.Errorf("the terminal is left as %+v; it was %+v", now, was)
	}
}

// TestTopTypedFilter has a filter that is typed choose connections at once: none is new for that.
func TestTopTypedFilter(t *testing.T) {
	l := start(t, "listen", "--echo", "--json", "-v", "127.0.0.1:0")
	addr := l.addr()
	c := start(t, "connect", "--require", "smc-d", addr)
	if _, err := io.WriteString(c.stdin, "x"); err != nil {
		t.Fatal(err)
	}
	tty := newTestTerminal(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "top", "-d", "3600", "--dir", os.Getenv("GOSMC_DIR"))
	cmd.Env = os.Environ()
	tty.start(cmd)
	tty.types("", "1 of 1 outside TCP (100 %): 1 SMC-D")
	tty.types("/mode tcp\r", "no connection")
	tty.types("", "q: end   [mode tcp]")
	tty.types("/\x15mode\r", "filter mode needs a value")
	tty.types("/\x15mode smc-d\r", "1 of 1 outside TCP")
	tty.types("", "0 B    0 B   0.00") // in, out, and connections that are new
	tty.types("q", "\x1b[?1049l")
	if err := cmd.Wait(); err != nil {
		t.Errorf("gosmc top ends with %v", err)
	}
}

// TestTopStops has Ctrl-Z give the terminal to the shell as it was, and fg bring the view back.
func TestTopStops(t *testing.T) {
	tty := newTestTerminal(t)
	cmd := exec.CommandContext(t.Context(), "sh", "-i", "-m")
	cmd.Env = append(runEnviron(t), "PS1=ready$ ", "ENV=", "TOP="+os.Args[0]+" top -d 3600 --dir "+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // of standard input
	tty.start(cmd)
	tty.types("", "ready$ ")
	tty.types("$TOP\n", "sorted by bytes")
	const cooked = unix.ICANON | unix.ECHO
	for range 2 {
		tty.types("\x1a", "\x1b[?1049l")
		tty.types("", "ready$ ")
		if now := tty.termios(); now.Lflag&cooked != cooked {
			t.Errorf("the shell has the terminal as %+v", now)
		}
		tty.types("echo sto''pped\n", "stopped")
		tty.types("fg\n", "\x1b[?1049h")
		tty.types("", "sorted by")
		if now := tty.termios(); now.Lflag&cooked != 0 {
			t.Errorf("after fg the terminal is %+v", now)
		}
	}
	tty.types("t", "sorted by tcp")
	tty.types("q", "\x1b[?1049l")
	tty.types("", "ready$ ")
	if now := tty.termios(); now.Lflag&cooked != cooked {
		t.Errorf("the terminal is left as %+v", now)
	}
	tty.types("exit\n", "exit")
	if err := cmd.Wait(); err != nil {
		t.Errorf("the shell ends with %v", err)
	}
}
