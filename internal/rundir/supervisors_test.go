package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestSupervisors has a user's supervisors be in a part of their own of a directory that several users share, if nobody else can exchange it.
func TestSupervisors(t *testing.T) {
	const shared = 0o777 | fs.ModeSticky
	us := os.Geteuid()
	part := partOf(us)
	none := func(string) error { return nil }
	for _, tt := range []struct {
		what   string
		mode   fs.FileMode
		before func(dir string) error // before it is prepared
		after  func(dir string) error
		want   string
		root   bool
	}{
		{"private", 0o700, none, none, Run, false},
		{"shared", shared, none, none, part, false},
		{"shared by a group", 0o770 | fs.ModeSticky, none, none, part, false},
		{"shared, and then private", shared, none, func(dir string) error { return os.Chmod(dir, 0o700) }, part, false},
		{"a part that others can read", shared, none, func(dir string) error { return os.Chmod(Path(dir, part), 0o755) }, Run, false},
		{"a link", shared, none, func(dir string) error {
			return errors.Join(os.Remove(Path(dir, part)), os.Symlink(dir, Path(dir, part)))
		}, Run, false},
		{"a stranger's part", shared, none, func(dir string) error { return os.Chown(Path(dir, part), stranger, -1) }, Run, true},
		{"a stranger's boot", shared, none, func(dir string) error { return os.Chown(Own(dir), stranger, -1) }, Run, true},
		{"a file in its place", shared, func(dir string) error {
			return errors.Join(os.Mkdir(Own(dir), 0o700), os.Chmod(Own(dir), shared), os.WriteFile(Path(dir, part), nil, 0o600))
		}, none, Run, false},
	} {
		if tt.root && us != 0 {
			continue
		}
		dir := t.TempDir()
		if err := errors.Join(os.Chmod(dir, tt.mode), tt.before(dir), Prepare(dir), tt.after(dir)); err != nil {
			t.Fatal(tt.what, err)
		}
		if got := Supervisors(dir); got != Path(dir, tt.want) {
			t.Errorf("%s: %s, want %s", tt.what, got, Path(dir, tt.want))
		}
		if got := SupervisorsOf(dir, us+1); got != Path(dir, Run) {
			t.Errorf("%s: those of another user are in %s", tt.what, got)
		}
		if tt.want == part && us == 0 {
			if err := errors.Join(os.Mkdir(Path(dir, partOf(stranger)), 0o700), os.Chown(Path(dir, partOf(stranger)), stranger, -1)); err != nil {
				t.Fatal(err)
			}
			if got := SupervisorsOf(dir, stranger); filepath.Base(got) != partOf(stranger) {
				t.Errorf("%s: those of a stranger are in %s", tt.what, got)
			}
			if all := AllSupervisors(dir); len(all) != 3 {
				t.Errorf("%s: %q are all, want 3", tt.what, all)
			}
			os.Remove(Path(dir, partOf(stranger)))
		}
		if tt.what == "shared" {
			RemoveEmpty(dir)
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an empty directory stays: %v", err)
			}
		}
	}
}
