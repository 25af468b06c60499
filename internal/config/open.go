package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/user"
)

// content returns the text of the file that a path leads to. It is nil for a path that leads to
// nothing, or to no regular file, such as /dev/null. Nothing that somebody puts at the path makes the
// call wait: not a FIFO, and not a file that grows without end.
func content(path string) ([]byte, error) {
	real, st, err := behind(path)
	switch {
	case err != nil:
		return nil, err
	case st == nil:
		return nil, nil
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil, fmt.Errorf("%s is no file of up to %d bytes", path, maxFile)
	case st.Mode&unix.S_IFMT != unix.S_IFREG: // a device may do something when it is opened
		return nil, nil
	}
	// Something else may be there by now.
	fd, err := unix.Open(real, unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return nil, &fs.PathError{Op: "fstat", Path: path, Err: err}
	}
	if now.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxFile: // rule: TestReadHostile: len(text) > maxFile -> false
		return nil, fmt.Errorf("%s is no file of up to %d bytes", path, maxFile)
	}
	return text, nil
}

// errLink is the error of a link that is not followed.
var errLink = errors.New("is a link of another user: name the file itself")

// behind returns the file that a path leads to, and its state; nil if there is none. It follows links
// of root and of this user only: a link of anybody else would have us read, or write, a file that
// only we may.
func behind(path string) (real string, st *unix.Stat_t, err error) {
	real = path
	for range maxLinks {
		var to string
		if to, st, err = lookAt(real); err != nil {
			if errors.Is(err, unix.ENOENT) {
				return real, nil, nil
			}
			return "", nil, &fs.PathError{Op: "open", Path: real, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return real, st, nil
		}
		if !trusts(real, st) { // rule: TestReadLinks
			return "", nil, fmt.Errorf("%s %w (user %d)", real, errLink, st.Uid)
		}
		if !filepath.IsAbs(to) {
			// Not Join: ".." is the directory above the one that a link leads to.
			to = filepath.Dir(real) + "/" + to
		}
		real = to
	}
	return "", nil, fmt.Errorf("%s: too many links", path)
}

// Behind returns the path of the file that a path leads to by links that [Read] follows. It is the
// path itself where there is none.
func Behind(path string) string {
	if real, _, err := behind(path); err == nil {
		return real
	}
	return path
}

// lookAt returns the state of a file, and where it leads to if it is a link, of the same file.
func lookAt(path string) (to string, st *unix.Stat_t, err error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	defer unix.Close(fd)
	st = new(unix.Stat_t)
	if err := unix.Fstat(fd, st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", st, err
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err == nil && n == 0 {
		err = unix.ENOENT
	}
	return string(buf[:max(n, 0)]), st, err
}

// trusts reports whether a link is followed. In a user namespace root's links may have the number of
// users that have none: they count if nobody but the owner of their directory can have put them there.
func trusts(link string, st *unix.Stat_t) bool {
	if st.Uid == 0 || user.Ours(int(st.Uid)) {
		return true
	}
	var dir unix.Stat_t
	return !user.Known(int(st.Uid)) && unix.Stat(filepath.Dir(link), &dir) == nil &&
		dir.Uid == st.Uid && dir.Mode&0o022 == 0
}
