package run

import (
	"io"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lockLetter locks a letter as a program does that is about to take it, until the function that is returned is called.
func lockLetter(t *testing.T, s *supervisor, client uint16) (unlock func()) {
	t.Helper()
	fd, err := unix.Open(filepath.Join(filepath.Dir(s.path), resetsFile), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: letterLocks + int64(client), Len: 1}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	return func() { unix.Close(fd) }
}

// TestLetterReserved leaves a letter to the program that is about to take it, which might get another one in its place; but does not wait for long
// where somebody asks about that letterbox.
func TestLetterReserved(t *testing.T) {
	s, _ := stillSupervisor(t)
	for name, unlocks := range map[string]bool{"unlocked": true, "stopped": false} {
		t.Run(name, func(t *testing.T) {
			c := s.sendLetter(t)
			box := boxOf(c.socket.Port())
			unlock := lockLetter(t, s, c.socket.Port())
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

// TestLettersLocked has a program that locks letters and takes none keep the supervisor for a moment at most, now and then, however many letters there are.
func TestLettersLocked(t *testing.T) {
	s, _ := stillSupervisor(t)
	read := func(at string, n int, low, high time.Duration) {
		t.Helper()
		var ports []uint16
		for range n { // in one letterbox
			c := s.sendLetter(t)
			for boxOf(c.socket.Port()) != 0 {
				s.readBox(boxOf(c.socket.Port()), true)
				c = s.sendLetter(t)
			}
			ports = append(ports, c.socket.Port())
		}
		for _, port := range ports {
			defer lockLetter(t, s, port)()
		}
		had, start := len(s.offers), time.Now()
		s.readBox(0, true)
		if took := time.Since(start); took < low || took >= high {
			t.Errorf("%s: %d letters that are locked were read in %v, want at least %v and less than %v", at, n, took, low, high)
		}
		if got := len(s.offers) - had; got != n {
			t.Errorf("%s: %d of %d letters were read", at, got, n)
		}
	}
	read("first", 4, letterPatience, 3*letterPatience)
	read("soon afterwards", 1, 0, letterPatience)
	s.letters.rested = time.Now()
	read("later", 1, letterPatience, 3*letterPatience)
}

// TestLetterUnlocked has the supervisor leave no lock behind.
func TestLetterUnlocked(t *testing.T) {
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	s.readBox(boxOf(c.socket.Port()), false)
	if len(s.offers) != 1 {
		t.Fatalf("there are %d offers, want 1", len(s.offers))
	}
	lockLetter(t, s, c.socket.Port())()
}
