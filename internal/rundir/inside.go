package rundir

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenDir opens a directory without following a symbolic link in its place. A path such as
// /proc/4711/root/tmp/gosmc-0 leads into the files of that process, as the process sees them: a
// symbolic link there leads to no file outside of them.
func OpenDir(path string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	root, inside, ok := cutRoot(path)
	if !ok {
		return os.OpenFile(path, flags, 0)
	}
	fail := func(err error) (*os.File, error) {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	r, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ESRCH) { // the process has ended
		err = unix.ENOENT
	}
	if err != nil {
		return fail(err)
	}
	defer unix.Close(r)
	const resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve}
	fd, err := unix.Openat2(r, inside, &how)
	if err != nil {
		return fail(err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Inside reports whether a path is below the root of a process, /proc/PID/root, and of which.
func Inside(path string) (pid int, ok bool) {
	root, _, ok := cutRoot(path)
	if !ok {
		return 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(root, "/proc/"), "/root"))
	return pid, err == nil
}

// cutRoot splits a path into the root of a process, /proc/PID/root, and the part below.
func cutRoot(path string) (root, inside string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/proc/")
	if !ok {
		return "", "", false
	}
	pid, inside, ok := strings.Cut(rest, "/root/")
	if !ok || pid == "" || strings.Trim(pid, "0123456789") != "" {
		return "", "", false
	}
	return "/proc/" + pid + "/root", inside, true
}
