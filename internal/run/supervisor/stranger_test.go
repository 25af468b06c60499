package supervisor

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// stranger is the ID of a user that has nothing to do with us.
const stranger = 4242

// TestTidyElsewhere has another user put a link to any directory in the place of the directory of
// supervisors, as the owner of a part of a shared run directory can: nothing is removed there.
func TestTidyElsewhere(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"system.sock", "notify", "0123456789abcdef.sock", "0123456789abcdeg", "fedcba9876543210.in10", "fedcba9876543210.in"} {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, name)}); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	for name, target := range map[string]string{"libx.so.1": "libx.so.1.0", "awk": "/usr/bin/mawk", "0123456789abcdef": "gone", "0123456789abcdef.port": "gone", "0123456789abcdef.65536": "gone"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "system.run"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	names := func() (list []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	before := names()
	link := filepath.Join(t.TempDir(), "run")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	tidy(link, nil)
	if after := names(); !slices.Equal(before, after) {
		t.Errorf("tidy has left %v of %v", after, before)
	}
}

// TestDoorSquatted has another user look for the socket of a supervisor that starts, and give the name of its door to a socket of its own: /proc/net/unix shows all users
// the path of a socket, also in a private directory.
func TestDoorSquatted(t *testing.T) {
	dir := t.TempDir()
	if err := rundir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	quit, done := make(chan struct{}), make(chan struct{})
	seen := make(map[string]bool)
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
			}
			found, _ := os.ReadDir(rundir.Supervisors(dir))
			for _, e := range found {
				name := strings.TrimPrefix(e.Name(), ".new-")
				if seen[name] || !proto.IsSocketName(name) {
					continue
				}
				seen[name] = true
				fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
				if err == nil {
					unix.Bind(fd, &unix.SockaddrUnix{Name: proto.DoorName(name)})
					defer unix.Close(fd)
				}
			}
		}
	}()
	failed := 0
	var last error
	for range 40 {
		s, err := newSupervisor(dir, os.Getpid())
		if err != nil {
			failed, last = failed+1, err
			continue
		}
		s.close()
	}
	close(quit)
	<-done
	if failed > 0 {
		t.Errorf("%d of 40 supervisors did not start: %v", failed, last)
	}
	if len(seen) == 0 {
		t.Error("nobody has seen a supervisor start")
	}
}

// TestConnectToStranger has another user lead clients of a port to a socket with a full queue.
// Their calls of connect, also those that are not to wait, took 2 s. The directory is one that all
// share, or the part of a user that the client becomes once it runs: the other user has made that
// first.
func TestConnectToStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a socket of another user")
	}
	program := filepath.Join(t.TempDir(), "stranger")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/stranger.c")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for _, tt := range []struct {
		name, own, theirs string // directories of the client's supervisor, and of the other user's socket
		environ           []string
	}{
		{"shared", "run", "run", nil},
		{"part", "run-0", "run-65534", []string{"BECOME=65534"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			top := openDirectory(t)
			for _, dir := range []string{tt.own, tt.theirs} {
				if err := os.MkdirAll(filepath.Join(top, dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			fullSocket(t, filepath.Join(top, tt.theirs), uint16(port))
			runRings(t, program, []string{"full"}, 1, append(tt.environ, "LD_PRELOAD="+committedLibrary(t),
				proto.EnvSocket+"="+filepath.Join(top, tt.own, "0123456789abcdef"), "PORT="+strconv.Itoa(port))...)
		})
	}
}

// openDirectory is a directory that every user can search.
func openDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gosmc-stranger-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// fullSocket makes a directory as the stranger can have made one, with a link of a port that leads
// to a socket with a full queue.
func fullSocket(t *testing.T, dir string, port uint16) {
	t.Helper()
	netns, err := proto.OwnNetNS()
	if err != nil {
		t.Fatal(err)
	}
	const theirs = "00000000feedfeed"
	path := filepath.Join(dir, theirs)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		unix.Listen(fd, 0), os.Chmod(path, 0o777), os.Chown(path, stranger, -1), os.Chmod(dir, 0o777|fs.ModeSticky), os.Symlink(theirs, proto.LinkPath(dir, netns, port)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for full := false; !full; {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(c) })
		full = unix.Connect(c, &unix.SockaddrUnix{Name: path}) == unix.EAGAIN
	}
}
