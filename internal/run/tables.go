package run

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// A table is a file that all programs of a user map, in the directory of supervisors, if that is ours alone, as long as there are any. It begins with its magic
// number; what is in the rest its libraries know.
type table struct {
	file  string
	magic uint64
	size  int64
}

// tables are those that there are. Programs can do without.
var tables = []table{resetsTable, admissionTable}

// makeTables makes the tables where there is none, or something else. The caller's socket is in the directory already.
func makeTables(dir string) error {
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
func (t table) make(dir string) error {
	info, err := os.Lstat(filepath.Join(dir, t.file))
	if err == nil && info.Mode().IsRegular() && info.Size() == t.size {
		return nil
	}
	f, err := os.CreateTemp(dir, ".new-"+t.file)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing, once it is renamed
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, t.magic))
	if err == nil {
		err = f.Truncate(t.size)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, t.file))
}

// removeTables removes the tables if no supervisor is left. Programs that have them keep them.
func removeTables(dir string) {
	unlock, err := lockDir(dir)
	if err != nil {
		return
	}
	defer unlock()
	entries, err := os.ReadDir(dir)
	if err == nil && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Type() == fs.ModeSocket }) {
		for _, t := range tables {
			os.Remove(filepath.Join(dir, t.file))
		}
	}
}

// lockDir keeps others who call it out of a directory that is ours alone, until unlock is called. It does not wait: who has it may be stopped.
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
