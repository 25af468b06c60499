package library

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/user"
)

// File is the name of the library where 'make install' has put it.
const File = "libgosmc-run.so"

// systemLibraries is where root puts the library if nobody has installed it: children that root has
// run as other users have to read it.
var systemLibraries = "/var/cache/gosmc"

// A libraryTree has the library in several directories, one for each value that $LIB may have in
// LD_PRELOAD: a loader finds the one for its own programs. Loaders of 32-bit programs find a
// [stub].
type libraryTree struct {
	own     []string // values of $LIB for programs that the library is for
	foreign []string // for 32-bit programs of the same processor
	stub    elf.Machine
}

// treeOf is the tree for programs of this machine with a loader. The loader decides which programs
// "lib" is for.
func treeOf(loader string) libraryTree { return treeFor(runtime.GOARCH, loader) }

// treeFor is the tree for programs of an architecture. Without a loader that tells more "lib" is
// for 32-bit programs, as on Debian and Fedora.
func treeFor(arch, loader string) (t libraryTree) {
	switch arch {
	case "amd64":
		t = libraryTree{[]string{"lib/x86_64-linux-gnu", "lib64"},
			[]string{"lib/i386-linux-gnu", "lib32"}, elf.EM_386}
	case "arm64":
		t = libraryTree{[]string{"lib/aarch64-linux-gnu", "lib64"},
			[]string{"lib/arm-linux-gnueabihf", "lib/arm-linux-gnueabi", "lib32"}, elf.EM_ARM}
	default:
		return t
	}
	if name := t.valueOf(loader); loader != "" && (name == "" || name == "lib") {
		t.own = append(t.own, "lib")
	} else {
		t.foreign = append(t.foreign, "lib")
	}
	return t
}

// valueOf returns the text that a loader puts in place of $LIB, "" if that cannot be told. It is a
// string in the loader, or the end of one.
func (t libraryTree) valueOf(loader string) string {
	text, err := os.ReadFile(loader)
	if err != nil {
		return ""
	}
	for _, name := range append(slices.Clone(t.own), "lib") {
		if bytes.Contains(text, []byte(name+"\x00")) {
			return name
		}
	}
	return ""
}

// systemLoader is the loader of the programs that the library is for.
func systemLoader() string {
	return map[string]string{"amd64": "/lib64/ld-linux-x86-64.so.2",
		"arm64": "/lib/ld-linux-aarch64.so.1"}[runtime.GOARCH]
}

// Install puts the library where programs can load it, and returns its entry for LD_PRELOAD. It
// tries these places: where 'make install' has put it, beside the command; for root, where all
// users can read it; the run directory; the user's cache. Some of these may not be there, or
// nothing there may be executed. A copy that may be removed stays as long as the lock is open;
// there is none if it stays for good.
func Install(dir string, library []byte) (list string, lock *os.File, err error) {
	if library == nil {
		return "", nil, errors.New("there is no library for this architecture")
	}
	t := treeOf(systemLoader())
	if self, err := os.Executable(); err == nil {
		if path := t.preload(filepath.Join(filepath.Dir(self), "../lib/gosmc"), File, library); path != "" {
			return path, nil, nil
		}
	}
	if err := rundir.Prepare(dir); err != nil {
		return "", nil, err
	}
	name := copyName(sha256.Sum256(library))
	var failure error
	for _, p := range copyPlaces(dir) {
		list, lock, err := t.installCopy(p, name, library)
		if err == nil {
			return list, lock, nil
		}
		failure = errors.Join(failure, err)
	}
	return "", nil, failure
}

// installCopy puts a copy of the library into a place, unless it is there already.
func (t libraryTree) installCopy(p copyPlace, name string,
	library []byte) (list string, lock *os.File, err error) {
	if err := t.fit(p.dir, p.mode); err != nil {
		return "", nil, err
	}
	lock, err = hold(p.dir, p.mode, name)
	if err != nil {
		// Without a lock nobody removes a copy that may be there.
		if path := t.preload(p.dir, name, library); path != "" {
			return path, nil, nil
		}
		return "", nil, err
	}
	// A missing file is written even if our own loader would find the library: another installer
	// may only be about to write it, and children may have another loader.
	err = t.write(p.dir, p.mode, name, library) // rule: TestCopyIsWhole
	if path := t.preload(p.dir, name, library); path != "" {
		return path, lock, nil
	}
	if err == nil {
		err = fmt.Errorf("%s: somebody else writes there", p.dir)
	}
	lock.Close()
	t.removeCopy(lock.Name())
	return "", nil, err
}

