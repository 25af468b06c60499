package ism

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpenDir(t *testing.T) {
	checkLeaks(t)
	base := t.TempDir()
	mk := func(name string, perm os.FileMode) string {
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Join(dir, socketsDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, socketsDir), perm); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	link := filepath.Join(base, "link")
	os.Mkdir(link, 0o700)
	os.Symlink(mk("target", 0o700), filepath.Join(link, socketsDir))
	os.Symlink(filepath.Join(mk("target2", 0o700), socketsDir), filepath.Join(link+"2", socketsDir))
	file := filepath.Join(base, "file")
	os.Mkdir(file, 0o700)
	os.WriteFile(filepath.Join(file, socketsDir), nil, 0o600)
	for _, tt := range []struct {
		name, dir string
		want      error
	}{
		{"there is none", filepath.Join(base, "none"), fs.ErrNotExist},
		{"symbolic link", link, ErrDir},
		{"plain file", file, ErrDir},
		{"Dir is a file", filepath.Join(file, socketsDir), unix.ENOTDIR},
		{"all may write", mk("all", 0o777), ErrDir},
		{"group may write", mk("group", 0o770), ErrDir},
		{"all may write, sticky", mk("sticky", 0o777|os.ModeSticky), nil},
		{"all may read", mk("read", 0o755), nil},
		{"private", mk("private", 0o700), nil},
	} {
		d, err := Open(Config{Dir: tt.dir})
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: Open = %v, want %v", tt.name, err, tt.want)
		}
		if d != nil {
			d.Close()
		}
	}
}

// The files and directories have the right modes, whatever the umask; for AnyUser all can use it.
func TestDirModes(t *testing.T) {
	checkLeaks(t)
	for _, any := range []bool{false, true} {
		dir := t.TempDir()
		d, _ := openDevice(t, Config{Dir: dir, AnyUser: any})
		wantDir, wantSocket := os.FileMode(0o700), os.FileMode(0o600)
		if any {
			wantDir, wantSocket = 0o777|os.ModeSticky, 0o666
		}
		st, err := os.Stat(filepath.Join(dir, socketsDir))
		if err != nil || st.Mode()&^os.ModeDir != wantDir {
			t.Errorf("any user %v: directory has mode %v, %v; want %v", any, st.Mode(), err, wantDir)
		}
		st, err = os.Stat(filepath.Join(dir, socketsDir, d.GID().String()))
		if err != nil || st.Mode() != wantSocket|os.ModeSocket|os.ModeSticky {
			t.Errorf("any user %v: socket has mode %v, %v; want %v", any, st.Mode(), err, wantSocket)
		}
		if list, _ := os.ReadDir(filepath.Join(dir, socketsDir)); len(list) != 1 {
			t.Errorf("directory has %v, want one socket", list)
		}
	}
}

// A path may be longer than an address has room for.
func TestLongPath(t *testing.T) {
	checkLeaks(t)
	for _, n := range []int{40, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 200, 1000} {
		dir := t.TempDir()
		for len(dir) < n {
			dir = filepath.Join(dir, strings.Repeat("x", min(200, max(1, n-len(dir)-1))))
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		a, err := Open(Config{Dir: dir})
		if err != nil {
			t.Errorf("Open in a path of %d bytes = %v", len(dir), err)
			continue
		}
		b, _ := openDevice(t, Config{Dir: dir})
		dialPeer(t, a, b)
		path := filepath.Join(dir, socketsDir, a.GID().String())
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("socket is not where it belongs: %v", err)
		}
		a.Close()
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("Close in a path of %d bytes has left the socket", len(dir))
		}
	}
}

// A directory may be given relative to the working directory.
func TestRelativePath(t *testing.T) {
	checkLeaks(t)
	t.Chdir(t.TempDir())
	a, _ := openDevice(t, Config{Dir: "."})
	b, _ := openDevice(t, Config{Dir: "."})
	t.Chdir("/")
	dialPeer(t, a, b)
}
