package rundir

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A part of a shared run directory may belong to another user that came first. That user can rename
// any file that others make there, and put something else in its place, such as a symbolic link:
// the kernel follows links of a directory's owner for everybody (fs.protected_symlinks). So nobody
// changes, writes or removes a file with a name there as if it were the file that was made under
// that name.

// errReplaced says that a name leads to something else than the file that was made under it.
var errReplaced = errors.New("it was replaced by something else")

// Chmod changes the mode of a file of a type (such as [unix.S_IFSOCK]) in an open directory, or at
// a path with [unix.AT_FDCWD], whatever the umask is. It follows no link, and leaves alone a file
// that is not of the type, or has another name, too.
func Chmod(dir int, path string, format, mode uint32) error {
	fail := func(err error) error { return &os.PathError{Op: "chmod", Path: path, Err: err} }
	fd, err := unix.Openat(dir, path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	if st.Mode&unix.S_IFMT != format || format != unix.S_IFDIR && st.Nlink != 1 { // rule: TestChmod
		return fail(errReplaced)
	}
	if st.Mode&^unix.S_IFMT == mode || unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH) == nil {
		return nil
	}
	// Before Linux 6.6.
	if err := unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode); err != nil {
		return fail(err)
	}
	return nil
}
