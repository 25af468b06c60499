package engine

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/run/proto"
)

// A pair is the engine's end of a pair of Unix sockets with a program. It has a mark, by which its last
// close is a reset to the program, until [pair.finish].
type pair struct {
	*net.UnixConn
	raw    syscall.RawConn
	resets *proto.Resets
	name   string // of our end
	theirs string // of the program's
	once   sync.Once

	declines bool // the peer's first bytes may be the Decline of a client that has not heard in time
}

// init finds out the names of both ends.
func (p *pair) init() error {
	raw, err := p.UnixConn.SyscallConn()
	if err != nil {
		return err
	}
	p.raw = raw
	var ours, theirs unix.Sockaddr
	var err1, err2, err3 error
	err = raw.Control(func(fd uintptr) {
		ours, err1 = unix.Getsockname(int(fd))
		theirs, err2 = unix.Getpeername(int(fd))
		// An urgent byte is one of the stream then, and not lost.
		err3 = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
	})
	if err = errors.Join(err, err1, err2, err3); err != nil {
		return err
	}
	a, okA := ours.(*unix.SockaddrUnix)
	b, okB := theirs.(*unix.SockaddrUnix)
	if !okA || !okB {
		return unix.EINVAL
	}
	p.name, p.theirs = a.Name, b.Name
	return nil
}

// fail closes the end so that the program hears of a reset.
func (p *pair) fail() {
	p.once.Do(func() {
		p.resets.Set(p.name, true)
		p.UnixConn.Close()
	})
}

// finish closes the end in good order.
func (p *pair) finish() {
	p.once.Do(func() {
		p.resets.Set(p.name, false)
		p.UnixConn.Close()
	})
}

// awaitWord returns nil when the program has written something, or ends sending.
func (p *pair) awaitWord() error {
	return p.raw.Read(func(fd uintptr) bool { return p.has(fd, unix.POLLIN|unix.POLLRDHUP) })
}

// awaitClosed returns nil when the program has closed its end, all copies of it.
func (p *pair) awaitClosed() error {
	return p.raw.Read(func(fd uintptr) bool { return p.has(fd, 0) })
}

// closed reports whether it has.
func (p *pair) closed() (yes bool) {
	p.raw.Control(func(fd uintptr) { yes = p.has(fd, 0) })
	return yes
}

// has reports whether one of these events, POLLHUP or POLLERR is there.
func (p *pair) has(fd uintptr, events int16) bool {
	list := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(list, 0)
	return err == nil && n == 1
}

// wasReset reports whether the program has reset the connection with SO_LINGER, of which the kernel does
// not tell.
func (p *pair) wasReset() bool {
	return p.closed() && p.resets.Take(p.theirs)
}

// buffers are for pieces of connections.
var buffers = sync.Pool{New: func() any { return new([piece]byte) }}

// A mover moves the bytes of one connection in both directions, each in a goroutine.
//
//	event                                    action
//	the program ends sending                 so do we, and wait until it has closed its end
//	it has closed its end                    the connection is closed; bytes that it has not read reset it
//	it has reset it, or left bytes unread    the connection is reset
//	it only reads no more                    what the peer sends is discarded
//	the peer ends sending                    so do we
//	both have ended sending                  the connection is closed, and our end in good order
//	the connection is reset, or lost         our end is closed with its mark, behind all bytes
type mover struct {
	c    conn.Conn
	p    *pair
	over atomic.Int32  // directions that have ended in good order
	lost atomic.Bool   // the program has closed its end before bytes of the peer
	in   chan struct{} // closed when nothing more comes from the peer
}

// move moves bytes until the connection has ended.
func move(c conn.Conn, p *pair) {
	m := &mover{c: c, p: p, in: make(chan struct{})}
	c.SetNoDelay(true) // writes gather in the pair
	var both sync.WaitGroup
	both.Go(m.send)
	both.Go(m.receive)
	both.Wait()
	c.Close()
	p.finish()
}

