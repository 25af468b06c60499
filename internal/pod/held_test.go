package pod

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/bpf"
)

// exists reports whether a path is there.
func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// leave makes a directory as a maker leaves it behind that was killed.
func leave(t *testing.T, parent string) string {
	t.Helper()
	f, err := makeHeld(parent)
	if err != nil {
		t.Fatal(err)
	}
	f.Close() // as the kernel does
	t.Cleanup(func() { os.Remove(f.Name()) })
	return f.Name()
}

// TestSweep checks that empty directories are removed whose makers have ended, and no others.
func TestSweep(t *testing.T) {
	root := t.TempDir()
	below := filepath.Join(root, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	gone := []string{leave(t, root), leave(t, below)}
	held, err := makeHeld(below)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	full := leave(t, root)
	if err := os.Mkdir(filepath.Join(full, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	link, file, other := filepath.Join(root, heldPrefix+"link"), filepath.Join(root, heldPrefix+"file"), filepath.Join(root, "gosmc-pod-1")
	stay := []string{below, held.Name(), full, link, file, other}
	for _, err := range []error{os.Symlink(below, link), os.WriteFile(file, nil, 0o644), os.Mkdir(other, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		foreign := leave(t, root)
		if err := os.Chown(foreign, 54311, 54311); err != nil {
			t.Fatal(err)
		}
		stay = append(stay, foreign)
	}
	sweepBelow(root)
	for _, path := range gone {
		if exists(t, path) {
			t.Errorf("%s was left behind, and stays", path)
		}
	}
	for _, path := range stay {
		if !exists(t, path) {
			t.Errorf("%s was removed", path)
		}
	}
}

// TestNewSweeps checks that a site removes the directories and control groups of one that was killed.
func TestNewSweeps(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make control groups")
	}
	t.Setenv("TMPDIR", t.TempDir())
	root, err := bpf.CgroupRoot()
	if err != nil {
		t.Skip(err)
	}
	parent, err := os.MkdirTemp(root, "gosmc-test-") // not the group in which this test runs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(parent) })
	used, err := makeHeld(parent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(used.Name()); used.Close() })
	dir, group := leave(t, os.TempDir()), leave(t, parent)
	s, err := New(t.Context())
	if errors.Is(err, ErrNoPairing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if exists(t, dir) || exists(t, group) {
		t.Errorf("left behind: %s %t, %s %t", dir, exists(t, dir), group, exists(t, group))
	}
	if !exists(t, s.Dir) || !exists(t, s.group.Name()) || !exists(t, used.Name()) {
		t.Error("what is in use was removed")
	}
}
