package procs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is where the kernel lists processes.
const Dir = "/proc"

// List returns the process IDs that are listed in a directory like [Dir].
func List(proc string) (pids []int) {
	d, err := os.Open(proc)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// ReadFile reads a file of a process, by its directory in [Dir], with fewer system calls than
// [os.ReadFile] takes.
func ReadFile(dir, name string) (text []byte, err error) {
	fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text = make([]byte, 0, 4096)
	for {
		if len(text) == cap(text) {
			text = append(text, make([]byte, len(text))...)[:len(text)]
		}
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return text, err
		}
		text = text[:len(text)+n]
	}
}

// Command is the name of a process, as ps(1) shows it; "" if there is no such process.
func Command(pid int) string {
	comm, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	return strings.TrimSuffix(string(comm), "\n")
}

// Lookup returns a variable of an environment, "" if it has none.
func Lookup(environ []string, name string) string {
	for _, e := range environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// User returns the effective user of a process, by its directory in [Dir]: the owner of that is root
// for a program that has changed its user. It reports false if the process has ended.
func User(dir string) (uid uint32, ok bool) {
	text, _ := ReadFile(dir, "status")
	for line := range strings.Lines(string(text)) {
		if ids, found := strings.CutPrefix(line, "Uid:"); found { // real, effective, saved, of files
			if fields := strings.Fields(ids); len(fields) > 1 {
				uid, err := strconv.ParseUint(fields[1], 10, 32)
				return uint32(uid), err == nil
			}
		}
	}
	return 0, false
}
