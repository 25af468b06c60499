package inspect

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/rundir"
)

func TestMountedReadOnly(t *testing.T) {
	const text = `21 1 0:20 / / rw,relatime - ext4 /dev/a rw
22 21 0:21 / /run rw,nosuid - tmpfs tmpfs rw
23 22 0:22 / /run/gosmc ro,nosuid - tmpfs tmpfs rw
24 21 0:23 / /ro ro - tmpfs tmpfs rw
25 24 0:23 /x /ro/but rw - tmpfs tmpfs rw
`
	for dir, want := range map[string]bool{"/": false, "/run": false, "/run/gosmc": true, "/run/gosmc/a": true, "/run/gosmcx": false, "/ro": true, "/ro/but/x": false, "/rob": false} {
		if got := mountedReadOnly(text, filepath.Clean(dir)); got != want {
			t.Errorf("mountedReadOnly(%s) = %t", dir, got)
		}
	}
}

// TestLeftOfStranger has another user put something else in the place of the file that says why a
// program is left to TCP. It is not written to, and a reader does not wait.
func TestLeftOfStranger(t *testing.T) {
	dir := t.TempDir()
	if err := rundir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := filepath.EvalSymlinks(self)
	if err != nil {
		t.Fatal(err)
	}
	run := rundir.Path(dir, rundir.Run)
	file := filepath.Join(run, leftName(filepath.Join(procs.Dir, "self"), program))
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("program\nof somebody"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, file); err != nil {
		t.Fatal(err)
	}
	if m := Left(dir); len(m) != 0 {
		t.Errorf("a link: Left = %q", m)
	}
	NoteLeft(dir, self, "no place")
	if text, err := os.ReadFile(victim); err != nil || string(text) != "program\nof somebody" {
		t.Errorf("what the link leads to has %q, %v", text, err)
	}
	if m := Left(dir); len(m) != 1 || m[program] != "no place" {
		t.Errorf("Left = %q, want what was noted", m)
	}
	os.Remove(file)
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(run, leftPrefix+"large"), make([]byte, maxLeft+1), 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan map[string]string, 1)
	go func() { read <- Left(dir) }()
	select {
	case m := <-read:
		if len(m) != 0 {
			t.Errorf("a FIFO, and a file that is too large: Left = %q", m)
		}
	case <-time.After(20 * time.Second):
		t.Error("a FIFO: Left waits for who writes there")
	}
	unix.Close(writer)
}
