package inspect

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/library"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/rundir"
)

// 'gosmc run' says on standard error why it leaves a program to TCP. A service's standard error is
// in a log that a person who asks later does not look at, so the sentence is in the directory of
// supervisors, too: a file for each program and control group. The next 'gosmc run' of the program
// there writes it anew, or removes it. The process does not matter: a process that systemd has
// started forks, and ends.

const (
	leftPrefix = "tcp-"
	maxLeft    = 1 << 12 // bytes of a sentence
)

// leftName is the file for a program, which /proc/PID/exe names, and the control group of a process
// with this directory in /proc; "" if that is not known. Of the group its last element counts, such
// as redis.service: the others depend on the reader.
func leftName(process, program string) string {
	text, err := procs.ReadFile(process, "cgroup")
	if err != nil || program == "" {
		return ""
	}
	group := strings.TrimSpace(string(text))
	group = group[strings.LastIndexByte(group, '/')+1:]
	sum := sha256.Sum256([]byte(program + "\x00" + group))
	return leftPrefix + hex.EncodeToString(sum[:8])
}

// NoteLeft writes why the program at a path, which this process is about to become, is left to TCP;
// "" removes that.
func NoteLeft(dir, path, why string) {
	program, err := filepath.EvalSymlinks(path)
	name := leftName(filepath.Join(procs.Dir, "self"), program)
	if err != nil || name == "" {
		return
	}
	if why == "" {
		os.Remove(filepath.Join(rundir.Supervisors(dir), name))
		return
	}
	if rundir.Prepare(dir) == nil {
		text := program + "\n" + why
		library.WriteNew(filepath.Join(rundir.Supervisors(dir), name),
			[]byte(text[:min(len(text), maxLeft)]), 0o600)
	}
}

// left returns why 'gosmc run' has left a process to TCP, as far as it has said so in a directory
// of supervisors, or in another user's directory beside it.
func left(dir string, pid int) string {
	process := filepath.Join(procs.Dir, strconv.Itoa(pid))
	program, err := os.Readlink(filepath.Join(process, "exe"))
	name := leftName(process, program)
	if err != nil || name == "" {
		return ""
	}
	if maps, err := procs.ReadFile(process, "maps"); err != nil || procs.Loaded(maps) {
		return ""
	}
	for _, part := range rundir.AllSupervisors(above(dir)) {
		if _, why := readLeft(filepath.Join(part, name)); why != "" {
			return why
		}
	}
	return ""
}

func readLeft(file string) (program, why string) {
	text, err := readSmall(file, maxLeft)
	if err != nil {
		return "", ""
	}
	program, why, _ = strings.Cut(string(text), "\n")
	return oneLine(program), oneLine(why)
}

// readSmall reads a file of at most so many bytes, which somebody else may have put there: it
// follows no link, and waits for nobody.
func readSmall(path string, most int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() { // rule: TestLeftOfStranger
		return nil, fs.ErrInvalid
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(text) > most {
		err = fs.ErrInvalid
	}
	return text, err
}

// Left returns the programs that 'gosmc run' has left to TCP, and why, by their paths. They are the
// programs of a run directory; they may have ended.
func Left(dir string) map[string]string {
	all := make(map[string]string)
	for _, part := range rundir.AllSupervisors(dir) {
		maps.Copy(all, leftIn(part))
	}
	return all
}

// HasEnded reports whether no process runs a program of [Left], as its own file or as an argument of an
// interpreter. The file, which somebody else may have named, is not opened.
func HasEnded(program string) bool {
	file, err := os.Stat(program)
	return !slices.ContainsFunc(procs.List(procs.Dir), func(pid int) bool {
		dir := filepath.Join(procs.Dir, strconv.Itoa(pid))
		exe, exeErr := os.Stat(filepath.Join(dir, "exe"))
		if err == nil && exeErr == nil && os.SameFile(file, exe) {
			return true
		}
		line, _ := procs.ReadFile(dir, "cmdline")
		return slices.Contains(strings.Split(string(line), "\x00"), program)
	})
}

// leftIn is [Left] for a directory of supervisors.
func leftIn(dir string) map[string]string {
	files, _ := filepath.Glob(filepath.Join(dir, leftPrefix+"*"))
	m := make(map[string]string)
	for _, file := range files {
		if program, why := readLeft(file); why != "" {
			m[program] = why
		}
	}
	return m
}

// readOnlyFor reports whether a directory is in a file system that a process may only read, though
// we may write there: its unit takes that away.
func readOnlyFor(pid int, dir string) bool {
	theirs, err := procs.ReadFile(filepath.Join(procs.Dir, strconv.Itoa(pid)), "mountinfo")
	if err != nil || mountedReadOnly("", dir) {
		return false
	}
	return mountedReadOnly(string(theirs), dir)
}

// mountedReadOnly reports whether the mount of a directory is read-only: as a mountinfo has it
// (proc_pid_mountinfo(5)), or for us if that is "".
func mountedReadOnly(mountinfo, dir string) bool {
	if mountinfo == "" {
		var st unix.Statfs_t
		return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_RDONLY != 0
	}
	best, readOnly := "", false
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		point := f[4]
		if within := point == "/" || dir == point || strings.HasPrefix(dir, point+"/"); within &&
			len(point) >= len(best) {
			best, readOnly = point, strings.HasPrefix(f[5], "ro,") || f[5] == "ro"
		}
	}
	return readOnly
}

// oneLine makes a text fit to be printed.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return ';'
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, strings.TrimSpace(s))
}
