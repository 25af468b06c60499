package run

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lockedElsewhere has another process lock an end until the function that is returned is called.
func lockedElsewhere(t *testing.T, end int) (unlock func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "locks")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/locks.c")
	fd, err := unix.FcntlInt(uintptr(end), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "end")
	defer file.Close()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, 1)); err != nil {
		t.Fatal(err, cmd.Wait())
	}
	return func() {
		if _, err := stdin.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestLetterReserved leaves a letter to the program that is about to take it, which might get another one in its place; but does not wait for long
// where somebody asks about that letterbox.
func TestLetterReserved(t *testing.T) {
	s, _ := stillSupervisor(t)
	for name, unlocks := range map[string]bool{"unlocked": true, "stopped": false} {
		t.Run(name, func(t *testing.T) {
			c := s.sendLetter(t)
			box := boxOf(c.socket.Port())
			unlock := lockedElsewhere(t, c.other)
			had := len(s.offers)
			s.readBox(box, false)
			if len(s.offers) != had {
				t.Fatal("the supervisor took a letter that a program is about to take")
			}
			unlocked := make(chan struct{})
			release := func() { unlock(); close(unlocked) }
			if unlocks {
				time.AfterFunc(10*letterPause, release)
			}
			s.readBox(box, true)
			if len(s.offers) != had+1 {
				t.Errorf("there are %d offers when somebody asks, want %d", len(s.offers), had+1)
			}
			if !unlocks {
				release()
			}
			<-unlocked
		})
	}
}
