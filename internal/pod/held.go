package pod

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// heldPrefix begins the names of directories and control groups of a site. Its maker holds a lock on
// each (flock), which the kernel releases however the maker ends: one without a lock was left behind.
const heldPrefix = "gosmc-pod-held-"

// maxSearched bounds the directories in which [sweepBelow] looks; ours. A machine has some thousand
// control groups at most.
const maxSearched = 100_000

// makeHeld makes a directory that nobody else can open, in another one, and holds it. The caller closes
// it when it is removed.
func makeHeld(parent string) (*os.File, error) {
	const tries = 10 // one that sweeps at this moment may take it for a leftover
	for range tries {
		name, err := os.MkdirTemp(parent, heldPrefix)
		if err != nil {
			return nil, err
		}
		f, err := hold(name)
		if err == nil {
			return f, nil
		}
		os.Remove(name)
	}
	return nil, errors.New("cannot hold a directory in " + parent)
}

// hold opens a directory of this user and locks it. An error says that it is held by another process,
// is of another user, or is not there any more.
func hold(name string) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st, now unix.Stat_t
	switch {
	case unix.Fstat(fd, &st) != nil || int(st.Uid) != os.Geteuid(): // rule: TestSweep: int(st.Uid) != os.Geteuid() -> false
		err = unix.EPERM
	default:
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) // rule: TestSweep: unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) -> error(nil)
	}
	if err == nil && (unix.Lstat(name, &now) != nil || now.Ino != st.Ino || now.Dev != st.Dev) {
		err = unix.ENOENT
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	return f, nil
}

// sweep removes the directories in a directory that makers have left behind which were killed. They
// have to be empty: a control group in which a process is about to end stays for the next time.
func sweep(parent string) {
	list, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range list {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), heldPrefix) {
			continue
		}
		if f, err := hold(filepath.Join(parent, e.Name())); err == nil {
			unix.Rmdir(f.Name())
			f.Close()
		}
	}
}

// sweepBelow sweeps a directory and all below it, such as the control groups of this machine: the one
// that was killed may have run in another group than this process.
func sweepBelow(root string) {
	n := 0
	filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir():
			return nil
		case strings.HasPrefix(d.Name(), heldPrefix):
			return fs.SkipDir
		}
		if n++; n > maxSearched {
			return fs.SkipAll
		}
		sweep(path)
		return nil
	})
}
