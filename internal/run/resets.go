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

// resetsFile is the table by which the libraries of programs tell each other that an end will be closed with a reset: SO_LINGER with 0
// seconds. It is in the directory of supervisors, if that is ours alone, as long as there are any.
//
//	offset  size  field
//	     0     8  magic 0x31747372736f67
//	     8     4  not 0: there was ever a mark
//	  4096 65536  8192 marks: FNV-1a (64 bits) of the name of an end, at that modulo 8192; 0: none
const (
	resetsFile  = "resets"
	resetsMagic = 0x31747372736f67
	resetsSize  = 4096 + 8*8192
)

// makeResets makes the table where there is none, or something else. Without it programs see an end of file in place of a reset. The
// caller's socket is in the directory already.
func makeResets(dir string) error {
	unlock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	info, err := os.Lstat(filepath.Join(dir, resetsFile))
	if err == nil && info.Mode().IsRegular() && info.Size() == resetsSize {
		return nil
	}
	f, err := os.CreateTemp(dir, ".new-resets")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing, once it is renamed
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, resetsMagic))
	if err == nil {
		err = f.Truncate(resetsSize)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, resetsFile))
}

// removeResets removes the table if no supervisor is left. Programs that have it keep it.
func removeResets(dir string) {
	unlock, err := lockDir(dir)
	if err != nil {
		return
	}
	defer unlock()
	entries, err := os.ReadDir(dir)
	if err == nil && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Type() == fs.ModeSocket }) {
		os.Remove(filepath.Join(dir, resetsFile))
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
