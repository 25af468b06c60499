package launch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Obstacle says why this process can do nothing for a program, "" if it can. A caller does nothing before it
// that could end the process.
func Obstacle() string {
	switch {
	case scarce():
		return "too few files may be open (ulimit -n)"
	case Deadly():
		return "a filter of system calls (seccomp) kills processes for calls that gosmc needs"
	}
	return ""
}

// descriptorsNeeded is how many this process has open at once, and some more.
const descriptorsNeeded = 16

// scarce reports whether there are too few descriptors for the work of this process itself: the
// runtime ends it if it cannot get the ones that it takes for granted. So the descriptors are
// counted before any file is opened.
func scarce() bool {
	var have [descriptorsNeeded]int
	n := 0
	defer func() {
		for _, fd := range have[:n] {
			unix.Close(fd)
		}
	}()
	for ; n < len(have); n++ {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return true
		}
		have[n] = fd
	}
	return false
}

// FindPlain looks a program up in PATH where this process can do nothing for it: it makes no system
// call that the program's start without gosmc would not make. Errors are [*os.PathError].
func FindPlain(program string) (string, error) {
	paths := []string{program}
	if !strings.Contains(program, "/") {
		paths = nil
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			paths = append(paths, filepath.Join(dir, program))
		}
	}
	err := error(syscall.ENOENT)
	for _, path := range paths {
		info, e := os.Stat(path)
		switch {
		case e != nil:
			continue
		case info.IsDir() || info.Mode()&0o111 == 0:
			err = syscall.EACCES
			continue
		}
		return path, nil
	}
	return "", &os.PathError{Op: "exec", Path: program, Err: err}
}

// WithTools returns an environment that has a gosmc in its PATH, so that programs, and shells, can
// see their own connections. self is the path of this gosmc. Its directory comes last, and only if
// PATH has no gosmc.
func WithTools(environ []string, self string) []string {
	hasPath := func(e string) bool { return strings.HasPrefix(e, "PATH=") && e != "PATH=" }
	i := slices.IndexFunc(environ, hasPath)
	dir, name := filepath.Split(self)
	if i < 0 || name != "gosmc" || strings.ContainsRune(dir, filepath.ListSeparator) {
		return environ
	}
	for _, have := range filepath.SplitList(strings.TrimPrefix(environ[i], "PATH=")) {
		info, err := os.Stat(filepath.Join(have, name))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return environ
		}
	}
	environ = slices.Clone(environ)
	environ[i] += string(filepath.ListSeparator) + filepath.Clean(dir)
	return environ
}
