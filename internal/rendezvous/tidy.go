package rendezvous

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// A process that is killed, or ends without closing its host, leaves files in the run
// directory. They do no harm, since nobody answers behind them, but somebody has to remove
// them: each host looks at some when it opens.

// Tidy removes what dead processes of this user have left in the run directory. It looks at
// a bounded number of files.
func Tidy(dir string) {
	tidySockets(filepath.Join(dir, rundir.ISM), unix.SOCK_SEQPACKET)
	tidySockets(filepath.Join(dir, rundir.Control), unix.SOCK_STREAM)
	// An announcement is dead if its device's socket is gone.
	for _, folder := range someNames(filepath.Join(dir, rundir.Listen)) {
		folder = filepath.Join(dir, rundir.Listen, folder)
		for _, name := range someNames(folder) {
			gid, _, ok := parseAnnouncement(name)
			if !ok {
				continue
			}
			_, err := os.Lstat(filepath.Join(dir, rundir.ISM, gid.String()))
			if os.IsNotExist(err) && leftOver(filepath.Join(folder, name)) {
				removeAnnouncement(filepath.Join(folder, name))
			}
		}
		unix.Rmdir(folder) // fails unless it is empty
	}
}

// tidySockets removes the sockets in a directory behind which nobody listens.
func tidySockets(dir string, kind int) {
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	for _, name := range someNames(dir) {
		if name[0] == '.' || !leftOver(filepath.Join(dir, name)) {
			continue
		}
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return
		}
		// The path of a socket may have 107 bytes; this one leads to the same place.
		addr := unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)}
		if unix.Connect(fd, &addr) == unix.ECONNREFUSED {
			os.Remove(filepath.Join(dir, name))
		}
		unix.Close(fd)
	}
}

// leftOver reports whether a file is ours to remove and is not just being made.
func leftOver(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeDir != 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && time.Since(info.ModTime()) > tidyAge
}

// someNames returns names in a directory, at most maxTidied.
func someNames(dir string) []string {
	f, err := openFolder(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxTidied)
	return names
}
