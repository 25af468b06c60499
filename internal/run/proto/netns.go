package proto

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// netnsCookie is SO_NETNS_COOKIE, Linux 5.14.
const netnsCookie = 71

// NetNSOf is the cookie of a socket's network namespace.
func NetNSOf(fd int) (uint64, error) { return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, netnsCookie) }

// OwnNetNS is the cookie of this process's network namespace.
func OwnNetNS() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	cookie, err := NetNSOf(fd)
	if err != nil {
		return 0, fmt.Errorf("SO_NETNS_COOKIE (Linux 5.14): %w", err)
	}
	return cookie, nil
}
