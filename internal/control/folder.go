package control

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/user"
)

// A folder is an open directory of control sockets, as clients see it.
type folder struct {
	*os.File

	// there says that the directory is below the root of another process, whose home is home. A user
	// can show any file of the machine in such a directory, by a mount.
	there bool
	home  user.Home
}

// errElsewhere says that a control socket in a container is a file from outside of it.
var errElsewhere = errors.New("its process is not in the container's user namespace: not asked")

// openFolder opens this boot's directory of control sockets in a run directory.
func openFolder(dir string) (*folder, error) {
	pid, there := rundir.Inside(dir)
	if !there {
		f, err := openDir(dir, false)
		if err != nil {
			return nil, err
		}
		return &folder{File: f}, nil
	}
	// With the pidfd the number means the same process in all three places.
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		err = unix.ENOENT
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(pidfd)
	f, err := openDir(dir, false)
	if err != nil {
		return nil, err
	}
	home, err := user.HomeOf(pid)
	if err == nil {
		err = unix.PidfdSendSignal(pidfd, 0, nil, 0)
	}
	if err != nil {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: dir, Err: unix.ENOENT} // it has ended
	}
	return &folder{f, true, home}, nil
}

// pin opens a socket in the folder without a connection to it: what is connected to is the file
// that was looked at, whatever has its name by then. It returns [unix.ENOTSOCK] for another kind
// of file, also for a symbolic link.
func (d *folder) pin(name string) (*os.File, *unix.Stat_t, error) {
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	// rule: TestPin: != unix.S_IFSOCK -> == 0
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = unix.ENOTSOCK
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, &st, nil
}

// admits returns an error if the process at the other end of c must not be asked for the sake of
// this folder. Root can connect where the user cannot who shows it a socket, and a question is a
// message, too.
func (d *folder) admits(c *net.UnixConn) error {
	if !d.there || d.home.Namespace == 0 {
		return nil
	}
	cred, err := peerCredentials(c)
	if err != nil {
		return err
	}
	h, err := user.HomeOf(int(cred.Pid))
	if err != nil || h.Namespace != d.home.Namespace { // rule: TestForeignSocket: != d.home.Namespace -> > 1<<60
		return errElsewhere
	}
	return nil
}

// payer is the user who pays for a host with a socket of user uid in the folder.
func (d *folder) payer(uid uint32) int {
	if d.there && d.home.Namespace != 0 {
		return d.home.Owner
	}
	return int(uid)
}

// pinned is the path of a file that [folder.pin] has opened.
func pinned(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
