package conn

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/transport"
)

// A byteSocket is the socket that the bytes of a connection without SMC pass through: TCP, or our
// end of a pair of Unix sockets.
type byteSocket interface {
	net.Conn
	syscall.Conn
	CloseRead() error
	CloseWrite() error
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
}

// A socketConn has the common part of [TCP] and [Unix]. They read and write themselves: see [Read].
type socketConn struct {
	base
	noFabric
	socket  byteSocket
	in, out atomic.Uint64 // bytes
	urgent  urgentSocket
}

// init makes c one of p, over a socket.
func (c *socketConn) init(p *Pending, s byteSocket) {
	c.base.init(p)
	c.socket, c.urgent.socket = s, s
}

// failed gives the connection's addresses to an error of a socket other than TCP's.
func (c *socketConn) failed(err error) error {
	if err == nil || !c.outlives {
		return err
	}
	return c.renamed(err)
}

// renamed is apart from failed, which would allocate without need.
func (c *socketConn) renamed(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) {
		return err // io.EOF
	}
	return c.opError(op.Op, op.Err)
}

// WriteBuffers implements [Conn].
func (c *socketConn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	n, err := bufs.WriteTo(c.socket)
	c.out.Add(uint64(n))
	return n, c.failed(err)
}

// SetDeadline implements [net.Conn].
func (c *socketConn) SetDeadline(t time.Time) error {
	c.urgent.setDeadline(t)
	return c.failed(c.socket.SetDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (c *socketConn) SetReadDeadline(t time.Time) error {
	c.urgent.setDeadline(t)
	return c.failed(c.socket.SetReadDeadline(t))
}

// SetWriteDeadline implements [net.Conn].
func (c *socketConn) SetWriteDeadline(t time.Time) error {
	return c.failed(c.socket.SetWriteDeadline(t))
}

// CloseRead implements [Conn].
func (c *socketConn) CloseRead() error { return c.failed(c.socket.CloseRead()) }

// CloseWrite implements [Conn].
func (c *socketConn) CloseWrite() error { return c.failed(c.socket.CloseWrite()) }

// close closes the socket of a connection that c is part of.
func (c *socketConn) close(self Conn) error {
	if err := c.beginClose(); err != nil {
		return err
	}
	c.env.Owner.Forget(self)
	c.urgent.close()
	return c.failed(c.socket.Close())
}

// SetReadBuffer implements [Conn].
func (c *socketConn) SetReadBuffer(bytes int) error {
	return c.setOption(func() error { return c.failed(c.socket.SetReadBuffer(bytes)) }, func(o *Options) { o.ReadBuffer = bytes })
}

// SetWriteBuffer implements [Conn].
func (c *socketConn) SetWriteBuffer(bytes int) error {
	return c.setOption(func() error { return c.failed(c.socket.SetWriteBuffer(bytes)) }, func(o *Options) { o.WriteBuffer = bytes })
}

// Totals implements [Conn].
func (c *socketConn) Totals() (in, out uint64) { return c.in.Load(), c.out.Load() }

// Socket implements [Conn].
func (c *socketConn) Socket() syscall.Conn { return c.socket }

// status is Status with the values of the socket alone.
func (c *socketConn) status() control.StatusConn {
	s := c.base.status()
	s.BytesIn, s.BytesOut = c.Totals()
	s.RecvQ, s.SendQ = socketQueues(c.socket)
	return s
}

// socketQueues returns how many bytes wait in the socket's buffers.
func socketQueues(sc syscall.Conn) (recv, send uint64) {
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, 0
	}
	raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ); err == nil {
			recv = uint64(max(n, 0))
		}
		if n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
			send = uint64(max(n, 0))
		}
	})
	return recv, send
}

// WriteUrgent implements [Conn].
func (c *socketConn) WriteUrgent(b []byte) (int, error) {
	n, err := c.urgent.write(b)
	c.out.Add(uint64(n))
	return n, c.ioError("write", err)
}

// ReadUrgent implements [Conn].
func (c *socketConn) ReadUrgent() (byte, error) {
	value, err := c.urgent.read()
	if err == nil {
		c.in.Add(1)
	}
	return value, c.ioError("read", err)
}

// WaitUrgent implements [Conn].
func (c *socketConn) WaitUrgent() error { return c.ioError("read", c.urgent.await()) }

// SetUrgentInline implements [Conn].
func (c *socketConn) SetUrgentInline(inline bool) error {
	return c.ioError("set", c.urgent.setInline(inline))
}

// AtUrgentMark implements [Conn].
func (c *socketConn) AtUrgentMark() (bool, error) {
	at, err := c.urgent.atMark()
	return at, c.ioError("read", err)
}

// noFabric has the methods of a [Conn] that have no meaning without SMC.
type noFabric struct{}

// Buffers implements [Conn].
func (noFabric) Buffers() (local, remote int) { return 0, 0 }

// Link implements [Conn].
func (noFabric) Link() uint8 { return 0 }

// Flush implements [Conn].
func (noFabric) Flush() {}

// Association implements [Conn].
func (noFabric) Association() transport.Association { return nil }

// AssociationEnded implements [Conn].
func (noFabric) AssociationEnded() {}

// LinkLost implements [Conn].
func (noFabric) LinkLost() {}

// Sweep implements [Conn].
func (noFabric) Sweep() (dirty bool) { return false }

// AppendCursors implements [Conn].
func (noFabric) AppendCursors(list []control.TraceEvent) []control.TraceEvent { return list }

// CheckListening returns an error if a listener of package net does not listen: package net accepts
// any socket as a listener.
func CheckListening(l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	listens := 0
	if cerr := raw.Control(func(fd uintptr) {
		listens, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	}); cerr != nil {
		return cerr
	}
	if err == nil && listens == 0 {
		err = unix.EINVAL // as accept has it
	}
	return err
}
