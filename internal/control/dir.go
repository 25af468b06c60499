package control

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// socketsDir is the directory of the control sockets, in the run directory.
const socketsDir = "ctl"

// openDir opens <dir>/ctl, without following a symbolic link in its place. With
// create it is made if need be: private in a run directory that is private, and otherwise
// writable for the same people with the sticky bit, so that they cannot remove each other's sockets.
func openDir(dir string, create bool) (*os.File, error) {
	parent, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(parent)
	fail := func(op string, err error) (*os.File, error) {
		return nil, &os.PathError{Op: op, Path: dir + "/" + socketsDir, Err: err}
	}
	const othersWrite = 0o022
	var st unix.Stat_t
	if err := unix.Fstat(parent, &st); err != nil {
		return fail("stat", err)
	}
	shared := st.Mode&othersWrite != 0
	mode := uint32(0o700)
	if shared {
		mode = unix.S_ISVTX | st.Mode&0o777
	}
	made := false
	if create {
		err := unix.Mkdirat(parent, socketsDir, 0o700)
		made = err == nil
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fail("mkdir", err)
		}
	}
	fd, err := unix.Openat(parent, socketsDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", err)
	}
	ctl := os.NewFile(uintptr(fd), dir+"/"+socketsDir)
	if made && mode != 0o700 {
		if err := unix.Fchmod(fd, mode); err != nil { // Mkdirat obeys the umask
			ctl.Close()
			return fail("chmod", err)
		}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		ctl.Close()
		return fail("stat", err)
	}
	euid := uint32(os.Geteuid())
	switch {
	case !create: // a client looks at each socket instead
	case st.Mode&othersWrite != 0 && st.Mode&unix.S_ISVTX == 0:
		ctl.Close()
		return fail("use", fmt.Errorf("others may replace files in it (mode %#o): set the sticky bit or make it private", st.Mode&0o7777))
	case !shared && st.Uid != euid && st.Uid != 0:
		ctl.Close()
		return fail("use", fmt.Errorf("belongs to user %d, not to %d", st.Uid, euid))
	}
	return ctl, nil
}

// socketAddr names a socket in dir in few bytes, however long the path of dir is.
// dir must stay open while the address is in use.
func socketAddr(dir *os.File, name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)}
}

// peerCredentials asks the kernel who is at the other end of c.
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
