package smc

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
)

// A Conn is a connection over SMC or over plain TCP. It is a [net.Conn] with the methods
// that [net.TCPConn] has, and may be used by several goroutines at once.
//
// Read and Write allocate nothing. With SMC-D, the bytes that Write has taken are in the peer's
// memory, and reach it even if this process dies, from the first byte on. As on TCP, the peer of a
// process that ends without closing reads the written bytes and then [io.EOF], or a reset if that
// process had left something unread. With SMC-R it is this process that sends: it should not end
// before Close has returned, which waits for the peer's acknowledgement. The peer of a process that
// ended earlier reads the bytes that had arrived, and then an error, never io.EOF.
//
// A Conn that becomes unreachable without Close is closed by the garbage collector, as connections
// of package net are.
type Conn struct {
	c       innerConn // which the host holds: it must not lead back to the Conn
	cleanup runtime.Cleanup
}

// newConn returns the Conn that an application holds.
func newConn(inner innerConn) *Conn {
	c := &Conn{c: inner}
	c.cleanup = runtime.AddCleanup(c, innerConn.Forget, inner)
	return c
}

// FileConn returns a copy of the connected TCP socket that f is, as [net.FileConn] does. It is
// plain TCP: whether a connection moves to shared memory is decided when it is made. The caller
// closes both.
func FileConn(f *os.File) (*Conn, error) {
	inner, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := inner.(*net.TCPConn)
	if !ok {
		inner.Close()
		return nil, notTCP("file", inner.LocalAddr(), inner)
	}
	c, err := DefaultHost().h.Adopt(tcp)
	if err != nil {
		tcp.Close()
		return nil, publicError(err)
	}
	return newConn(c), nil
}

// notTCP is the error for a value that is not of TCP in package net, or hides that it is.
func notTCP(op string, addr net.Addr, what any) error {
	return &net.OpError{Op: op, Net: addr.Network(), Addr: addr,
		Err: fmt.Errorf("smc: cannot take over a %T", what)}
}

var (
	_ net.Conn      = (*Conn)(nil)
	_ net.Listener  = (*Listener)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
	_ syscall.Conn  = (*Conn)(nil)
)

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (int, error) {
	n, err := innerRead(c.c, b)
	runtime.KeepAlive(c) // a connection that is used is not to be collected, also by its last user
	return n, err
}

// Write implements [net.Conn]. Once the peer has closed one more is taken, as with TCP, and goes
// nowhere; the next fails with EPIPE. It fails with ECONNRESET if it was waiting for room when the
// peer closed, so that some of b is lost, or if the connection was reset.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := innerWrite(c.c, b)
	runtime.KeepAlive(c)
	return n, err
}

// WriteBuffers writes all buffers in order; small ones become visible to the peer together. It
// consumes the bytes that it has written, as the WriteTo method of [net.Buffers] does.
func (c *Conn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	n, err := c.c.WriteBuffers(bufs)
	runtime.KeepAlive(c)
	return n, err
}

// ReadFrom implements [io.ReaderFrom]. A regular file is read straight into the peer's
// buffer.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.c.ReadFrom(r)
	runtime.KeepAlive(c)
	return n, err
}

// WriteTo implements [io.WriterTo].
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	n, err := c.c.WriteTo(w)
	runtime.KeepAlive(c)
	return n, err
}

// Close implements [net.Conn]. Written bytes still reach the peer. If bytes have arrived that
// nobody has read, the connection is reset, as with TCP.
func (c *Conn) Close() error {
	err := c.c.Close()
	// A cleanup holds its connection, with the link group, over one more cycle of the garbage
	// collector. Where connections come and go that cycle counts all of them as live, and the heap
	// would grow with every cycle.
	c.cleanup.Stop() // rule: TestClosedIsCollected
	return err
}

// CloseRead ends reading. The peer is not told, as with TCP.
func (c *Conn) CloseRead() error { return c.c.CloseRead() }

// CloseWrite ends writing: the peer reads io.EOF after the written bytes.
func (c *Conn) CloseWrite() error { return c.c.CloseWrite() }

// LocalAddr implements [net.Conn]: the address of the TCP connection.
func (c *Conn) LocalAddr() net.Addr { return c.c.LocalAddr() }

// RemoteAddr implements [net.Conn].
func (c *Conn) RemoteAddr() net.Addr { return c.c.RemoteAddr() }

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetDeadline(t) }

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// SetNoDelay is remembered, and applied to the TCP connection. SMC-D delays nothing anyway. Over
// SMC-R a connection gathers small writes while an earlier one is on its way to the peer, until the
// program calls SetNoDelay(true): then each goes out at once.
func (c *Conn) SetNoDelay(noDelay bool) error { return c.c.SetNoDelay(noDelay) }

// SetKeepAlive turns keepalive on the idle TCP connection on or off. When it finds the
// peer unreachable, the connection ends.
func (c *Conn) SetKeepAlive(keepalive bool) error { return c.c.SetKeepAlive(keepalive) }

// SetKeepAlivePeriod works as in [net.TCPConn].
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error { return c.c.SetKeepAlivePeriod(d) }

// SetKeepAliveConfig works as in [net.TCPConn].
func (c *Conn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	return c.c.SetKeepAliveConfig(config)
}

// SetLinger with 0 makes Close reset the connection. Other values are remembered: Close never has
// to wait, because the bytes that Write has taken are in the peer's memory.
func (c *Conn) SetLinger(sec int) error { return c.c.SetLinger(sec) }

// SetReadBuffer sets the receive buffer of a plain TCP connection. The buffers of an SMC
// connection were agreed on in the handshake: set them in [Dialer] or [ListenConfig].
func (c *Conn) SetReadBuffer(bytes int) error { return c.c.SetReadBuffer(bytes) }

// SetWriteBuffer sets the send buffer of a plain TCP connection; see SetReadBuffer.
func (c *Conn) SetWriteBuffer(bytes int) error { return c.c.SetWriteBuffer(bytes) }

// SyscallConn returns the TCP socket. On SMC no data passes through it: its Write method fails with
// an error that matches [errors.ErrUnsupported], as Read does in place of waiting. A program that
// writes to the descriptor in another way breaks the connection.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.c.SyscallConn()
	if err == nil && c.c.Mode() != innerModeTCP {
		raw = heldConn{raw, c}
	}
	return raw, err
}

// A heldConn keeps its owner from being collected.
type heldConn struct {
	syscall.RawConn
	owner any
}

// File returns a copy of the socket of a plain TCP connection, as File of [net.TCPConn] does; the
// caller closes both. The bytes of an SMC connection pass through no file: the error then matches
// [errors.ErrUnsupported].
func (c *Conn) File() (*os.File, error) { return c.c.File() }

// Options are socket options as they were last set: RFC 7609 B.1.
type Options struct {
	NoDelay     bool // true unless SetNoDelay said otherwise, as in package net
	KeepAlive   net.KeepAliveConfig
	Linger      int // seconds; negative is the default
	ReadBuffer  int // bytes as set; 0 is the default
	WriteBuffer int
}

// Options returns the values that the Set methods were given.
func (c *Conn) Options() Options { return Options(c.c.Options()) }
