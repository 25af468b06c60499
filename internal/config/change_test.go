package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestChangeTwoAtOnce has many changes of one file at the same time, and finds all of them in it.
func TestChangeTwoAtOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "link")
	if err := os.Symlink("gosmc.conf", path); err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 8
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for j := range each {
				// A machine that is slow for 5 s must not be taken for a user that keeps the lock.
				err := changeWithin(time.Hour, path, func(f *File) (bool, error) {
					return f.Add(ListenPort, fmt.Sprint(1+i*each+j))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	f, err := Read(path)
	if got := len(f.Values(ListenPort)); err != nil || got != writers*each {
		t.Errorf("the file has %d of %d lines, %v", got, writers*each, err)
	}
}

// TestChangeUnlocked has another user hold the lock, and somebody write the file between the read
// and the write of a change: the change is refused, and the file stays as somebody wrote it.
func TestChangeUnlocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	if err := os.WriteFile(path, []byte("memory 1MiB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(d)
	if err := unix.Flock(d, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	err = changeWithin(0, path, func(f *File) (bool, error) {
		if err := os.WriteFile(path, []byte("memory 22MiB\n"), 0o600); err != nil {
			t.Error(err)
		}
		return true, f.Set(Memory, "3MiB")
	})
	if text, _ := os.ReadFile(path); !errors.Is(err, ErrChanged) || string(text) != "memory 22MiB\n" {
		t.Errorf("Change = %v, and the file has %q; want ErrChanged, and the other's line", err, text)
	}
	if err := changeWithin(0, path, func(f *File) (bool, error) { return true, f.Set(Memory, "4MiB") }); err != nil {
		t.Errorf("Change of a file whose lock another user has: %v, want no error", err)
	}
}
