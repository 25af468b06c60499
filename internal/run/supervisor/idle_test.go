package supervisor

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/run/proto"
)

// sharedMemory returns how many bytes of shared memory a process has in its page tables.
func sharedMemory(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "RssShmem:")
	fields := strings.Fields(rest)
	if !ok || len(fields) == 0 {
		t.Fatalf("no RssShmem in %s", text)
	}
	n, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// TestRingsIdle has connections carry as much as fills their rings, and be quiet: the memory of their rings is given back, whatever call the program waits in,
// and all of them carry the right bytes afterwards.
func TestRingsIdle(t *testing.T) {
	library := committedLibrary(t)
	program := filepath.Join(t.TempDir(), "idle")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/idle.c")
	const (
		many  = 40
		bytes = 2 << 20
		// held is a bound: pages with the header and for one side, of each end, and the rest that
		// is too little to be given back.
		held = many * (4*4<<10 + 64<<10)
	)
	for _, how := range []string{"epoll", "poll", "select", "receive", "signals", "forked", "limits"} {
		t.Run(how, func(t *testing.T) {
			pid, finish := startIdle(t, program, library, nil, how, strconv.Itoa(many), strconv.Itoa(bytes))
			first := sharedMemory(t, pid)
			now := first
			for until := time.Now().Add(time.Minute); now > held; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(until) {
					t.Fatalf("of %d bytes of shared memory %d are there still, want at most %d", first, now, held)
				}
				now = sharedMemory(t, pid)
			}
			t.Logf("%d bytes, and then %d", first, now)
			if first < 2*held { // the rings of the first may be given back by then
				t.Errorf("only %d bytes were in rings", first) // or nothing is shown
			}
			finish()
		})
	}
}

// TestRingsBeginAnew has connections carry as much as fills their rings twice, a part at a time,
// which is read before the next. They keep as much memory of their rings as two parts take.
func TestRingsBeginAnew(t *testing.T) {
	library := committedLibrary(t)
	program := filepath.Join(t.TempDir(), "idle")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/idle.c")
	const (
		many = 40
		part = 64 << 10
		most = many * (4*4<<10 + 2*2*part) // shared memory is counted at both ends, which this process has
	)
	pid, finish := startIdle(t, program, library, []string{"AHEAD=" + strconv.Itoa(part)}, "poll", strconv.Itoa(many), strconv.Itoa(2<<20))
	if n := sharedMemory(t, pid); n > most || n == 0 { // a machine that is busy may see the rest after a second
		t.Errorf("%d bytes of shared memory, want some, and at most %d", n, most)
	}
	finish()
}

// startIdle starts testdata/idle.c and waits until it is quiet. finish has all its connections carry something again.
func startIdle(t *testing.T, program, library string, environ []string, args ...string) (pid int, finish func()) {
	t.Helper()
	s := newTestSupervisor(t)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(append(os.Environ(), "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path), environ...)
	cmd.Stderr = os.Stderr
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
	t.Cleanup(func() { stop(); cmd.Wait() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the program has ended")
	}
	return cmd.Process.Pid, func() {
		t.Helper()
		fmt.Fprintln(in)
		if !lines.Scan() || lines.Text() != "done" {
			t.Errorf("the program says %q", lines.Text())
		}
	}
}

// TestRingsIdleStruck has a signal end a call that waits, though it comes while the library gives memory of rings back.
func TestRingsIdleStruck(t *testing.T) {
	program := filepath.Join(t.TempDir(), "struck")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/struck.c")
	cases := []string{"poll", "ppoll", "select", "pselect", "epoll", "epoll-mask", "receive"}
	t.Run("bare", func(t *testing.T) { runRings(t, program, cases, 1) })
	t.Run("moved", func(t *testing.T) {
		runRings(t, program, cases, 1, "MOVED=1", "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+newTestSupervisor(t).Path)
	})
}
