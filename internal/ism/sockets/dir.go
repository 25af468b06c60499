// Package sockets is the directory in which the devices of a machine find each other: a Unix socket for
// each, by its GID. It opens the directory, makes a device's socket, and connects to another one's. It
// knows nothing of peerings.
package sockets

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/user"
	"github.com/gosmc/smc/wire"
)

// Errors to be matched with errors.Is.
var (
	// ErrOtherUser means that the other process belongs to another user.
	ErrOtherUser = errors.New("ism: process of another user")

	// ErrDead means that no device answers at the address: it never was here, or has ended.
	ErrDead = errors.New("ism: no such device")

	// ErrDir means that the directory is not a safe place for sockets.
	ErrDir = errors.New("ism: unsafe directory")
)

// backlog is the backlog that listen(2) is asked for; the kernel may use less.
const backlog = 512

// maxSunPath is the longest path that fits a Unix socket address, without the zero byte at its end.
const maxSunPath = 107

// A Dir is the open directory that holds the devices' sockets. Its methods may be called by several
// goroutines.
type Dir struct {
	path   string
	shared bool

	mu sync.RWMutex // of the descriptor
	fd int
}

// Open opens dir/ism, and makes it if need be, and checks that no third user can put a socket of theirs
// in the place of one of ours. With shared set, a new directory is open to all users, like /tmp. Errors
// match [ErrDir], or are the kernel's.
func Open(dir string, shared bool) (*Dir, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	d := &Dir{path: filepath.Join(dir, rundir.ISM), shared: shared, fd: -1}
	if d.fd, err = open(d.path, shared); err != nil {
		return nil, err
	}
	return d, nil
}

// open is [Open] for the path of the directory itself.
func open(path string, shared bool) (fd int, err error) {
	perm := os.FileMode(0o700)
	if shared {
		perm = 0o777 | os.ModeSticky
	}
	switch err := os.Mkdir(path, perm); {
	case err == nil && shared:
		// The process's umask has no say here. If the directory was replaced meanwhile, the check
		// finds it.
		if err := rundir.Chmod(unix.AT_FDCWD, path, unix.S_IFDIR, unix.S_ISVTX|0o777); err != nil {
			return -1, err
		}
	case err != nil && !errors.Is(err, fs.ErrExist):
		return -1, err
	}
	fd, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOTDIR || err == unix.ELOOP {
		return -1, fmt.Errorf("%w: %s is not a directory, or is a symbolic link", ErrDir, path)
	}
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := check(path, int(st.Uid), st.Mode); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// check decides whether a directory with this owner and mode is good for us.
func check(path string, owner int, mode uint32) error {
	m := fs.FileMode(mode & 0o777)
	if mode&unix.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	if err := rundir.Check(path, owner, m); err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	return nil
}

// Path is where the directory is.
func (d *Dir) Path() string { return d.path }

// Close closes the directory. The sockets stay.
func (d *Dir) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	unix.Close(d.fd)
	d.fd = -1
}

// isThere reports whether the path still leads to the directory.
func (d *Dir) isThere() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var open, there unix.Stat_t
	return unix.Fstat(d.fd, &open) == nil && unix.Lstat(d.path, &there) == nil &&
		open.Dev == there.Dev && open.Ino == there.Ino
}

// Reopen opens the directory anew if it was removed and made again; if need be it makes it.
func (d *Dir) Reopen() error {
	if d.isThere() {
		return nil
	}
	fd, err := open(d.path, d.shared)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd < 0 { // closed meanwhile
		unix.Close(fd)
		return net.ErrClosed
	}
	unix.Close(d.fd)
	d.fd = fd
	return nil
}

