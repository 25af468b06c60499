package library

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/rundir"
)

// A copy of the library that 'gosmc run' has made is removed when nobody uses it any more. A
// program that has the path of a removed copy in LD_PRELOAD, or a child that it starts, would have
// its loader complain on standard error. So three things keep a copy:
//
//   - A lock, a file beside it. Supervisors, and 'gosmc run' before them, hold it shared as long as
//     a program of theirs lives. A process that removes the copy holds it alone, and removes the
//     lock, too. A process that has waited for the lock has a file without a name then, and begins
//     anew.
//   - A record for each supervisor, a file that the supervisor removes when it is sure that its
//     programs have ended. The record of a killed supervisor stays. It keeps the copy where the
//     processes of that supervisor cannot be seen: in another PID namespace, or on another machine
//     with this file system.
//   - A process that has mapped the copy, or has its name in the environment.
//
// Copies without a lock are not ours to remove: 'make install' or an older version has made them.

const (
	copyPrefix = ".libgosmc-" // of locks and records
	lockSuffix = ".lock"
)

// initialPIDs is the number of the first PID namespace, from which all processes can be seen:
// PROC_PID_INIT_INO of Linux.
const initialPIDs = "pid:[4026531836]"

// lockPath is the lock of the copies below dir that have a name.
func lockPath(dir, name string) string { return filepath.Join(dir, "."+name+lockSuffix) }

// splitLock is the reverse of [lockPath].
func splitLock(lock string) (dir, name string, ok bool) {
	dir, name = filepath.Split(lock)
	name, ok = strings.CutSuffix(name, lockSuffix)
	return filepath.Clean(dir), strings.TrimPrefix(name, "."), ok && strings.HasPrefix(name, copyPrefix)
}

// recordPath is the path of the record of the supervisor with this socket name.
func recordPath(lock, socket string) string {
	return strings.TrimSuffix(lock, lockSuffix) + "." + filepath.Base(socket)
}

// hold keeps the copies below dir that have a name, or are about to be made, from being removed as
// long as the file is open. It makes the directory.
func hold(dir string, mode os.FileMode, name string) (*os.File, error) {
	path := lockPath(dir, name)
	for deadline := time.Now().Add(holdTimeout); ; time.Sleep(holdPause) {
		err := makeDirectory(dir, mode)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if errors.Is(err, unix.EROFS) { // for which there is a lock already, perhaps
			f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
		}
		if err == nil {
			if err = take(f); err == nil {
				return f, nil
			}
			f.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) ||
			time.Now().After(deadline) {
			return nil, &os.PathError{Op: "lock", Path: path, Err: err}
		}
	}
}

// take takes a lock that was opened, shared, unless somebody has it alone, or has removed it since.
func take(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return err
	}
	if !named(f) { // rule: TestCopyRemovedMeanwhile
		return unix.EWOULDBLOCK
	}
	return nil
}

// named reports whether the name of a file still leads to that file.
func named(f *os.File) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(have, there)
}

// MakeRecord makes the record of the supervisor with this socket.
func MakeRecord(lock *os.File, socket string) error {
	return os.WriteFile(recordPath(lock.Name(), socket), []byte(recordText()), 0o600)
}

// ReleaseFor is [Release] for the supervisor with this socket. ended says that it is sure that its
// programs have ended.
func ReleaseFor(socket string, lock *os.File, ended bool) {
	if lock != nil && ended {
		os.Remove(recordPath(lock.Name(), socket)) // rule: TestCopyOfSupervisors
	}
	Release(lock)
}

// Release gives up a copy, and removes it unless somebody uses it. A nil lock is one of a library
// that stays.
func Release(lock *os.File) {
	if lock == nil {
		return
	}
	lock.Close()
	treeOf(systemLoader()).removeCopy(lock.Name())
}

// recordText says where the processes of a supervisor can be seen: the kernel, and the PID namespace.
func recordText() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, _ := os.Readlink("/proc/self/ns/pid")
	return strings.TrimSpace(string(boot)) + " " + pids
}

