package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
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

	// A call that was interrupted can be done again, and a file of somebody else is left alone.
	if err := os.WriteFile(filepath.Join(dir, offName()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := SwitchOff(dir); !changed || err != nil {
		t.Errorf("SwitchOff after one that was interrupted = %v, %v", changed, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, offName())); err != nil {
		t.Fatal(err)
	}
	if changed, err := SwitchOn(dir); !changed || err != nil || Prepare(dir) != nil {
		t.Errorf("SwitchOn without what was there = %v, %v", changed, err)
	}
	if err := os.Symlink("/etc", filepath.Join(dir, offName())); err != nil {
		t.Fatal(err)
	}
	if changed, err := SwitchOff(dir); changed || err == nil || IsOff(dir) {
		t.Errorf("SwitchOff with a link in the place of its file = %v, %v", changed, err)
	}
}
