package program

import (
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const line = "4711 (a (b) c) S 42 1 1 0 -1 4194560 100 0 0 0 250 50 20 10 20 0 1 0 100 1000 10 18446744073709551615\n"
	if pid, p, ok := parseStat([]byte(line)); !ok || pid != 4711 || p.parent != 42 || p.zombie || math.Abs(p.cpu-3.3) > 1e-9 {
		t.Errorf("parseStat = %d, %+v, %t; want 4711, a child of 42 with 3.3 s", pid, p, ok)
	}
	for _, bad := range []string{"", "4711", "4711 (x", "x (y) S 1", "4711 (x) S 42 1 1 0 -1 4194560 100 0 0 0 250 50 20"} {
		if _, _, ok := parseStat([]byte(bad)); ok {
			t.Errorf("parseStat(%q) succeeds", bad)
		}
	}
	if _, p, ok := parseStat([]byte(strings.Replace(line, " S ", " Z ", 1))); !ok || !p.zombie {
		t.Errorf("a zombie is %+v, %t", p, ok)
	}
}

// TestProcesses counts the time of a child, and of the processes that the child has waited for.
func TestProcesses(t *testing.T) {
	cmd := exec.Command("sh", "-c", `n=0; (while [ $n -lt 100000 ]; do n=$((n + 1)); done); echo; read x`)
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
	out.Read(make([]byte, 1)) // the work is done
	p, ok := processes()[cmd.Process.Pid]
	if !ok || p.parent != os.Getpid() || p.cpu <= 0 {
		t.Errorf("the child is %+v, %t; want one of ours that has used a processor", p, ok)
	}
	if _, ok := processes()[os.Getpid()]; ok {
		t.Error("we are one of our own descendants")
	}
	in.Close()
	cmd.Wait()
}

// TestOrphans has the time of a process counted although its parent did not wait for it, as the
// time of a supervisor is.
func TestOrphans(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	before := processes()
	cmd := exec.Command("sh", "-c", `(n=0; while [ $n -lt 100000 ]; do n=$((n + 1)); done) & :`)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if cpu := orphans(time.Minute, before); cpu <= 0 {
		t.Errorf("orphans = %v, want the time of the loop", cpu)
	}
	for pid, p := range processes() {
		if _, known := before[pid]; !known && p.parent == os.Getpid() {
			t.Errorf("process %d is left", pid)
		}
	}
}

// TestMissing checks the message that names the packages to install.
func TestMissing(t *testing.T) {
	w := &Work{needs: []string{"sh", "/bin/s*", "no-such-program"}, packages: "a-package"}
	if got, want := w.Missing(), "no-such-program is not installed: apt-get install a-package"; got != want {
		t.Errorf("Missing() = %q, want %q", got, want)
	}
	w.needs = w.needs[:2]
	if got := w.Missing(); got != "" {
		t.Errorf("Missing() = %q, want nothing", got)
	}
}
