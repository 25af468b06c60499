package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSupervisors has a user's supervisors be in a part of their own of a directory that several users share, if nobody else can exchange it.
func TestSupervisors(t *testing.T) {
	const shared = 0o777 | fs.ModeSticky
	us := os.Geteuid()
	part := partOf(us)
	none := func(string) error { return nil }
	for _, tt := range []struct {
		what  string
		mode  fs.FileMode
		after func(dir string) error
		want  string
		root  bool
	}{
		{"private", 0o700, none, Run, false},
		{"shared", shared, none, part, false},
		{"shared by a group", 0o770 | fs.ModeSticky, none, part, false},
		{"shared, and then private", shared, func(dir string) error { return os.Chmod(dir, 0o700) }, part, false},
		{"a part that others can read", shared, func(dir string) error { return os.Chmod(Path(dir, part), 0o755) }, Run, false},
		{"a link", shared, func(dir string) error {
			return errors.Join(os.Remove(Path(dir, part)), os.Symlink(dir, Path(dir, part)))
		}, Run, false},
		{"a stranger's part", shared, func(dir string) error { return os.Chown(Path(dir, part), stranger, -1) }, Run, true},
		{"a stranger's boot", shared, func(dir string) error { return os.Chown(Own(dir), stranger, -1) }, Run, true},
	} {
		if tt.root && us != 0 {
			continue
		}
		dir := t.TempDir()
		if err := errors.Join(os.Chmod(dir, tt.mode), Prepare(dir), tt.after(dir)); err != nil {
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

// TestSupervisorsSquatted has another user take the name of a user's part before that one comes, in each way that there is. All programs of the user have the same other
// part, also when the name is free again.
func TestSupervisorsSquatted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of another user")
	}
	for what, squat := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"file":      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"link":      func(path string) error { return os.Symlink("/", path) },
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.Chmod(dir, 0o777|fs.ModeSticky), os.Mkdir(Own(dir), 0o700), os.Chmod(Own(dir), 0o777|fs.ModeSticky)); err != nil {
				t.Fatal(err)
			}
			name := Path(dir, partOf(0))
			for _, path := range []string{name, name + "-0"} {
				if err := errors.Join(squat(path), os.Lchown(path, stranger, -1)); err != nil {
					t.Fatal(err)
				}
			}
			if err := Prepare(dir); err != nil {
				t.Fatal(err)
			}
			part := Supervisors(dir)
			if base := filepath.Base(part); !strings.HasPrefix(base, partOf(0)+"-") || base == partOf(0)+"-0" {
				t.Fatalf("supervisors are in %s", part)
			}
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := Prepare(dir); err != nil {
					t.Fatal(err)
				}
				if again := Supervisors(dir); again != part {
					t.Errorf("supervisors are in %s, and then in %s", part, again)
				}
			}
		})
	}
}