// Has reports whether the socket of a device is where others look for it.
func (d *Dir) Has(gid wire.ISMGID) bool {
	var st unix.Stat_t
	return unix.Lstat(filepath.Join(d.path, gid.String()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// address returns the address of a file in the directory. A path that is too long for an address
// is replaced by a short one that leads to the same place.
func (d *Dir) address(name string) *unix.SockaddrUnix {
	path := filepath.Join(d.path, name)
	if len(path) > maxSunPath {
		path = fmt.Sprintf("/proc/self/fd/%d/%s", d.fd, name)
	}
	return &unix.SockaddrUnix{Name: path}
}

// Listen makes the socket of a device. It gets its name when it already listens, so that a process
// that finds nobody behind a name knows that there never will be. With shared set, all users may
// connect. The caller closes the descriptor.
func (d *Dir) Listen(gid wire.ISMGID, shared bool) (fd int, err error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	name, early := gid.String(), ".new-"+gid.String()
	d.mu.RLock()
	defer d.mu.RUnlock()
	defer func() {
		if err != nil {
			unix.Unlinkat(d.fd, early, 0)
			unix.Close(sock)
		}
	}()
	if err = unix.Bind(sock, d.address(early)); err != nil {
		return -1, &os.PathError{Op: "bind", Path: filepath.Join(d.path, early), Err: err}
	}
	// The sticky bit of a file tells programs that clean up by age to pass it by: tmpfiles.d(5),
	// XDG Base Directory Specification.
	perm := uint32(unix.S_ISVTX | 0o600)
	if shared {
		perm = unix.S_ISVTX | 0o666
	}
	if err = rundir.Chmod(d.fd, early, unix.S_IFSOCK, perm); err != nil {
		return -1, err
	}
	if err = unix.Listen(sock, backlog); err != nil {
		return -1, os.NewSyscallError("listen", err)
	}
	if err = unix.Renameat(d.fd, early, d.fd, name); err != nil {
		return -1, &os.PathError{Op: "rename", Path: filepath.Join(d.path, early), Err: err}
	}
	return sock, nil
}

// Remove removes the socket of a device.
func (d *Dir) Remove(gid wire.ISMGID) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	unix.Unlinkat(d.fd, gid.String(), 0)
}

// Connect makes one attempt to connect to a device. unix.EAGAIN means that its backlog is full. Other
// errors match [ErrDead] or [ErrOtherUser], or are the kernel's. The caller closes the descriptor.
func (d *Dir) Connect(gid wire.ISMGID) (fd int, err error) {
	fd, err = d.tryConnect(gid)
	if errors.Is(err, unix.ENOENT) && !d.isThere() && d.Reopen() == nil {
		return d.tryConnect(gid)
	}
	return fd, err
}

func (d *Dir) tryConnect(gid wire.ISMGID) (fd int, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	for {
		err = unix.Connect(fd, d.address(gid.String()))
		if err != unix.EINTR {
			break
		}
	}
	if err == nil {
		return fd, nil
	}
	unix.Close(fd)
	var st unix.Stat_t
	found := unix.Fstatat(d.fd, gid.String(), &st, unix.AT_SYMLINK_NOFOLLOW) == nil
	foreign := found && !user.Ours(int(st.Uid))
	switch {
	case err == unix.ECONNREFUSED:
		if found && !foreign && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			unix.Unlinkat(d.fd, gid.String(), 0)
		}
		return -1, fmt.Errorf("%w: %v: %w", ErrDead, gid, err)
	case err == unix.ENOENT:
		return -1, fmt.Errorf("%w: %v: %w", ErrDead, gid, err)
	// A device whose queue is full is waited for, but not if it would be refused then: anybody can
	// have a socket whose queue stays full.
	case foreign && (err == unix.EACCES || err == unix.EPERM || err == unix.EAGAIN && !d.shared): // rule: internal/ism TestFullStranger: err == unix.EAGAIN && !d.shared -> false
		return -1, fmt.Errorf("%w: device %v belongs to user %d: %w", ErrOtherUser, gid, st.Uid, err)
	case err == unix.EAGAIN:
		return -1, err
	}
	return -1, os.NewSyscallError("connect", err)
}