// preload returns the entry for LD_PRELOAD if the library of that name is in place below dir, else
// "".
func (t libraryTree) preload(dir, name string, library []byte) string {
	if strings.ContainsAny(dir, " :$") { // LD_PRELOAD is a list
		return ""
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Flags&unix.ST_NOEXEC != 0 || !trusted(dir) {
		return ""
	}
	if value := t.valueOf(systemLoader()); value != "" &&
		installed(filepath.Join(dir, value, name), library) {
		return filepath.Join(dir, "$LIB", name)
	}
	for _, value := range t.own {
		if path := filepath.Join(dir, value, name); installed(path, library) {
			return path
		}
	}
	return ""
}

// Write writes the library below dir as 'make install' wants it: everybody may read it.
func Write(dir string, library []byte) error {
	if library == nil {
		return errors.New("there is no library for this architecture")
	}
	return treeOf(systemLoader()).write(dir, 0o755, File, library)
}

// WritePackaged writes the library for programs of an architecture below dir, as a package
// wants it that is made on any machine for many: where the loaders of Debian and Fedora look for
// it.
func WritePackaged(dir, arch string, library []byte) error {
	if library == nil {
		return fmt.Errorf("there is no library for the architecture %q", arch)
	}
	return treeFor(arch, "").write(dir, 0o755, File, library)
}

// write makes the directories, with a mode, and puts the library and the stub into them.
func (t libraryTree) write(dir string, mode os.FileMode, name string, library []byte) error {
	if err := t.fit(dir, mode); err != nil {
		return err
	}
	for values, what := range map[*[]string][]byte{&t.own: library, &t.foreign: stub(t.stub)} {
		for _, value := range *values {
			if err := writeFile(filepath.Join(dir, value), mode, name, what); err != nil {
				return err
			}
		}
	}
	return nil
}

// fit makes a directory, with a mode, and says why programs could not load the library from there.
func (t libraryTree) fit(dir string, mode os.FileMode) error {
	if strings.ContainsAny(dir, " :$") {
		return fmt.Errorf("%s: a library cannot be preloaded from a path with a space, colon or dollar sign", dir)
	}
	if err := makeDirectory(dir, mode); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		os.Remove(dir) // if it is empty
		return fmt.Errorf("%s: nothing can be executed there", dir)
	}
	return nil
}

// makeDirectory is [os.MkdirAll] whatever the umask is.
func makeDirectory(dir string, mode os.FileMode) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), mode); err != nil {
		return err
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return rundir.Chmod(unix.AT_FDCWD, dir, unix.S_IFDIR, uint32(mode.Perm()))
}

// writeFile puts a file into a directory, and makes that. A process that removes another copy may
// remove the directory at the same moment, if it is empty.
func writeFile(dir string, mode os.FileMode, name string, what []byte) (err error) {
	for range writeTries {
		if err = tryWriteFile(dir, mode, name, what); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func tryWriteFile(dir string, mode os.FileMode, name string, what []byte) error {
	path := filepath.Join(dir, name)
	if installed(path, what) {
		return nil
	}
	if parent := filepath.Dir(dir); filepath.Base(parent) == "lib" {
		if err := makeDirectory(parent, mode); err != nil {
			return err
		}
	}
	if err := makeDirectory(dir, mode); err != nil {
		return err
	}
	return WriteNew(path, what, 0o555)
}

// WriteNew puts a new file in the place of the one that a name leads to. It changes no other file,
// even if the name is a link.
func WriteNew(path string, what []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing, once it is renamed
	_, err = f.Write(what)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

// installed reports whether a file is the library, and can be changed by nobody but us and root.
func installed(path string, library []byte) bool {
	info, err := os.Lstat(path)
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil || st.Flags&unix.ST_NOEXEC != 0 { // a file can have a mount of its own
		return false
	}
	if err != nil || !info.Mode().IsRegular() || !ours(info) || !trusted(filepath.Dir(path)) {
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, library)
}

// trusted reports whether nobody but us and root can put something into a directory.
func trusted(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir() && ours(info)
}

func ours(info os.FileInfo) bool {
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	return info.Mode().Perm()&0o022 == 0 && (owner == 0 || user.Ours(owner))
}

// EnvPreload is the variable with the libraries that the loader puts into a program.
const EnvPreload = "LD_PRELOAD"
