package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/netcat"
)

// hostLine has the fields of dump --pid --json that tests look at.
type hostLine struct {
	dumpedEvent
	Host    string
	PID     int
	Command string
	Event   string
	Sent    *bool
	Mode    string
	Dir     string
	Info    string
	Fields  map[string]any
}

// ownRunDir makes a run directory for the test alone.
func ownRunDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("GOSMC_DIR", dir)
	return dir
}

// talk makes a connection to the listener and closes it.
func talk(t *testing.T, addr string) {
	t.Helper()
	if got := gosmc(t, "text", "connect", "--require", "smc-d", addr); got.code != exitOK || got.stdout != "text" {
		t.Fatalf("connect = %d, %q, %q, want the echo", got.code, got.stdout, got.stderr)
	}
}

// The events that a host remembers are shown as a capture would be.
func TestDumpPID(t *testing.T) {
	dir := ownRunDir(t)
	l := start(t, "listen", "--echo", "--json", "-v", "127.0.0.1:0")
	addr := l.addr()
	talk(t, addr)
	pid := strconv.Itoa(os.Getpid())

	got := gosmc(t, "", "dump", "--pid", pid, "--json", "-c", "7")
	if got.code != exitOK || !strings.HasSuffix(got.stderr, "gosmc: 7 messages shown, 0 lost\n") {
		t.Fatalf("gosmc dump --pid = %d, %q", got.code, got.stderr)
	}
	var lines []hostLine
	for line := range strings.Lines(got.stdout) {
		var h hostLine
		unmarshal(t, line, &h)
		lines = append(lines, h)
	}
	var names []string
	for i, h := range lines {
		names = append(names, h.Name)
		if h.PID != os.Getpid() || h.Host == "" || h.Command == "" || h.Packet != i+1 || (h.Sent == nil) != (h.Event == "established" || h.Event == "state") {
			t.Errorf("message %d = %+v, want host, process and number", i, h)
		}
	}
	if want := []string{"Expect", "Accepted", "Proposal", "Accept", "Confirm", "established", "state"}; !slices.Equal(names, want) {
		t.Fatalf("messages = %q, want %q", names, want)
	}
	p := lines[2]
	if *p.Sent || p.Event != "clc" || p.Family != "CLC" || p.Dst != addr || p.Dir != "client > server" || p.Conn != 1 || p.Fields["smc.proposal.eid"] == nil && len(p.Fields) < 10 {
		t.Errorf("Proposal = %+v, want one that was received, with its fields", p)
	}
	if a := lines[3]; !*a.Sent || a.Src != addr || a.Dir != "server > client" {
		t.Errorf("Accept = %+v, want one that was sent", a)
	}
	if s := lines[6]; s.Family != "note" || s.Mode != "SMC-Dv2.1" || s.Info != "note state Init > Active on Established" {
		t.Errorf("state = %+v", s)
	}

	for _, tt := range []struct {
		args string
		want []string // expressions, a line each
	}{
		{"-c 1 --history 1 --type clc", nil}, // there is one event from before, and it is none of CLC
		{"-c 1 --type accept", []string{`^\S+  sent     4     0\.000000  127\.0\.0\.1:\d+ > 127\.0\.0\.1:\d+ +c1      CLC Accept v2\.1 SMC-D first-contact gid=`}},
		{"-c 2 --type proposal,confirm --time none", []string{`^\S+  recv     3  127.* CLC Proposal `, `^\S+  recv     5  127.* CLC Confirm `}},
		{"-c 1 -v --type decline,accept", []string{` CLC Accept `, `^    eyecatcher +SMC-D$`, `^    type +2 \(Accept\)$`}},
		{"-c 1 -x --type cdc", []string{`recv.* CDC SMC-D prod=0000:00000004 cons=\S+ done-writing`, `^0x0000  fe  +type: 254 \(CDC\)`}},
		{"-c 1 --dir " + dir + " --type confirm", []string{`CLC Confirm`}},
		{"-c 1 --port 1 --time none", nil},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		stdout := &noticingWriter{got: make(chan struct{})}
		var stderr bytes.Buffer
		if tt.want == nil { // it would wait for lines that do not come: for half a second
			time.AfterFunc(500*time.Millisecond, cancel)
		}
		code := run(ctx, append([]string{"dump", "--pid", pid}, strings.Fields(tt.args)...), strings.NewReader(""), stdout, &stderr)
		cancel()
		text := stdout.b.String()
		if code != exitOK || (text == "") != (tt.want == nil) {
			t.Errorf("gosmc dump %s = %d, %q, %q", tt.args, code, text, stderr.String())
		}
		for _, want := range tt.want {
			if !regexp.MustCompile(`(?m)` + want).MatchString(text) {
				t.Errorf("gosmc dump %s:\n%swant a line like %s", tt.args, text, want)
			}
		}
	}
}

// A watchingWriter tells when its content has some text.
type watchingWriter struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{} // has a value when there is more
}

func newWatchingWriter() *watchingWriter { return &watchingWriter{changed: make(chan struct{}, 1)} }

func (w *watchingWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
	return w.b.Write(b)
}

