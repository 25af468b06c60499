package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gosmc/smc/internal/user"
)

// Supervisors returns the directory of the supervisors of 'gosmc run' of this user, in a run
// directory after [Prepare].
//
// It is the subdirectory [Run]. Where a run directory is shared that is shared, too, and each user
// has a part of its own beside it, run-UID, in which programs leave files to one another that
// nobody else must write: letters, and tables that all map. Where somebody else could exchange that
// part it is not used: its user does without them.
func Supervisors(dir string) string { return SupervisorsOf(dir, os.Geteuid()) }

// SupervisorsOf returns the directory of the supervisors of another user.
func SupervisorsOf(dir string, uid int) string {
	if part := ownPart(dir, uid); part != "" {
		return Path(dir, part)
	}
	return Path(dir, Run)
}

// Private returns the directory of the supervisors of this user if nobody else can write there or
// put something in its place.
func Private(dir string) (path string, ok bool) {
	path, uid := Supervisors(dir), os.Geteuid()
	return path, isPrivate(path, uid) && kept(dir, filepath.Base(path), uid)
}

// ownPart returns the name of a user's part, "" if there is none that can be used. Somebody else
// may have taken the name that it has as a rule: then another one begins with that and a dash.
func ownPart(dir string, uid int) string {
	usable := func(part string) bool { return isPrivate(Path(dir, part), uid) && kept(dir, part, uid) }
	name := partOf(uid)
	if usable(name) {
		return name
	}
	d, err := OpenDir(Own(dir))
	if err != nil {
		return ""
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxNames)
	names = slices.DeleteFunc(names, func(other string) bool { return !strings.HasPrefix(other, name+"-") })
	slices.Sort(names) // all programs of the user choose the same one
	if i := slices.IndexFunc(names, usable); i >= 0 {
		return names[i]
	}
	return ""
}

// AllSupervisors returns the directories of the supervisors of all users.
func AllSupervisors(dir string) []string {
	parts, _ := filepath.Glob(Path(dir, Run+"-*"))
	return append([]string{Path(dir, Run)}, parts...)
}

// partOf names a user's part, as a rule.
func partOf(uid int) string { return Run + "-" + strconv.Itoa(uid) }

// preparePart makes this user's part of a shared run directory. A user that has none does without.
func preparePart(dir string) error {
	uid := os.Geteuid()
	if ownPart(dir, uid) != "" {
		return nil
	}
	err := os.Mkdir(Path(dir, partOf(uid)), 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if ownPart(dir, uid) != "" || !kept(dir, "", uid) {
		return nil // another program has made it just now, or none would be used
	}
	_, err = os.MkdirTemp(Own(dir), partOf(uid)+"-") // rule: TestSupervisorsSquatted: os.MkdirTemp(Own(dir), partOf(uid)+"-") -> "", error(nil)
	return err
}

// isPrivate reports whether a directory is a user's alone.
func isPrivate(path string, uid int) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir() && info.Mode().Perm()&0o077 == 0 && isOf(info, uid)
}

// Kept reports whether only root and we can replace the files in a subdirectory of this boot's part
// of a run directory. If not, no file there can be believed to be the file that was made there.
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
