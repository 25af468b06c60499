package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/user"
)

// dialHost connects to the control socket of that name in a folder, see [folder.dial].
func dialHost(ctx context.Context, d *folder, name string) (*net.UnixConn, error) {
	socket, _, err := d.pin(name)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	return d.dial(ctx, socket)
}

// dial connects to a pinned control socket, and tries again while its accept queue is full.
//
// A host in a user namespace of its own knows neither root outside of it nor any other user there:
// all of them have one number in it. So root connects to such a host as the user that has made the
// socket listen, whom the host knows. It is the kernel that names the user, and the host needs to
// believe nobody else.
func (d *folder) dial(ctx context.Context, socket *os.File) (*net.UnixConn, error) {
	const ourselves = -1
	path := pinned(socket)
	c, err := dialAs(ctx, path, ourselves)
	if err != nil {
		return nil, err
	}
	if err := d.admits(c); err != nil {
		c.Close()
		return nil, err
	}
	uid, ok := userElsewhere(c)
	if !ok { // rule: TestElsewhereRoot: !ok -> ok || !ok
		return c, nil
	}
	as, err := dialAs(ctx, path, uid)
	if errors.Is(err, unix.EPERM) { // root without the right to be another user
		return c, nil
	}
	c.Close()
	return as, err
}

// userElsewhere returns the user of the host at the other end of c, if that is in another user
// namespace and this process is root, who may become that user.
func userElsewhere(c *net.UnixConn) (uid int, ok bool) {
	if ruid, euid, suid := unix.Getresuid(); ruid != 0 || euid != 0 || suid != 0 {
		return 0, false
	}
	cred, err := peerCredentials(c)
	if err != nil || cred.Uid == 0 || cred.Pid <= 0 || !user.Known(int(cred.Uid)) {
		return 0, false
	}
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return 0, false
	}
	// A process with the number of one that has ended has us be a user without need: that user has
	// fewer rights, not more.
	other, err := os.Stat(fmt.Sprintf("/proc/%d/ns/user", cred.Pid))
	return int(cred.Uid), err == nil && !os.SameFile(own, other)
}

// dialAs connects to a control socket as a user, whom this process may become; -1 is its own.
func dialAs(ctx context.Context, path string, uid int) (*net.UnixConn, error) {
	for {
		c, err := connectAs(path, uid)
		if err == nil || !errors.Is(err, unix.EAGAIN) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(queueRetry):
		}
	}
}

// connectAs makes a socket and connects it, without waiting.
func connectAs(path string, uid int) (*net.UnixConn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	connect := func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) }
	if uid < 0 {
		err = connect()
	} else {
		err = as(uid, connect)
	}
	if err != nil {
		return nil, err
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// as calls f in a thread that has a user's rights to files and nothing of root's, by its effective
// user: root's real and saved user keep that user from sending it signals, and the kernel from
// letting it be traced. EPERM says that this process may not.
func as(uid int, f func() error) error {
	setresuid := uintptr(unix.SYS_SETRESUID)
	if runtime.GOARCH == "386" || runtime.GOARCH == "arm" {
		setresuid = 208 // setresuid32: the older call has users of 16 bits
	}
	const same = ^uintptr(0)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		// of this thread alone:
		if _, _, errno := unix.RawSyscall(setresuid, same, uintptr(uid), same); errno != 0 {
			done <- unix.EPERM
			return
		}
		err := f()
		// the first thread of a process stays when its goroutine ends
		unix.RawSyscall(setresuid, same, 0, same)
		done <- err
	}()
	return <-done
}
