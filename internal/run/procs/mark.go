package procs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

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
		if proto.IsMark(path) {
			return strings.TrimSuffix(path, proto.MarkSuffix)
		}
	}
	return ""
}

// marked reports whether a process, of this directory in /proc, has mapped the mark of the
// supervisor with this socket. No other process has a mark with its name.
func marked(dir, socket string) bool {
	maps, err := ReadFile(dir, "maps")
	return err == nil && strings.Contains(string(maps), "/"+filepath.Base(socket)+proto.MarkSuffix)
}

// Supervisor returns the socket of the supervisor that serves a process, "" if there is none or the
// process cannot be asked. In a process of another mount namespace the directory may have another
// name here; the last element is the same.
func Supervisor(pid int) string {
	maps, err := ReadFile(filepath.Join(Dir, strconv.Itoa(pid)), "maps")
	if err != nil || !Loaded(maps) {
		return ""
	}
	if socket := markedBy(string(maps)); socket != "" {
		return socket
	}
	return Variable(pid, proto.EnvSocket) // the library could not open the mark, or was told to do nothing
}

// Loaded reports whether our library is in the memory map of a process.
func Loaded(maps []byte) bool { return strings.Contains(string(maps), "/libgosmc-") }

// Variable returns a variable of the environment with which a process was started, "" if it has
// none or cannot be asked. A program may have written over its environment. Then the value is taken
// from its supervisor, which was started with the same policy.
func Variable(pid int, name string) string {
	environ, err := ReadFile(filepath.Join(Dir, strconv.Itoa(pid)), "environ")
	if err != nil {
		return ""
	}
	list := strings.Split(string(environ), "\x00")
	if name == proto.EnvSocket || Lookup(list, proto.EnvSocket) != "" {
		return Lookup(list, name)
	}
	maps, err := ReadFile(filepath.Join(Dir, strconv.Itoa(pid)), "maps")
	if err != nil {
		return ""
	}
	socket := markedBy(string(maps))
	if socket == "" {
		return Lookup(list, name)
	}
	supervisor, err := OwnerOf(socket)
	if err != nil {
		return ""
	}
	environ, err = ReadFile(filepath.Join(Dir, strconv.Itoa(supervisor)), "environ")
	if err != nil {
		return ""
	}
	return Lookup(strings.Split(string(environ), "\x00"), name)
}

// Stopped reports whether a process is stopped, as by SIGSTOP or a debugger.
func Stopped(pid int) bool {
	stat, err := ReadFile(filepath.Join(Dir, strconv.Itoa(pid)), "stat")
	if err != nil {
		return false
	}
	// The name, in brackets, may have blanks and brackets in it.
	state := strings.TrimSpace(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t")
}

// OwnerOf returns the process that listens at a supervisor's socket.
func OwnerOf(socket string) (pid int, err error) {
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
