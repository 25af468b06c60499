package rundir

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// OfMachine reports whether a run directory is the machine's, so that users may find each other
// there: it, this boot's part of it and the parts of that belong to root, are open to all, and have
// the sticky bit, as tmpfiles.d of the packages makes them. So nobody can put something in the place
// of a file of another user, and nobody but root can remove it.
func OfMachine(dir string) bool {
	paths := []string{dir, Own(dir)}
	for _, sub := range []string{ISM, Listen, Control, Run} {
		paths = append(paths, Path(dir, sub))
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || !isOf(info, 0) { // rule: TestOfMachine
			return false
		}
		if mode := info.Mode(); mode&fs.ModeSticky == 0 || mode.Perm() != 0o777 { // rule: TestOfMachine
			return false
		}
	}
	return true
}

// OwnerOf returns the user that owns the file with a name, whatever the file is, and reports false if
// there is none. It follows no link.
func OwnerOf(path string) (uid int, ok bool) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return -1, false
	}
	return int(st.Uid), true
}
