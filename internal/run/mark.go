package run

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// markSuffix ends the name of a supervisor's mark: an empty file that the library maps before main.
// The mapping is in /proc/PID/maps for as long as the program runs, and in its children. The
// environment is not as good: many servers write their title over it.
const markSuffix = ".run"

// makeMark makes the mark of a supervisor. Its programs are found by their environment if it cannot be made.
func makeMark(socket string) error {
	f, err := os.OpenFile(socket+markSuffix, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// isMark reports whether a file is the mark of a supervisor, by its name.
func isMark(name string) bool {
	socket, ok := strings.CutSuffix(filepath.Base(name), markSuffix)
	return ok && isSupervisor(socket)
}

// isSupervisor reports whether a name is the name of a supervisor's socket: 16 hexadecimal digits.
func isSupervisor(name string) bool {
	return len(name) == 16 && strings.Trim(name, "0123456789abcdef") == ""
}

// markedBy returns the socket of the supervisor from the mark that a process has mapped, "" if
// there is none. maps is its /proc/PID/maps. The directory is the supervisor's as the reader's
// mount namespace shows it, which may be another one.
func markedBy(maps string) string {
	for line := range strings.Lines(maps) {
		i := strings.IndexByte(line, '/')
		if i < 0 {
			continue
		}
		path := strings.TrimSuffix(strings.TrimSuffix(line[i:], "\n"), " (deleted)")
		if isMark(path) {
			return strings.TrimSuffix(path, markSuffix)
		}
	}
	return ""
}

// marked reports whether a process, of this directory in /proc, has mapped the mark of the
// supervisor with this socket. No other process has a mark with its name.
func marked(dir, socket string) bool {
	maps, err := readProc(dir, "maps")
	return err == nil && strings.Contains(string(maps), "/"+filepath.Base(socket)+markSuffix)
}

// Supervisor returns the socket of the supervisor that serves a process, "" if there is none or the
// process cannot be asked. In a process of another mount namespace the directory may have another
// name here; the last element is the same.
func Supervisor(pid int) string {
	maps, err := readProc(filepath.Join(procDir, strconv.Itoa(pid)), "maps")
	if err != nil || !loaded(maps) {
		return ""
	}
	if socket := markedBy(string(maps)); socket != "" {
		return socket
	}
	return Variable(pid, EnvSocket) // the library could not open the mark, or was told to do nothing
}

// loaded reports whether our library is in the memory map of a process.
func loaded(maps []byte) bool { return strings.Contains(string(maps), "/libgosmc-") }

// Variable returns a variable of the environment with which a process was started, "" if it has
// none or cannot be asked. A program may have written over its environment. Then the value is taken
// from its supervisor, which was started with the same policy.
func Variable(pid int, name string) string {
	environ, err := readProc(filepath.Join(procDir, strconv.Itoa(pid)), "environ")
	if err != nil {
		return ""
	}
	list := strings.Split(string(environ), "\x00")
	if name == EnvSocket || lookup(list, EnvSocket) != "" {
		return lookup(list, name)
	}
	maps, err := readProc(filepath.Join(procDir, strconv.Itoa(pid)), "maps")
	if err != nil {
		return ""
	}
	socket := markedBy(string(maps))
	if socket == "" {
		return lookup(list, name)
	}
	supervisor, err := ownerOf(socket)
	if err != nil {
		return ""
	}
	environ, err = readProc(filepath.Join(procDir, strconv.Itoa(supervisor)), "environ")
	if err != nil {
		return ""
	}
	return lookup(strings.Split(string(environ), "\x00"), name)
}

// ownerOf returns the process that listens at a supervisor's socket.
func ownerOf(socket string) (pid int, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return 0, os.NewSyscallError("connect", err)
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt", err)
	}
	return int(cred.Pid), nil
}
