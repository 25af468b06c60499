package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/gosmc/smc/internal/user"
)

// Supervisors returns the directory of the supervisors of 'gosmc run' of this user, in a run directory after [Prepare].
//
// It is the subdirectory [Run]. Where a run directory is shared that is shared, too, and each user has a part of its own beside it, run-UID, in which
// programs leave to one another what nobody else must write: letters, and tables that all map. Where somebody else could exchange that
// part it is not used: its user does without them.
func Supervisors(dir string) string { return SupervisorsOf(dir, os.Geteuid()) }

// SupervisorsOf returns the directory of the supervisors of another user.
func SupervisorsOf(dir string, uid int) string {
	if part := partOf(uid); isPrivate(Path(dir, part), uid) && kept(dir, part, uid) {
		return Path(dir, part)
	}
	return Path(dir, Run)
}

// Private returns the directory of the supervisors of this user if nobody else can write there or put something in its place.
func Private(dir string) (path string, ok bool) {
	path, uid := Supervisors(dir), os.Geteuid()
	return path, isPrivate(path, uid) && kept(dir, filepath.Base(path), uid)
}

// AllSupervisors returns the directories of the supervisors of all users.
func AllSupervisors(dir string) []string {
	parts, _ := filepath.Glob(Path(dir, Run+"-*"))
	return append([]string{Path(dir, Run)}, parts...)
}

// partOf names a user's part.
func partOf(uid int) string { return Run + "-" + strconv.Itoa(uid) }

// preparePart makes this user's part of a shared run directory. Who has none does without.
func preparePart(dir string) error {
	err := os.Mkdir(Path(dir, partOf(os.Geteuid())), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// isPrivate reports whether a directory is a user's alone.
func isPrivate(path string, uid int) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir() && info.Mode().Perm()&0o077 == 0 && isOf(info, uid)
}

// Kept reports whether only root and we can put something in the place of what is in a subdirectory of this boot's part of a run directory: if not, nothing that is there
// can be believed to be what was made there.
func Kept(dir, sub string) bool { return kept(dir, sub, os.Geteuid()) }

func kept(dir, sub string, uid int) bool {
	for _, path := range []string{dir, Own(dir), filepath.Join(Own(dir), sub)} {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return false
		}
		if !isOf(info, uid) && !isOf(info, 0) {
			return false
		}
	}
	return true
}

// isOf reports whether a file belongs to a user.
func isOf(info fs.FileInfo, uid int) bool {
	return int(info.Sys().(*syscall.Stat_t).Uid) == uid && (uid == 0 || user.Known(uid))
}
