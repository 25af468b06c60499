package rundir

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// A Table is a file that all programs of a user use together, in the directory of supervisors, if
// that is theirs alone. It begins with its magic number. Its users know the rest, and can do
// without it.
type Table struct {
	File  string // name
	Magic uint64
	Size  int64 // bytes
}

// MakeTables makes tables where there is none, or something else, in a directory that is ours alone.
func MakeTables(dir string, tables ...Table) error {
	unlock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for _, t := range tables {
		errs = append(errs, t.make(dir))
	}
	return errors.Join(errs...)
}

// make makes a table. The caller has the directory locked.
func (t Table) make(dir string) error {
	info, err := os.Lstat(filepath.Join(dir, t.File))
	if err == nil && info.Mode().IsRegular() && info.Size() == t.Size {
		return nil
	}
	f, err := os.CreateTemp(dir, ".new-"+t.File)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing, once it is renamed
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, t.Magic))
	if err == nil {
		err = f.Truncate(t.Size)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, t.File))
}

// RemoveTables removes tables if no supervisor has a socket there any more. Programs that have them
// open keep them.
func RemoveTables(dir string, tables ...Table) {
	unlock, err := lockDir(dir)
	if err != nil {
		return
	}
	defer unlock()
	entries, err := os.ReadDir(dir)
	if err == nil && !slices.ContainsFunc(entries,
		func(e fs.DirEntry) bool { return e.Type() == fs.ModeSocket }) {
		for _, t := range tables {
			os.Remove(filepath.Join(dir, t.File))
		}
	}
}

// Open opens a table for reading and writing, with [unix.O_RDONLY] or [unix.O_RDWR]. A file that is
// not this user's, or not this table, is an error.
func (t Table) Open(dir string, flag int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, t.File), flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	var magic [8]byte
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != t.Size) {
		err = fs.ErrInvalid
	}
	if err == nil {
		_, err = f.ReadAt(magic[:], 0)
	}
	if err == nil && binary.NativeEndian.Uint64(magic[:]) != t.Magic {
		err = fs.ErrInvalid
	}
	if err != nil {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return f, nil
}

// lockDir keeps other callers out of a directory that is ours alone, until unlock is called. It
// does not wait: the process that has the lock may be stopped.
func lockDir(dir string) (unlock func(), err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid()) {
		err = fs.ErrPermission
	}
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "flock", Path: dir, Err: err}
	}
	return func() { unix.Close(fd) }, nil
}
