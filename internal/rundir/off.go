package rundir

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrOff is why nothing can be put into a run directory that is switched off.
var ErrOff = errors.New("SMC is switched off here by 'gosmc off --now'; 'gosmc on' switches it on")

// offName is the name that this boot's part of a run directory has as a rule while it is switched
// off. A file has the part's own name then: a program that looks for a server finds none, and a
// program that would announce one cannot. Nobody has to be told, and a program that hangs, or is of
// another version, cannot disobey.
//
// Any user may have taken that name in a shared directory. Then the part gets a name by chance that
// begins with it, and the file tells that name in its second line.
func offName() string { return "off-" + boot() }

const (
	// times that a call begins again if others rename the part at the same moment
	offTries    = 64
	offPatience = 2 * time.Second // that a call waits for another one
)

// SwitchOff exchanges this boot's part of a run directory for a file of ours, at once. It reports
// false if the directory is switched off, or has no such part. In a directory that users share any of
// them could make the part a moment later, so for root the file takes the place of a missing part,
// too. Programs keep the sockets and the memory that they have.
func SwitchOff(dir string) (bool, error) {
	d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	defer unix.Close(d)
	lockOff(d) // rule: TestSwitchOffTwoAtOnce
	shared := isShared(d)
	aside := ""
	for range offTries {
		var flags uint = unix.RENAME_EXCHANGE
		switch f := format(d, boot()); {
		case isOurs(d, boot()): // rule: TestSwitchOffSquatted
			return false, nil
		case f == 0 && shared && os.Geteuid() == 0: // rule: TestSwitchOffUnused
			flags = unix.RENAME_NOREPLACE
		// Another user's file is none of ours, since its owner can remove it.
		case f == unix.S_IFDIR || shared: // rule: TestSwitchOffSquatted: S_IFDIR || shared -> S_IFDIR
		default:
			return false, nil
		}
		if aside == "" {
			if aside, err = makeOff(d); err != nil {
				return false, fmt.Errorf("%s: %w", filepath.Join(dir, offName()), err)
			}
			defer unix.Unlinkat(d, aside, 0) // after the exchange it is the part, a directory, which stays
		}
		err = unix.Renameat2(d, aside, d, boot(), flags)
		if err == nil {
			return true, nil
		}
		if err != unix.ENOENT && err != unix.EEXIST {
			break
		}
	}
	return false, fmt.Errorf("%s: %w", Own(dir), err)
}

// makeOff makes the file that takes the place of a part, and returns its name.
func makeOff(d int) (name string, err error) {
	name = offName()
	for range offTries {
		fd, err := unix.Openat(d, name,
			unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err == unix.EEXIST {
			name = fmt.Sprintf("%s-%016x", offName(), rand.Uint64())
			continue
		}
		if err != nil {
			return "", err
		}
		defer unix.Close(fd)
		text := ErrOff.Error() + "\n" + name + "\n"
		n, err := unix.Write(fd, []byte(text))
		if n != len(text) && name != offName() { // the usual name need not be told
			unix.Unlinkat(d, name, 0)
			return "", cmp.Or(err, error(unix.ENOSPC))
		}
		return name, nil
	}
	return "", unix.EEXIST
}

// lockOff keeps other calls out of a directory until its descriptor is closed, so that two at a time
// do not reverse each other. Any user can have a lock of a shared directory: then the call goes on
// without, after a while.
func lockOff(d int) {
	end := time.Now().Add(offPatience)
	for unix.Flock(d, unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
}

// SwitchOn reverses [SwitchOff]. It reports false if the directory is not switched off.
func SwitchOn(dir string) (bool, error) {
	d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	defer unix.Close(d)
	lockOff(d)
	if format(d, boot()) != unix.S_IFREG { // rule: TestSwitchOff
		return false, nil
	}
	aside := offName()
	if isOurs(d, boot()) {
		aside = asideOf(d)
	}
	err = unix.ENOENT
	if format(d, aside) == unix.S_IFDIR {
		err = unix.Renameat2(d, boot(), d, aside, unix.RENAME_EXCHANGE)
	}
	switch err {
	case nil:
		err = unix.Unlinkat(d, aside, 0)
	case unix.ENOENT: // somebody has removed it
		err = unix.Unlinkat(d, boot(), 0)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", Own(dir), err)
	}
	return true, nil
}

// asideOf returns the name of the part that a file of ours tells.
func asideOf(d int) string {
	fd, err := unix.Openat(d, boot(), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return offName()
	}
	defer unix.Close(fd)
	var text [512]byte
	n, _ := unix.Read(fd, text[:])
	_, rest, _ := strings.Cut(string(text[:max(n, 0)]), "\n")
	name, _, _ := strings.Cut(rest, "\n")
	if !strings.HasPrefix(name, offName()) || strings.Contains(name, "/") { // rule: TestSwitchOffSquatted: name, offName() -> name, "none"
		return offName()
	}
	return name
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

// isOurs reports whether a file in a directory is a regular one of root's or of this user's: nobody
// else can remove it from a directory with the sticky bit.
func isOurs(d int, name string) bool {
	var st unix.Stat_t
	if unix.Fstatat(d, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	return st.Uid == 0 || int(st.Uid) == os.Geteuid()
}

// isShared reports whether others may make files in a directory, and remove only their own.
func isShared(d int) bool {
	var st unix.Stat_t
	return unix.Fstat(d, &st) == nil && st.Mode&unix.S_ISVTX != 0 && st.Mode&0o022 != 0
}
