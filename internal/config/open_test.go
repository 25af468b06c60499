package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadHostile reads a file whose size says nothing of its length.
func TestReadHostile(t *testing.T) {
	const endless = "/proc/kallsyms"
	if info, err := os.Stat(endless); err != nil || info.Size() != 0 {
		t.Skipf("needs %s", endless)
	}
	if f, err := Read(endless); err == nil || !strings.Contains(err.Error(), "no file of up to") || len(f.lines) > 0 {
		t.Errorf("Read has %d lines, %v", len(f.lines), err)
	}
}

// TestReadSwapped has somebody put a FIFO in the place of a file and back all the time: a read ends,
// and has what was there before or after.
func TestReadSwapped(t *testing.T) {
	dir := t.TempDir()
	path, fifo := filepath.Join(dir, "gosmc.conf"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(path, []byte("smc off\n"), 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, fifo, unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 5000 {
		f, err := Read(path)
		if n := len(f.Values(SMC)); err != nil || n > 1 {
			t.Fatalf("Read has %d lines, %v", n, err)
		}
	}
	close(quit)
	<-done
}

// TestReadLinks follows links of root and ours, and no others, wherever they are on the way.
func TestReadLinks(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("file"), []byte("smc off\n"), 0o600), os.Symlink("file", at("one")), os.Symlink(at("one"), at("two")),
		os.Symlink("circle", at("circle")), os.Symlink("nothing", at("lost")),
	); err != nil {
		t.Fatal(err)
	}
	check := func(name string, lines int, want string) {
		t.Helper()
		f, err := Read(at(name))
		if n := len(f.Values(SMC)); n != lines || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Read of %s has %d lines, %v; want %d, %q", name, n, err, lines, want)
		}
	}
	check("two", 1, "")
	check("lost", 0, "")
	check("circle", 0, "too many links")
	if got := Behind(at("two")); got != at("file") {
		t.Errorf("Behind = %s", got)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a link of another user")
	}
	if err := os.Lchown(at("one"), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	check("one", 0, "link of another user")
	check("two", 0, "link of another user")
	if got := Behind(at("two")); got != at("two") {
		t.Errorf("Behind = %s", got)
	}
}
