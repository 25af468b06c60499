package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// changePatience is how long [Change] waits for another change of the same file.
const changePatience = 5 * time.Second

// ErrChanged is the error of a file that somebody else has changed between its read and its write.
var ErrChanged = errors.New("somebody else has changed the file meanwhile: nothing is written; try again")

// Change reads the file at a path, has do change it, and writes it, unless do returns an error or
// wants no write. Changes of several processes follow each other, so none is lost. The order is by
// a lock of the directory. Any user that may read the directory can hold that lock, and no user is
// to keep root from a change: after [changePatience] the call goes on without the lock. The error is
// [ErrChanged] then if the file is not the one that was read.
func Change(path string, do func(f *File) (write bool, err error)) error {
	return changeWithin(changePatience, path, do)
}

func changeWithin(patience time.Duration, path string, do func(f *File) (bool, error)) error {
	unlock := lockDir(path, patience) // rule: TestChangeTwoAtOnce: lockDir(path, patience) -> func() {}
	defer unlock()
	before := stampOf(path)
	f, err := Read(path)
	if err != nil {
		return fmt.Errorf("nothing is changed, as the file has to be mended by hand first: %w", err)
	}
	write, err := do(f)
	if err != nil || !write {
		return err
	}
	if stampOf(path) != before { // rule: TestChangeUnlocked: stampOf(path) != before -> before.size < 0
		return fmt.Errorf("%s: %w", path, ErrChanged)
	}
	return f.Write()
}

// lockDir takes the lock for changes of a file, and returns a function that gives it back. A
// directory that cannot be opened has no lock: the write fails with the reason.
func lockDir(path string, patience time.Duration) (unlock func()) {
	if real, _, err := behind(path); err == nil {
		path = real // the file that is written
	}
	d, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return func() {}
	}
	end := time.Now().Add(patience)
	for unix.Flock(d, unix.LOCK_EX|unix.LOCK_NB) != nil && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
	return func() { unix.Close(d) }
}

// A stamp tells two states of a file apart. The zero value stands for a file that is not there.
type stamp struct {
	dev, ino       uint64
	size           int64
	changed, wrote int64 // nanoseconds: of the inode, and of the content
}

// stampOf returns the stamp of the file that a path leads to.
func stampOf(path string) (s stamp) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return s
	}
	return stamp{
		dev: uint64(st.Dev), ino: st.Ino, size: st.Size,
		changed: unix.TimespecToNsec(st.Ctim), wrote: unix.TimespecToNsec(st.Mtim),
	}
}

// older reports whether a file was last changed so long ago, by the clock of this machine. It is
// false for no file, of which nobody knows since when there is none.
func (s stamp) older(than time.Duration) bool {
	return s.changed > 0 && time.Now().UnixNano()-s.changed > int64(than)
}
