package proto

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LinkPath is the path of the link for a port in a network namespace.
func LinkPath(dir string, netns uint64, port uint16) string {
	return filepath.Join(dir, fmt.Sprintf("%016x.%d", netns, port))
}

// LinkedSocket is the name of the socket in the target of a link.
func LinkedSocket(target string) string {
	socket, _, _ := strings.Cut(target, ".")
	return socket
}

// Answers reports whether a supervisor, or anything, answers at a socket.
func Answers(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true // not known
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	return err != unix.ECONNREFUSED && err != unix.ENOENT
}

// IsLink reports whether a name is the name of the link for a port, or of one that is about to take
// its place.
func IsLink(name string) bool {
	netns, port, ok := strings.Cut(name, ".")
	if early, found := strings.CutPrefix(name, ".new-"); found {
		netns, port, ok = strings.Cut(early, "-")
	}
	_, err := strconv.ParseUint(port, 10, 16)
	return ok && err == nil && IsSocketName(netns) // as many digits
}

// MarkSuffix ends the name of a supervisor's mark: a file that the library maps before main, with the
// path in /proc of the memory in which programs count bytes.
// The mapping is in /proc/PID/maps for as long as the program runs, and in its children. The
// environment is not as good: many servers write their title over it.
const MarkSuffix = ".run"

// IsMark reports whether a file is the mark of a supervisor, by its name.
func IsMark(name string) bool {
	socket, ok := strings.CutSuffix(filepath.Base(name), MarkSuffix)
	return ok && IsSocketName(socket)
}

// IsSocketName reports whether a name is the name of a supervisor's socket: 16 hexadecimal digits.
func IsSocketName(name string) bool {
	return len(name) == 16 && strings.Trim(name, "0123456789abcdef") == ""
}

// boxSuffix comes behind the name of the supervisor's socket, and the letterbox's number behind it,
// as a hexadecimal digit.
const boxSuffix = ".in"

// BoxPath is the path of a letterbox of the supervisor with this socket; numbers start at 0.
func BoxPath(socket string, number int) string {
	return fmt.Sprintf("%s%s%x", socket, boxSuffix, number)
}

// IsBox reports whether a path may be the path of a letterbox.
func IsBox(path string) bool {
	socket, number, ok := strings.Cut(filepath.Base(path), boxSuffix)
	return ok && len(socket) == 16 && len(number) == 1
}

// BoxOf is the number of the letterbox for a connection, by the port of its client: the kernel
// gives ports that are all odd, or all even.
func BoxOf(client uint16) int { return int(client) / 2 % Letterboxes }

// NewSocketName returns a name for the socket of a supervisor, which nobody can foresee.
func NewSocketName() string {
	var random [8]byte
	rand.Read(random[:])
	return hex.EncodeToString(random[:])
}

// DoorName is the abstract name of the door of the supervisor with this socket name.
func DoorName(socketName string) string { return "@gosmc-run/" + socketName }
