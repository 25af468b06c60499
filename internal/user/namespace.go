package user

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Requests of ioctl_nsfs(2) on the file of a user namespace.
const (
	nsGetParent   = 0xb702
	nsGetOwnerUID = 0xb704
)

// maxDepth is how deep the kernel nests user namespaces, with room: user_namespaces(7).
const maxDepth = 64

// A Home says to which part of the machine a process belongs, as far as users can make such parts.
type Home struct {
	// Namespace is the outermost user namespace around the process that is not around the caller:
	// the inode of its file in /proc/PID/ns. It is 0 if the process is in the caller's.
	Namespace uint64

	// Owner is the user who has made that namespace, or the real user of a process in the caller's.
	// Users inside of a namespace are numbers that its owner may give away.
	Owner int
}

// HomeOf returns the home of a process. The number of a process that has ended may be another one's
// now: a caller who must be sure has a pidfd. An error says that the process cannot be seen, has
// ended, or is outside of the caller's user namespace.
func HomeOf(pid int) (Home, error) {
	var own, st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/user", &own); err != nil {
		return Home{}, err
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Home{}, err
	}
	defer func() { unix.Close(fd) }()
	var h Home
	for range maxDepth {
		if err := unix.Fstat(fd, &st); err != nil {
			return Home{}, err
		}
		if st.Dev == own.Dev && st.Ino == own.Ino {
			if h.Namespace == 0 {
				h.Owner, err = realUser(pid)
			}
			return h, err
		}
		owner, err := unix.IoctlGetUint32(fd, nsGetOwnerUID)
		if err != nil {
			return Home{}, err
		}
		h = Home{st.Ino, int(owner)}
		parent, err := unix.IoctlRetInt(fd, nsGetParent)
		if err != nil {
			return Home{}, err // EPERM: around the caller's, or beside it
		}
		unix.Close(fd)
		fd = parent
	}
	return Home{}, unix.ELOOP
}

// realUser returns the user who has started a process: a setuid program has another effective one.
func realUser(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == "Uid:" {
			return strconv.Atoi(string(fields[1]))
		}
	}
	return 0, fmt.Errorf("/proc/%d/status names no user", pid)
}
