package control

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// socketsDir is the directory of the control sockets, in the run directory.
const socketsDir = rundir.Control

// openDir opens this boot's directory of control sockets in a run directory, without following a
// symbolic link in its place. With create it is made if need be.
func openDir(dir string, create bool) (*os.File, error) {
	if create { // a client looks at each socket instead
		if err := rundir.Prepare(dir); err != nil {
			return nil, err
		}
	}
	return rundir.OpenDir(rundir.Path(dir, socketsDir))
}

// socketAddr names a socket in dir in few bytes, however long the path of dir is.
// dir must stay open while the address is in use.
func socketAddr(dir *os.File, name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)}
}

// peerCredentials asks the kernel for the process at the other end of c.
func peerCredentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = optErr
	}
	if err != nil {
		return nil, err
	}
	return cred, nil
}
