// Package rundir keeps the run directory, where the programs of one machine find each other: which
// one it is, its parts, and the users that may put things there.
//
// A directory can be shared by several machines (over NFS, or by virtual machines). A file that a
// program puts there can be of use only as long as its kernel runs, so it goes into a subdirectory
// named after the boot.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/user"
)

// The subdirectories of a boot's part of a run directory; see docs/shared-memory.md.
const (
	ISM     = "ism"    // <gid>: sockets of Emulated-ISM devices
	Listen  = "listen" // <netns cookie>.<port>/<gid>...: announcements
	Control = "ctl"    // control sockets
	Run     = "run"    // supervisors of gosmc run; run-<uid> in a shared directory: see [Supervisors]
)

const (
	systemDir = "/run/gosmc"
	envDir    = "GOSMC_DIR"
)

// Default returns the run directory that a host uses when nobody says otherwise:
// $GOSMC_DIR, else /run/gosmc if it can be written to, else $XDG_RUNTIME_DIR/gosmc, else
// gosmc-<uid> under /tmp. It need not exist yet. A program that has privileges which its caller
// has not (setuid, setgid, file capabilities) does not look at the environment.
func Default() string {
	if dir := Getenv(envDir); dir != "" {
		return dir
	}
	if info, err := os.Stat(systemDir); err == nil && info.IsDir() &&
		unix.Faccessat(unix.AT_FDCWD, systemDir, unix.W_OK, unix.AT_EACCESS) == nil {
		return systemDir
	}
	if dir := Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "gosmc")
	}
	return "/tmp/gosmc-" + strconv.Itoa(os.Geteuid())
}

// DefaultOf returns the result that [Default] would have in a program of another user with the
// environment of this one. Whether /run/gosmc can be written to by that user is told from its mode.
func DefaultOf(uid int) string {
	if uid == os.Geteuid() {
		return Default()
	}
	if dir := Getenv(envDir); dir != "" {
		return dir
	}
	var st unix.Stat_t
	if unix.Stat(systemDir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR &&
		(uid == 0 || int(st.Uid) == uid || st.Mode&0o002 != 0) {
		return systemDir
	}
	if dir := filepath.Join("/run/user", strconv.Itoa(uid)); exists(dir) {
		return filepath.Join(dir, "gosmc")
	}
	return "/tmp/gosmc-" + strconv.Itoa(uid)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Getenv is [os.Getenv] for a variable that says where something is. A program that has privileges
// which its caller has not does not look at the environment: it gets "".
func Getenv(name string) string {
	if secure() {
		return ""
	}
	return os.Getenv(name)
}

// secure reports whether the caller of this program has less privileges than it has: AT_SECURE of
// getauxval(3).
var secure = sync.OnceValue(func() bool {
	const atSecure = 23
	vector, err := unix.Auxv()
	if err != nil {
		return os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid()
	}
	for _, entry := range vector {
		if entry[0] == atSecure {
			return entry[1] != 0
		}
	}
	return false
})

// boot names this boot of this machine: the kernel's boot id, 32 hexadecimal digits.
var boot = sync.OnceValue(func() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	id := strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")
	if err != nil || !isBoot(id) {
		return "unknown"
	}
	return id
})

// isBoot reports whether a name is the name of a boot.
func isBoot(name string) bool {
	return len(name) == 32 && strings.Trim(name, "0123456789abcdef") == ""
}

// Own returns the part of a run directory that belongs to this boot of this machine.
func Own(dir string) string { return filepath.Join(dir, boot()) }

// Path returns a subdirectory of this boot's part of a run directory.
func Path(dir, sub string) string { return filepath.Join(dir, boot(), sub) }

// Prepare makes dir and its subdirectories where they are missing. It checks that only we, root,
// and users that were let in on purpose can put things there.
func Prepare(dir string) error {
	if err := CheckPath(dir); err != nil {
		return err
	}
	mode, err := prepare(dir, 0o700)
	if err != nil {
		return err
	}
	if mode, err = prepare(Own(dir), mode); err != nil {
		return err
	}
	for _, sub := range []string{ISM, Listen, Control, Run} {
		path := Path(dir, sub)
		if _, err := prepare(path, mode); err != nil {
			return err
		}
		if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
			return &os.PathError{Op: "access", Path: path, Err: err}
		}
	}
	if mode.Perm()&0o022 != 0 {
		return preparePart(dir)
	}
	return nil
}