func (w *watchingWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// await waits until the content has text count times.
func (w *watchingWriter) await(t *testing.T, text string, count int) {
	t.Helper()
	timeout := time.After(testTimeout)
	for strings.Count(w.String(), text) < count {
		select {
		case <-w.changed:
		case <-timeout:
			t.Fatalf("not %d times %q in %q", count, text, w.String())
		}
	}
}

// All hosts are shown, also those that come and go, in the order in which things happened; cursors if wanted.
func TestDumpAll(t *testing.T) {
	dir := ownRunDir(t)
	ctx, interrupt := context.WithTimeout(t.Context(), testTimeout)
	defer interrupt()
	stdout, stderr := newWatchingWriter(), newWatchingWriter()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"dump", "--all", "--dir", dir, "--cursors", "10ms", "--time", "none"}, strings.NewReader(""), stdout, stderr)
	}()
	stderr.await(t, "there is no host in "+dir+" yet\n", 1) // --dir: this machine may have others
	l := start(t, "listen", "--echo", "--json", "-v", "127.0.0.1:0")
	addr := l.addr()
	c := start(t, "connect", "--require", "smc-d", addr)
	if _, err := io.WriteString(c.stdin, "question"); err != nil {
		t.Fatal(err)
	}
	stdout.await(t, " moved=8 ", 4) // both directions, of both ends
	c.stdin.Close()
	if code := c.wait(); code != exitOK {
		t.Fatalf("connect = %d", code)
	}
	stdout.await(t, "note closed SMC-D in=8 out=8", 2)
	stderr.await(t, ": the host was closed\n", 1)
	interrupt()
	if got := <-code; got != exitOK || !strings.HasSuffix(stderr.String(), " messages shown, 0 lost\n") {
		t.Errorf("gosmc dump --all, interrupted = %d, %q", got, stderr.String())
	}
	var order []string
	for line := range strings.Lines(stdout.String()) {
		if strings.Contains(line, " CLC ") {
			words := strings.Fields(line)
			order = append(order, words[1]+" "+words[slices.Index(words, "CLC")+1])
			if !slices.Contains(words, "c1") {
				t.Errorf("line %q is not of the only connection, c1", line)
			}
		}
	}
	if want := []string{"sent Proposal", "recv Proposal", "sent Accept", "recv Accept", "sent Confirm", "recv Confirm"}; !slices.Equal(order, want) {
		t.Errorf("order of both ends' messages = %q, want %q", order, want)
	}
}

// A process that dies is no failure, and is told from a host that is closed.
func TestDumpProcessEnds(t *testing.T) {
	ownRunDir(t)
	child := exec.Command(os.Args[0], "listen", "--echo", "--json", "-v", "127.0.0.1:0")
	stderr, err := child.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Process.Kill()
	var e netcat.ListenEvent
	if err := json.NewDecoder(stderr).Decode(&e); err != nil || e.Local == "" {
		t.Fatalf("the child says %+v, %v", e, err)
	}
	for _, args := range [][]string{
		{"--pid", strconv.Itoa(child.Process.Pid)},
		{"--name", filepath.Base(os.Args[0])},
		{"--name", process(child.Process.Pid, filepath.Base(os.Args[0]))}, // as ss shows it
	} {
		talk(t, e.Local)
		if got := gosmc(t, "", append([]string{"dump", "-c", "5"}, args...)...); got.code != exitOK || strings.Count(got.stdout, "\n") != 5 {
			t.Errorf("gosmc dump %q = %d, %q, %q", args, got.code, got.stdout, got.stderr)
		}
	}
	out := newWatchingWriter()
	var errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(t.Context(), []string{"dump", "--pid", strconv.Itoa(child.Process.Pid)}, strings.NewReader(""), out, &errs)
	}()
	out.await(t, "CLC Confirm", 3)
	child.Process.Kill()
	child.Wait()
	if got := <-code; got != exitOK || !strings.Contains(errs.String(), fmt.Sprintf("gosmc: %d.1: the process has ended\n", child.Process.Pid)) {
		t.Errorf("gosmc dump of a process that was killed = %d, %q", got, errs.String())
	}
	// It has left its socket behind, which is nobody's.
	want := fmt.Sprintf("gosmc: there is no process %d\n", child.Process.Pid)
	if got := gosmc(t, "", "dump", "--pid", strconv.Itoa(child.Process.Pid)); got.code != exitFailure || got.stderr != want {
		t.Errorf("gosmc dump of a dead process = %d, %q, want 1, %q", got.code, got.stderr, want)
	}
}

func TestDumpHostsErrors(t *testing.T) {
	dir := ownRunDir(t)
	for _, tt := range []struct {
		args, want string
		code       int
	}{
		{"--pid 1 --all", "only one of --pid, --name and --all", exitUsage},
		{"--pid 1 x.pcap", "no file, no -i", exitUsage},
		{"--all -i lo", "no file, no -i", exitUsage},
		{"--pid -1", "want the number of a process", exitUsage},
		{"--all --flow", "need packets", exitUsage},
		{"--all --write x.pcapng", "need packets", exitUsage},
		{"--all --json -v", "only one of", exitUsage},
		{"--all --promiscuous", "needs -i", exitUsage},
		{"--all --cursors 1ms", "want 10ms to 1h", exitUsage},
		{"--all --history -1", "want 0 or more", exitUsage},
		{"--cursors 1s x.pcap", "need --pid, --name or --all", exitUsage},
		{"--dir /tmp x.pcap", "need --pid, --name or --all", exitUsage},
		{"--name nobody", `no host in the run directories is called "nobody"; 'gosmc ss -a' shows those that there are`, exitFailure},
		{"--name nobody --dir " + dir, "no host in " + dir, exitFailure},
		{"--pid " + strconv.Itoa(os.Getpid()), "has no host in the run directories: it has not used gosmc yet, or has a GOSMC_DIR of its own, see --dir", exitFailure},
	} {
		got := gosmc(t, "", append([]string{"dump"}, strings.Fields(tt.args)...)...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.want) || got.stdout != "" {
			t.Errorf("gosmc dump %s = %d, %q, want %d, %q", tt.args, got.code, got.stderr, tt.code, tt.want)
		}
	}
}
