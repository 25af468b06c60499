package introduce

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
)

// A line is one end of a conversation: a connected Unix socket that keeps message boundaries. Sending never
// waits.
type line struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	buf  [maxMessage + 1]byte // one more, to see that a message is too long
	oob  []byte
}

func newLine(c *net.UnixConn) (*line, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &line{conn: c, raw: raw, oob: make([]byte, dispose.Room)}, nil
}

// errCongested means that the other side has not read enough of what was sent.
var errCongested = errors.New("introduce: the other side does not read")

// send sends a message, with a descriptor unless fd is negative. The descriptor stays the caller's. A
// message that the socket has no room for is not sent: errCongested.
func (l *line) send(m *Message, fd int) error {
	var array [maxMessage]byte
	b := m.Append(array[:0])
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
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

// errRights means that a message came with another number of descriptors than it has.
var errRights = errors.New("introduce: a message with a wrong number of descriptors")

// receive waits for a message, and for the descriptor that it carries, -1 for none. The caller
// disposes of the descriptor. After an error the conversation is over: io.EOF, errRights, a
// [*wire.DecodeError], or the kernel's.
func (l *line) receive() (m Message, fd int, err error) {
	n, oobn, flags, _, err := l.conn.ReadMsgUnix(l.buf[:], l.oob)
	fds := dispose.Descriptors(l.oob[:oobn])
	defer func() {
		if err != nil && len(fds) > 0 {
			dispose.Close(fds...)
			fd = -1
		}
	}()
	switch {
	case err != nil:
		return m, -1, err
	case n == 0:
		return m, -1, io.EOF
	}
	if m, err = Parse(l.buf[:n]); err != nil {
		return m, -1, err
	}
	// rule: TestHostileRights
	if len(fds) != m.rights() || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		return m, -1, errRights
	}
	if len(fds) == 1 {
		return m, fds[0], nil
	}
	return m, -1, nil
}