// CheckPath returns an error if no run directory can have a path.
func CheckPath(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("run directory %q is not an absolute path", dir)
	}
	if strings.ContainsFunc(dir, unicode.IsControl) { // rule: TestPrepareControl
		return fmt.Errorf("run directory %q has a control character in its name", dir)
	}
	return nil
}

// RemoveEmpty removes the directories that [Prepare] makes, if nobody has put anything into the run
// directory.
func RemoveEmpty(dir string) {
	if part := ownPart(dir, os.Geteuid()); part != "" {
		unix.Rmdir(Path(dir, part))
	}
	for _, sub := range []string{ISM, Listen, Control, Run} {
		unix.Rmdir(Path(dir, sub))
	}
	unix.Rmdir(Own(dir))
	unix.Rmdir(dir)
}

// prepare makes a directory with this mode if others may write to it, and a private one otherwise,
// unless there is one, and returns the mode of the directory that is there.
func prepare(path string, mode fs.FileMode) (fs.FileMode, error) {
	var err error
	if mode.Perm()&0o022 != 0 {
		err = Mkdir(path, mode)
	} else {
		err = os.Mkdir(path, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, err
	}
	return check(path)
}

// Mkdir makes a directory that has this mode from the moment on in which it can be seen, whatever
// the umask: one that several users share must not look like one user's to the next users.
func Mkdir(path string, mode fs.FileMode) error {
	if _, err := os.Lstat(path); err == nil {
		return &os.PathError{Op: "mkdir", Path: path, Err: fs.ErrExist}
	}
	early, err := os.MkdirTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	if err := chmodDir(early, mode); err != nil { // rule: TestMkdirOfStranger: chmodDir -> os.Chmod
		os.Remove(early)
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, early, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if err == nil {
		return nil
	}
	os.Remove(early)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	if err := os.Mkdir(path, 0o700); err != nil { // a file system that cannot do better
		return err
	}
	return chmodDir(path, mode)
}

func chmodDir(path string, mode fs.FileMode) error {
	bits := uint32(mode.Perm())
	for of, bit := range map[fs.FileMode]uint32{fs.ModeSticky: unix.S_ISVTX, fs.ModeSetgid: unix.S_ISGID} {
		if mode&of != 0 {
			bits |= bit
		}
	}
	return Chmod(unix.AT_FDCWD, path, unix.S_IFDIR, bits)
}

// check returns the mode of a directory that can be trusted.
func check(path string) (fs.FileMode, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	if info.Mode().IsRegular() && filepath.Base(path) == boot() { // rule: TestSwitchOff
		return 0, fmt.Errorf("run directory %s: %w", filepath.Dir(path), ErrOff)
	}
	if !info.IsDir() {
		return 0, fmt.Errorf("run directory %s is not a directory", path)
	}
	mode := info.Mode() & (fs.ModePerm | fs.ModeSticky | fs.ModeSetgid)
	if err := Check(path, int(info.Sys().(*syscall.Stat_t).Uid), mode); err != nil {
		return 0, err
	}
	return mode, nil
}

// Check decides whether a directory with this owner and mode (permissions and sticky bit) is good
// for us: whether others can put something there in the place of our files.
//
// In one that is sticky and open to all, or to a group, somebody has to come first, and may be any
// of them. Its owner could remove the files of others there, and so make their connections TCP. But
// the owner is not taken for them, since the kernel says which user is behind a socket.
func Check(path string, owner int, mode fs.FileMode) error {
	sticky := mode&fs.ModeSticky != 0
	switch {
	case mode.Perm()&0o022 != 0 && !sticky:
		return fmt.Errorf("run directory %s can be written by others without the sticky bit; chmod it 0700, or 1777 to share it", path)
	case owner != 0 && !user.Ours(owner) && !(sticky && mode.Perm()&0o022 != 0):
		return fmt.Errorf("run directory %s belongs to user %d; set %s to a directory of your own, or chmod it 1777 to share it", path, owner, envDir)
	}
	return nil
}
