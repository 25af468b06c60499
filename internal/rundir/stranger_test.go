package rundir

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// stranger is the ID of a user that has nothing to do with us.
const stranger = 4242

// TestChmod has names lead to something else than the files that were made under them. Nothing gets
// another mode by them.
func TestChmod(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(path("file"), nil, 0o640), os.Mkdir(path("dir"), 0o750), os.Symlink("file", path("toFile")), os.Symlink("dir", path("toDir")),
		unix.Mknod(path("socket"), unix.S_IFSOCK|0o700, 0), unix.Mknod(path("two"), unix.S_IFSOCK|0o700, 0), os.Link(path("two"), path("names")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, tt := range []struct {
		name   string
		format uint32
		good   bool
	}{
		{"toFile", unix.S_IFSOCK, false},
		{"toDir", unix.S_IFDIR, false},
		{"file", unix.S_IFSOCK, false},
		{"dir", unix.S_IFSOCK, false},
		{"names", unix.S_IFSOCK, false},
		{"none", unix.S_IFSOCK, false},
		{"socket", unix.S_IFSOCK, true},
		{"dir", unix.S_IFDIR, true},
	} {
		before := modes(t, dir)
		err := Chmod(int(d.Fd()), tt.name, tt.format, unix.S_ISVTX|0o666)
		if (err == nil) != tt.good {
			t.Errorf("Chmod(%s, %o) = %v, want good %t", tt.name, tt.format, err, tt.good)
		}
		after := modes(t, dir)
		if tt.good {
			before[tt.name] = unix.S_ISVTX | 0o666
		}
		for name, mode := range after {
			if mode != before[name] {
				t.Errorf("Chmod(%s, %o): %s has the mode %o, had %o", tt.name, tt.format, name, mode, before[name])
			}
		}
	}
}

func modes(t *testing.T, dir string) map[string]uint32 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string]uint32)
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, e.Name()), &st); err != nil {
			t.Fatal(err)
		}
		if e.Type() != fs.ModeSymlink {
			m[e.Name()] = st.Mode &^ unix.S_IFMT
		}
	}
	return m
}

// TestMkdirOfStranger has the owner of a shared directory put links in the place of directories
// that are being made there. The targets of the links do not change.
func TestMkdirOfStranger(t *testing.T) {
	const tries = 400
	dir, victim := t.TempDir(), t.TempDir()
	if err := os.Chmod(victim, 0o700); err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		aside := filepath.Join(t.TempDir(), "aside")
		for !over.Load() {
			d, err := os.Open(dir)
			if err != nil {
				continue
			}
			names, _ := d.Readdirnames(-1)
			d.Close()
			for _, name := range names {
				if path := filepath.Join(dir, name); strings.HasPrefix(name, ".new-") && os.Rename(path, aside) == nil {
					os.Symlink(victim, path)
					os.Remove(aside)
				}
			}
		}
	}()
	for range tries {
		if Mkdir(filepath.Join(dir, "made"), 0o777|fs.ModeSticky) == nil {
			os.Remove(filepath.Join(dir, "made"))
		}
	}
	over.Store(true)
	<-done
	if info, err := os.Stat(victim); err != nil || info.Mode() != 0o700|fs.ModeDir {
		t.Errorf("what the links lead to has %v, %v; want the mode that it had", info.Mode(), err)
	}
}

func TestKept(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: directories of another user")
	}
	for _, tt := range []struct {
		what  string
		path  func(dir string) string
		owner int
		mode  fs.FileMode
		kept  bool
	}{
		{"ours", Own, 0, 0o700, true},
		{"shared, ours", Own, 0, 0o777 | fs.ModeSticky, true},
		{"shared with a group, ours", Own, 0, 0o770 | fs.ModeSticky | fs.ModeSetgid, true},
		{"everybody's", Own, 0, 0o777, false},
		{"a stranger's run directory", func(dir string) string { return dir }, stranger, 0o777 | fs.ModeSticky, false},
		{"a stranger's part of it", Own, stranger, 0o777 | fs.ModeSticky, false},
		{"a stranger's directory of supervisors", func(dir string) string { return Path(dir, Run) }, stranger, 0o777 | fs.ModeSticky, false},
	} {
		dir := t.TempDir()
		if err := Prepare(dir); err != nil {
			t.Fatal(err)
		}
		path := tt.path(dir)
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, tt.owner, -1); err != nil {
			t.Fatal(err)
		}
		if got := Kept(dir, Run); got != tt.kept {
			t.Errorf("%s: Kept = %t, want %t", tt.what, got, tt.kept)
		}
	}
	dir := t.TempDir()
	os.Symlink(t.TempDir(), Own(dir))
	os.Mkdir(Path(dir, Run), 0o700)
	if Kept(dir, Run) {
		t.Error("a link: Kept = true")
	}
}
