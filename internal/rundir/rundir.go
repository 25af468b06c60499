// Package rundir keeps the run directory, where the programs of one machine find each other:
// which one it is, what is in it, and who may put things there.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Subdirectories of the run directory; see docs/shared-memory.md.
const (
	ISM     = "ism"    // <gid>: sockets of Emulated-ISM devices
	Listen  = "listen" // <netns cookie>.<port>/<gid>...: announcements
	Control = "ctl"    // control sockets
)

const (
	systemDir = "/run/gosmc"
	envDir    = "GOSMC_DIR"
)

// Default returns the run directory that a host uses when nobody says otherwise:
// $GOSMC_DIR, else /run/gosmc if it can be written to, else $XDG_RUNTIME_DIR/gosmc, else
// gosmc-<uid> under /tmp. It need not exist yet.
func Default() string {
	if dir := os.Getenv(envDir); dir != "" {
		return dir
	}
	if info, err := os.Stat(systemDir); err == nil && info.IsDir() && syscall.Access(systemDir, 2 /* W_OK */) == nil {
		return systemDir
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "gosmc")
	}
	return "/tmp/gosmc-" + strconv.Itoa(os.Getuid())
}

// Prepare makes dir and its subdirectories where they are missing, and checks that
// nobody but us, root, or users who were let in on purpose can put things there.
func Prepare(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("run directory %q is not an absolute path", dir)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	mode, err := check(dir)
	if err != nil {
		return err
	}
	for _, sub := range []string{ISM, Listen, Control} {
		path := filepath.Join(dir, sub)
		switch err := os.Mkdir(path, 0o700); {
		case err == nil:
			// A directory that several users share must not become one user's because
			// that one came first.
			if mode.Perm() != 0o700 {
				if err := os.Chmod(path, mode); err != nil {
					return err
				}
			}
		case !errors.Is(err, fs.ErrExist):
			return err
		default:
			if _, err := check(path); err != nil {
				return err
			}
		}
		if err := syscall.Access(path, 2|1 /* W_OK|X_OK */); err != nil {
			return &os.PathError{Op: "access", Path: path, Err: err}
		}
	}
	return nil
}

// check returns the mode of a directory that can be trusted.
func check(path string) (fs.FileMode, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	if !info.IsDir() {
		return 0, fmt.Errorf("run directory %s is not a directory", path)
	}
	mode := info.Mode() & (fs.ModePerm | fs.ModeSticky)
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if owner != 0 && owner != os.Getuid() {
		return 0, fmt.Errorf("run directory %s belongs to user %d; set %s to a directory of your own", path, owner, envDir)
	}
	if mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0 {
		return 0, fmt.Errorf("run directory %s can be written by others without the sticky bit; chmod it 0700, or 1777 to share it", path)
	}
	return mode, nil
}