// removeCopy removes the copies of a lock if nobody uses them, and reports whether it has.
func (t libraryTree) removeCopy(lock string) bool {
	dir, name, ok := splitLock(lock)
	if !ok {
		return false
	}
	f, err := os.OpenFile(lock, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !named(f) { // rule: TestCopiesAtOnce: unix.LOCK_EX -> unix.LOCK_SH
		return false
	}
	records, _ := filepath.Glob(strings.TrimSuffix(lock, lockSuffix) + ".????????????????")
	if slices.ContainsFunc(records, hidden) { // rule: TestCopyOfHiddenPrograms
		return false
	}
	if !unused(procs.Dir, name) { // rule: TestCopyOfProgram
		return false
	}
	for _, value := range slices.Concat(t.own, t.foreign) {
		os.Remove(filepath.Join(dir, value, name))
	}
	for _, record := range records {
		os.Remove(record)
	}
	os.Remove(lock) // while nobody else can have it
	for _, value := range slices.Concat(t.own, t.foreign) {
		os.Remove(filepath.Join(dir, value)) // if it is empty
	}
	os.Remove(filepath.Join(dir, "lib"))
	os.Remove(dir)
	return true
}

// hidden reports whether programs of a killed supervisor, of which this is the record, may run
// where we do not see them.
func hidden(record string) bool {
	text, err := os.ReadFile(record)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return hiddenFrom(recordText(), string(text), local(filepath.Dir(record)))
}

// hiddenFrom is [hidden] for two records: our own, and the record of the supervisor. local says
// that no other machine has the file system.
func hiddenFrom(own, theirs string, local bool) bool {
	ownBoot, ownPIDs, _ := strings.Cut(own, " ")
	boot, pids, _ := strings.Cut(theirs, " ")
	if boot != ownBoot {
		return !local
	}
	return pids != ownPIDs && ownPIDs != initialPIDs
}

// local reports whether no other machine can have the file system of a directory, so that a record
// of another boot is void there.
func local(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return false
	}
	switch uint32(st.Type) {
	case unix.TMPFS_MAGIC, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		return true
	}
	return false
}

// unused reports whether it is sure that no process has mapped a library with a name, or has that
// name in its environment.
func unused(proc, name string) bool {
	settled := make(map[int]bool)
	for look := range copyLooks {
		if look > 0 {
			time.Sleep(copyPause)
		}
		sure := true
		before := settled
		settled = make(map[int]bool)
		for _, pid := range procs.List(proc) {
			if before[pid] {
				settled[pid] = true
				continue
			}
			switch procs.Ask(filepath.Join(proc, strconv.Itoa(pid)),
				func(dir string, environ []byte) bool { return uses(dir, environ, name) }) {
			case procs.Ours:
				return false
			case procs.Other:
				settled[pid] = true
			case procs.Dead:
				settled[pid], sure = true, false // it may have started others since it was listed
			case procs.Exec, procs.Ended:
				sure = false
			}
		}
		if sure {
			return true
		}
	}
	return false
}

// uses reports whether a process has a library. One of ours that cannot be asked, as it has made
// itself not dumpable, may have.
func uses(dir string, environ []byte, name string) bool {
	if strings.Contains(string(environ), name) {
		return true
	}
	maps, err := procs.ReadFile(dir, "maps")
	if err != nil {
		return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH)
	}
	return strings.Contains(string(maps), name)
}

// Tidy removes copies for programs with a run directory that nobody uses any more: supervisors
// that were killed have left them.
func Tidy(dir string) {
	t := treeOf(systemLoader())
	for _, p := range copyPlaces(dir) {
		if !trusted(p.dir) {
			continue
		}
		locks, _ := filepath.Glob(filepath.Join(p.dir, copyPrefix+"*"+lockSuffix))
		for _, lock := range locks {
			t.removeCopy(lock)
		}
	}
}

// A copyPlace is a directory in which copies may be.
type copyPlace struct {
	dir  string
	mode os.FileMode
}

// copyPlaces are the places for a copy of this user with this run directory, in the order in which
// they are tried.
func copyPlaces(dir string) (places []copyPlace) {
	if os.Geteuid() == 0 {
		places = append(places, copyPlace{systemLibraries, 0o755})
	}
	// A run directory may be shared. Then nobody can put anything where another user has, except
	// the owner of the directory, or of a part of it.
	if rundir.Kept(dir, rundir.Run) { // rule: TestCopyOfStranger: rundir.Kept(dir, rundir.Run) -> true
		places = append(places, copyPlace{filepath.Join(rundir.Path(dir, rundir.Run), fmt.Sprintf("libgosmc-%d", os.Geteuid())), 0o700})
	}
	if cache, err := os.UserCacheDir(); err == nil {
		places = append(places, copyPlace{filepath.Join(cache, "gosmc"), 0o700})
	}
	return places
}

// copyName is the name of copies of a library with this SHA-256.
func copyName(sum [32]byte) string {
	return fmt.Sprintf("libgosmc-%s-%d.so", hex.EncodeToString(sum[:8]), os.Geteuid())
}
