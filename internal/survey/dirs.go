package survey

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// A dirFinder knows where run directories may be. Its fields are replaced in tests.
type dirFinder struct {
	root   string // "/"
	getenv func(string) string
	uid    int
}

func systemDirFinder() dirFinder { return dirFinder{"/", os.Getenv, os.Geteuid()} }

// Dirs lists the run directories of this machine that exist, each once, however many names it has.
// Root also sees the directories of the other users.
func Dirs() []string { return systemDirFinder().find() }

func (f dirFinder) find() []string {
	candidates := []string{f.getenv("GOSMC_DIR"), filepath.Join(f.root, "run/gosmc")}
	if dir := f.getenv("XDG_RUNTIME_DIR"); dir != "" {
		candidates = append(candidates, filepath.Join(dir, "gosmc"))
	}
	candidates = append(candidates, sharedDir(f.root, f.uid))
	if f.uid == 0 {
		for _, pattern := range []string{"tmp/gosmc-*", "run/user/*/gosmc"} {
			// The only error is a bad pattern.
			found, _ := filepath.Glob(filepath.Join(f.root, pattern))
			candidates = append(candidates, found...)
		}
	}
	var dirs []string
	seen := make(map[[2]uint64]bool)
	for i, dir := range candidates {
		info, err := os.Stat(dir)
		if dir == "" || err != nil || !info.IsDir() {
			continue
		}
		st := info.Sys().(*syscall.Stat_t)
		if i > 0 && isShared(f.root, dir) && st.Uid != 0 && dir != sharedDir(f.root, int(st.Uid)) { // rule: TestDirFinder: st.Uid != 0 -> i < 0
			continue // gosmc makes none of such a name: a user could have as many there as it likes
		}
		if id := [2]uint64{uint64(st.Dev), st.Ino}; !seen[id] {
			seen[id] = true
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// sharedDir is the run directory of a user in a directory in which all users make files.
func sharedDir(root string, uid int) string {
	return filepath.Join(root, "tmp", "gosmc-"+strconv.Itoa(uid))
}

// isShared reports whether a directory is in the one in which all users make files.
func isShared(root, dir string) bool { return filepath.Dir(dir) == filepath.Join(root, "tmp") }
