package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSwitchOff has a directory that is switched off be of no use, and be the same afterwards.
func TestSwitchOff(t *testing.T) {
	dir := t.TempDir()
	if changed, err := SwitchOff(dir); changed || err != nil {
		t.Errorf("SwitchOff of a directory that nobody uses = %v, %v", changed, err)
	}
	if err := Prepare(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(Path(dir, Listen), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := SwitchOn(dir); changed || err != nil || IsOff(dir) {
		t.Errorf("SwitchOn of one that is on = %v, %v", changed, err)
	}
	if changed, err := SwitchOff(dir); !changed || err != nil || !IsOff(dir) {
		t.Fatalf("SwitchOff = %v, %v, off %v", changed, err, IsOff(dir))
	}
	if err := Prepare(dir); !errors.Is(err, ErrOff) {
		t.Errorf("Prepare of one that is off = %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("what is in it is found")
	}
	if changed, err := SwitchOff(dir); changed || err != nil {
		t.Errorf("SwitchOff twice = %v, %v", changed, err)
	}
	if changed, err := SwitchOn(dir); !changed || err != nil || IsOff(dir) {
		t.Errorf("SwitchOn = %v, %v, off %v", changed, err, IsOff(dir))
	}
	if _, err := os.Stat(file); err != nil || Prepare(dir) != nil {
		t.Errorf("what was in it: %v", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left behind: %v, %v", names, err)
	}

	// A call that was interrupted can be done again.
	if err := os.WriteFile(filepath.Join(dir, offName()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := SwitchOff(dir); !changed || err != nil {
		t.Errorf("SwitchOff after one that was interrupted = %v, %v", changed, err)
	}
	for _, part := range parts(t, dir) {
		if err := os.RemoveAll(part); err != nil {
			t.Fatal(err)
		}
	}
	if changed, err := SwitchOn(dir); !changed || err != nil || Prepare(dir) != nil {
		t.Errorf("SwitchOn without what was there = %v, %v", changed, err)
	}
}

// parts returns the directories that SwitchOff has moved aside.
func parts(t *testing.T, dir string) (list []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, offName()+"*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if info, err := os.Lstat(name); err == nil && info.IsDir() {
			list = append(list, name)
		}
	}
	return list
}

// sharedDir returns a run directory that all users share, and needs root, who can make files of others.
func sharedDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSwitchOffSquatted has nobody keep root from switching a shared directory off, or undo that, by a file that it has put there before.
func TestSwitchOffSquatted(t *testing.T) {
	const stranger = 61001
	for what, put := range map[string]func(string) error{
		"file":      func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"link":      func(path string) error { return os.Symlink("/etc", path) },
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o644) },
	} {
		dir := sharedDir(t)
		squatted := filepath.Join(dir, offName())
		if err := errors.Join(put(squatted), os.Lchown(squatted, stranger, stranger), Prepare(dir)); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(Path(dir, Listen), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if changed, err := SwitchOff(dir); !changed || err != nil || !IsOff(dir) {
			t.Errorf("%s: SwitchOff = %v, %v", what, changed, err)
			continue
		}
		if info, err := os.Lstat(Own(dir)); err != nil || !isOf(info, 0) {
			t.Errorf("%s: the file is not root's: %v", what, err)
		}
		if changed, err := SwitchOff(dir); changed || err != nil {
			t.Errorf("%s: SwitchOff twice = %v, %v", what, changed, err)
		}
		if changed, err := SwitchOn(dir); !changed || err != nil {
			t.Errorf("%s: SwitchOn = %v, %v", what, changed, err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Errorf("%s: what was in the directory: %v", what, err)
		}
	}

	// A file with the name of the part is root's after the call, whoever has made it.
	dir := sharedDir(t)
	if err := errors.Join(os.WriteFile(Own(dir), nil, 0o644), os.Chown(Own(dir), stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	changed, err := SwitchOff(dir)
	if info, e := os.Lstat(Own(dir)); !changed || err != nil || e != nil || !isOf(info, 0) {
		t.Errorf("SwitchOff with a stranger's file there = %v, %v, %v", changed, err, e)
	}
}

// TestSwitchOffUnused has the programs of a shared directory that nobody has used yet find it off, too.
func TestSwitchOffUnused(t *testing.T) {
	dir := sharedDir(t)
	if changed, err := SwitchOff(dir); !changed || err != nil || !IsOff(dir) {
		t.Errorf("SwitchOff = %v, %v, off %v", changed, err, IsOff(dir))
	}
	if changed, err := SwitchOn(dir); !changed || err != nil || Prepare(dir) != nil {
		t.Errorf("SwitchOn = %v, %v", changed, err)
	}
}

// TestSwitchOffTwoAtOnce has a directory be off after calls at the same time, and be whole after SwitchOn.
func TestSwitchOffTwoAtOnce(t *testing.T) {
	dir := t.TempDir()
	if err := Prepare(dir); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				if _, err := SwitchOff(dir); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if !IsOff(dir) {
			t.Fatalf("round %d: on", i)
		}
		if changed, err := SwitchOn(dir); !changed || err != nil {
			t.Fatalf("round %d: SwitchOn = %v, %v", i, changed, err)
		}
		if names, err := os.ReadDir(Own(dir)); err != nil || len(names) != 4 {
			t.Fatalf("round %d: %v, %v", i, names, err)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}
