package rundir

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrOff is why nothing can be put into a run directory that is switched off.
var ErrOff = errors.New("SMC is switched off here by 'gosmc off --now'; 'gosmc on' switches it on")

// offName is the name that this boot's part of a run directory has while it is switched off. A file
// has the part's own name then: a program that looks for a server finds none, and a program that
// would announce one cannot. Nobody has to be told, and a program that hangs, or is of another
// version, cannot disobey.
func offName() string { return "off-" + boot() }

// SwitchOff exchanges this boot's part of a run directory for a file, at once. It reports false if
// the directory has no such part, or is switched off. Programs keep the sockets and the memory that
// they have.
func SwitchOff(dir string) (bool, error) {
	d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	defer unix.Close(d)
	if format(d, boot()) != unix.S_IFDIR { // rule: TestSwitchOff
		return false, nil
	}
	fd, err := unix.Openat(d, offName(), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	switch {
	case err == nil:
		unix.Write(fd, []byte(ErrOff.Error()+"\n")) // for readers of the file
		unix.Close(fd)
	case err != unix.EEXIST || format(d, offName()) != unix.S_IFREG: // a file is left over from an attempt that was interrupted
		return false, fmt.Errorf("%s: %w", filepath.Join(dir, offName()), err)
	}
	if err := unix.Renameat2(d, boot(), d, offName(), unix.RENAME_EXCHANGE); err != nil {
		unix.Unlinkat(d, offName(), 0)
		return false, fmt.Errorf("%s: %w", Own(dir), err)
	}
	return true, nil
}

// SwitchOn reverses [SwitchOff]. It reports false if the directory is not switched off.
func SwitchOn(dir string) (bool, error) {
	d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	defer unix.Close(d)
	if format(d, boot()) != unix.S_IFREG { // rule: TestSwitchOff
		return false, nil
	}
	if format(d, offName()) == unix.S_IFDIR {
		if err := unix.Renameat2(d, boot(), d, offName(), unix.RENAME_EXCHANGE); err != nil {
			return false, fmt.Errorf("%s: %w", Own(dir), err)
		}
		err = unix.Unlinkat(d, offName(), 0)
	} else { // somebody has removed it
		err = unix.Unlinkat(d, boot(), 0)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	return true, nil
}

// IsOff reports whether a run directory is switched off.
func IsOff(dir string) bool {
	var st unix.Stat_t
	return unix.Lstat(Own(dir), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

// format returns the type of a file in a directory, 0 if there is none.
func format(d int, name string) uint32 {
	var st unix.Stat_t
	if unix.Fstatat(d, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0
	}
	return st.Mode & unix.S_IFMT
}
