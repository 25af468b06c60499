package rundir

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// makeOld gives a file, or a directory after its files, a time long ago.
func makeOld(tb testing.TB, path string) {
	tb.Helper()
	at := []unix.Timespec{unix.NsecToTimespec(time.Now().Add(-2 * otherBootAge).UnixNano())}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, append(at, at[0]), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		tb.Fatal(err)
	}
}

// deadSocket makes a socket behind which nobody listens.
func deadSocket(tb testing.TB, path string) {
	tb.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		tb.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

// TestRemoveDead has dead sockets beside files that were in the directory before it became a run
// directory: only those go.
func TestRemoveDead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	deadSocket(t, at("dead"))
	deadSocket(t, at("young"))
	deadSocket(t, at(".new-dead")) // of a process that was killed while it made its socket
	deadSocket(t, at(".new-young"))
	live, err := net.Listen("unix", at("live"))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if err := os.WriteFile(at("notes.txt"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("dead", at("link")); err != nil { // to a dead socket
		t.Fatal(err)
	}
	for _, name := range []string{"dead", ".new-dead", "live", "notes.txt", "fifo", "empty", "link"} {
		makeOld(t, at(name))
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	RemoveDead(d, unix.SOCK_STREAM)
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{".new-young", "empty", "fifo", "link", "live", "notes.txt", "young"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("left are %q, %v; want %q", names, err, want)
	}
}

// TestRemoveDeadAmongMany has left-overs among the files of many processes that have just ended:
// they go in time.
func TestRemoveDeadAmongMany(t *testing.T) {
	dir := t.TempDir()
	const old, young = 20, 150
	for i := range old {
		path := filepath.Join(dir, fmt.Sprint("old", i))
		deadSocket(t, path)
		makeOld(t, path)
	}
	for i := range young {
		deadSocket(t, filepath.Join(dir, fmt.Sprint("young", i)))
	}
	for range 200 { // each looks at every third
		d, err := OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		RemoveDead(d, unix.SOCK_STREAM)
		d.Close()
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != young {
		t.Errorf("%d of %d sockets are left, %v; want the %d young ones", len(entries), old+young, err, young)
	}
}

// TestRemoveOtherBoots has files of other boots: old files go, files that may belong to another
// machine that runs do not, and nothing of another shape does.
func TestRemoveOtherBoots(t *testing.T) {
	dir := t.TempDir()
	const old, running = "00000000000000000000000000000001", "00000000000000000000000000000002"
	for _, b := range []string{old, running, boot(), "mine"} {
		for _, sub := range []string{ISM, Control, Listen + "/1.80"} {
			if err := os.MkdirAll(filepath.Join(dir, b, sub), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		deadSocket(t, filepath.Join(dir, b, ISM, "s"))
		deadSocket(t, filepath.Join(dir, b, Control, "s"))
		for _, file := range []string{Listen + "/1.80/file", "file"} {
			if err := os.WriteFile(filepath.Join(dir, b, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	os.Remove(filepath.Join(dir, old, "file"))
	for _, b := range []string{old, boot(), "mine"} {
		for _, f := range []string{ISM + "/s", Control + "/s", Listen + "/1.80/file"} {
			makeOld(t, filepath.Join(dir, b, f))
		}
	}
	// The times of directories change with their files, so it takes some rounds.
	for range 4 {
		filepath.Walk(filepath.Join(dir, old), func(path string, info os.FileInfo, err error) error {
			if err == nil && info.IsDir() {
				makeOld(t, path)
			}
			return nil
		})
		RemoveOtherBoots(dir)
	}
	if _, err := os.Lstat(filepath.Join(dir, old)); !os.IsNotExist(err) {
		t.Errorf("what an old boot has left is there: %v", err)
	}
	for _, b := range []string{running, boot(), "mine"} {
		for _, f := range []string{ISM + "/s", Control + "/s", Listen + "/1.80/file", "file"} {
			if _, err := os.Lstat(filepath.Join(dir, b, f)); err != nil {
				t.Errorf("removed: %v", err)
			}
		}
	}
}
