package procs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestSearchAgain has a search ask no process again that was asked before, except one that may have
// become ours.
func TestSearchAgain(t *testing.T) {
	const ours = proto.EnvSocket + "=/here/socket\x00"
	proc := t.TempDir()
	write := func(pid, name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(path ...string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(append([]string{proc}, path...)...)); err != nil {
			t.Fatal(err)
		}
	}
	s := &Search{proc: proc, socket: "/here/socket"}
	look := func(want string) {
		t.Helper()
		if pids, sure := s.Look(); fmt.Sprint(pids, sure) != want {
			t.Errorf("look() = %v, %v; want %s", pids, sure, want)
		}
	}

	write("10", "environ", "A=B\x00") // of somebody else
	write("11", "environ", "")        // a zombie
	write("11", "stat", "11 (sh) Z 1 11 11")
	write("12", "environ", "") // in the middle of exec
	write("12", "cmdline", "")
	if err := os.Symlink("sh", filepath.Join(proc, "12", "exe")); err != nil {
		t.Fatal(err)
	}
	look("[] false")
	remove("10", "environ") // a search that asks it now is not sure
	look("[] false")        // because of 12
	write("12", "environ", "A=B\x00")
	look("[] true")
	remove("10")
	look("[] true")
	write("10", "environ", ours) // another process
	look("[10] true")
}

// TestSearchDelay bounds how long, and how often, a supervisor looks for programs on a machine that is never still.
func TestSearchDelay(t *testing.T) {
	start := time.Now()
	now, looks := start, 1
	s := &Search{}
	for s.Delay(now) {
		pause := s.next.Sub(now)
		if pause < time.Millisecond || pause > 100*time.Millisecond {
			t.Errorf("the pause after look %d is %v", looks, pause)
		}
		now = s.next
		looks++
	}
	if total := now.Sub(start); total < time.Second || total > 2*time.Second || looks > 30 {
		t.Errorf("a supervisor looks %d times, for %v", looks, total)
	}
}
