package rundir

import (
	"os"
	"testing"
)

// TestOfMachine has a directory be the machine's only if root has made all of it, with the sticky
// bit and open to all.
func TestOfMachine(t *testing.T) {
	prepared := func() string {
		dir := sharedDir(t)
		if err := Prepare(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	if dir := prepared(); !OfMachine(dir) {
		t.Error("one that root has made is not the machine's")
	}
	if OfMachine(sharedDir(t)) {
		t.Error("one that nobody has used yet is the machine's")
	}
	for what, change := range map[string]func(path string) error{
		"another owner":     func(path string) error { return os.Chown(path, 61001, 61001) },
		"not sticky":        func(path string) error { return os.Chmod(path, 0o777) },
		"not open":          func(path string) error { return os.Chmod(path, 0o755|os.ModeSticky) },
		"open to the group": func(path string) error { return os.Chmod(path, 0o770|os.ModeSticky) },
	} {
		for _, part := range []func(dir string) string{
			func(dir string) string { return dir }, Own,
			func(dir string) string { return Path(dir, Run) },
			func(dir string) string { return Path(dir, ISM) },
			func(dir string) string { return Path(dir, Listen) },
		} {
			dir := prepared()
			path := part(dir)
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			if OfMachine(dir) {
				t.Errorf("%s: %s is the machine's", what, path)
			}
		}
	}
	dir := prepared()
	link := t.TempDir() + "/link"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if OfMachine(link) {
		t.Error("a link is the machine's")
	}
}