// send moves what the program writes.
func (m *mover) send() {
	err := copyOut(m.c, m.p)
	switch {
	case err == nil && m.p.wasReset():
		m.abort()
		return
	case err == nil:
		err = m.c.CloseWrite()
	}
	if err != nil {
		// The program gets the peer's bytes before the reset. One that does not read them gets the
		// reset after drainTime.
		late := time.NewTimer(drainTime)
		defer late.Stop()
		select {
		case <-m.in:
		case <-late.C:
		}
		m.abort()
		return
	}
	if m.ended() || m.p.awaitClosed() != nil { // it fails when the other direction has ended
		return
	}
	if m.lost.Load() || m.p.wasReset() {
		m.abort()
		return
	}
	m.c.Close()
}

// receive moves what the peer writes.
func (m *mover) receive() {
	defer close(m.in)
	err := copyIn(m.c, m.p)
	if refused(err) {
		m.lost.Store(true)
		_, err = io.Copy(io.Discard, struct{ io.Reader }{m.c})
	}
	switch {
	case err == nil:
		m.p.resets.Set(m.p.name, false) // the end of our end is no reset any more
		m.p.CloseWrite()
		m.ended()
	case errors.Is(err, net.ErrClosed): // by send
	default:
		m.abort()
	}
}

// ended notes that a direction has ended in good order. If both have the connection is closed.
func (m *mover) ended() bool {
	if m.over.Add(1) < 2 {
		return false
	}
	m.c.Close()
	m.p.finish()
	return true
}

// abort ends the connection for both sides by a reset.
func (m *mover) abort() {
	m.c.Abort()
	m.p.fail()
}

// refused reports whether a write to the program has failed because that reads no more.
func refused(err error) bool { return errors.Is(err, unix.EPIPE) }

// copyOut copies what the program writes, until it ends sending.
func copyOut(c conn.Conn, p *pair) error {
	if c.Mode() == conn.ModeTCP {
		_, err := c.ReadFrom(p.UnixConn) // splice(2)
		return err
	}
	b := buffers.Get().(*[piece]byte)
	defer buffers.Put(b)
	for {
		n, err := p.Read(b[:])
		if n > 0 {
			if _, err := conn.Write(c, b[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return unlessEOF(err)
		}
	}
}

// copyIn copies what the peer writes, until it ends sending.
func copyIn(c conn.Conn, p *pair) error {
	if c.Mode() == conn.ModeTCP {
		if p.declines {
			if err := dropDecline(c, p); err != nil {
				return unlessEOF(err)
			}
		}
		_, err := c.WriteTo(p.UnixConn) // splice(2)
		return err
	}
	b := buffers.Get().(*[piece]byte)
	defer buffers.Put(b)
	for {
		n, err := conn.Read(c, b[:])
		if n > 0 {
			if _, err := p.Write(b[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return unlessEOF(err)
		}
	}
}

// dropDecline moves the first bytes of a client, but for a Decline that they begin with. Client and server
// have given up waiting for one another, and the client has to say so before anything else.
func dropDecline(c conn.Conn, p *pair) error {
	b := buffers.Get().(*[piece]byte)
	defer buffers.Put(b)
	for n := 0; ; {
		k, err := conn.Read(c, b[:][n:])
		n += k
		length, whole := declineLen(b[:n])
		switch {
		case whole || err != nil: // a part of one, and an end, are the program's
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = nil
			}
			c.SetReadDeadline(time.Time{})
			if !whole {
				length = 0
			}
			_, writeErr := p.Write(b[length:n])
			return cmp.Or(writeErr, err)
		case n == k: // the first part
			c.SetReadDeadline(time.Now().Add(firstTime))
		}
	}
}

// declineLen returns the length of the Decline with which bytes begin, 0 if it is none. It reports false if
// they may be the beginning of one: RFC 7609 p.105, SMCv2 p.78.
func declineLen(b []byte) (length int, whole bool) {
	const header, lenV1, lenV2 = 8, 28, 44
	may, _ := isFirst(b[:min(len(b), firstBytes)])
	if !may || len(b) >= firstBytes && b[firstBytes-1] != typeDecline {
		return 0, true
	}
	if len(b) < header {
		return 0, false
	}
	length = int(binary.BigEndian.Uint16(b[5:]))
	if length != lenV1 && length != lenV2 {
		return 0, true
	}
	return length, len(b) >= length
}

func unlessEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}
