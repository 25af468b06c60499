package introduce

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
)

// A line is one end of a conversation: a connected Unix socket that keeps message boundaries. Sending never
// waits.
type line struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	buf  [maxMessage + 1]byte // one more, to see that a message is too long

	// quota counts the descriptors of the account that are being closed; nil in a process, which trusts its
	// agent so far.
	quota *atomic.Int32
}

func newLine(c *net.UnixConn) (*line, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &line{conn: c, raw: raw}, nil
}

// errCongested means that the other side has not read enough of what was sent.
var errCongested = errors.New("introduce: the other side does not read")

// send sends a message, with the descriptors that are not negative. They stay the caller's. A
// message that the socket has no room for is not sent: errCongested.
func (l *line) send(m *Message, fds ...int) error {
	var array [maxMessage]byte
	b := m.Append(array[:0])
	var rights []byte
	if fds = slices.DeleteFunc(fds, func(fd int) bool { return fd < 0 }); len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	var err error
	cerr := l.raw.Control(func(s uintptr) {
		for {
			_, err = unix.SendmsgN(int(s), b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if err != unix.EINTR {
				return
			}
		}
	})
	switch {
	case cerr != nil:
		return cerr
	case err == unix.EAGAIN || err == unix.ETOOMANYREFS || err == unix.ENOBUFS:
		return errCongested
	case err != nil:
		return err
	}
	return nil
}

// discard closes a descriptor that has come with a message, and does not wait for that. -1 is none.
func (l *line) discard(fds ...int) {
	if fds = slices.DeleteFunc(fds, func(fd int) bool { return fd < 0 }); len(fds) == 0 {
		return
	}
	if l.quota == nil {
		dispose.Close(fds...)
		return
	}
	l.quota.Add(int32(len(fds)))
	dispose.CloseThen(func() { l.quota.Add(-int32(len(fds))) }, fds...)
}

// unread returns how much the other side has not read, in bytes as the kernel counts them.
func (l *line) unread() (n int) {
	l.raw.Control(func(s uintptr) { n, _ = unix.IoctlGetInt(int(s), unix.TIOCOUTQ) })
	return n
}

// errSlowClose means that too many descriptors of an account take too long to close.
var errSlowClose = errors.New("introduce: descriptors of the user take too long to close")

// awaitRoom waits until another descriptor of the account may come.
func (l *line) awaitRoom() error {
	if l.quota == nil {
		return nil
	}
	for end := time.Now().Add(closingTime); ; time.Sleep(closingPause) {
		if l.quota.Load() < maxClosing { // rule: TestSlowClose: l.quota.Load() < maxClosing -> true
			return nil
		}
		if time.Now().After(end) {
			return errSlowClose
		}
	}
}

// errRights means that a message came with another number of descriptors than it has.
var errRights = errors.New("introduce: a message with a wrong number of descriptors")

// read reads one packet, and the first two of the descriptors that come with it. The kernel throws the
// others away, which may take time if they are the last ones of their files. It does not flush them, as
// a close does: the process that is a file system may let that wait for ever, and SIGKILL does not end it.
func (l *line) read() (n int, fds []int, flags int, err error) {
	var oob [24]byte // unix.CmsgSpace(4), which is unix.CmsgSpace(8)
	if err = l.awaitRoom(); err != nil {
		return 0, nil, 0, err
	}
	cerr := l.raw.Read(func(s uintptr) bool {
		dispose.Hurry(func() {
			var oobn int
			for again := true; again; again = err == unix.EINTR {
				const how = unix.MSG_DONTWAIT | unix.MSG_CMSG_CLOEXEC
				n, oobn, flags, _, err = unix.Recvmsg(int(s), l.buf[:], oob[:], how)
			}
			fds = dispose.Descriptors(oob[:max(oobn, 0)])
		})
		return err != unix.EAGAIN
	})
	if cerr != nil {
		err = cerr
	}
	return n, fds, flags, err
}

// receive waits for a message, and for the descriptors that it carries, -1 for none: the second one is
// the memory of rings. The caller disposes of the descriptors. After an error the conversation is over:
// io.EOF, errRights, a [*wire.DecodeError], or the kernel's.
func (l *line) receive() (m Message, fd, memory int, err error) {
	n, fds, flags, err := l.read()
	defer func() {
		if err != nil {
			l.discard(fds...)
			fd, memory = -1, -1
		}
	}()
	switch {
	case err != nil:
		return m, -1, -1, err
	case n == 0:
		return m, -1, -1, io.EOF
	}
	if m, err = Parse(l.buf[:n]); err != nil {
		return m, -1, -1, err
	}
	// rule: TestHostileRights
	if len(fds) != m.rights() || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		return m, -1, -1, errRights
	}
	fds = append(fds, -1, -1)
	return m, fds[0], fds[1], nil
}
