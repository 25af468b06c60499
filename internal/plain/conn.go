package plain

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gosmc/smc/wire/clc"
)

// Mode is the transport that carries a connection's bytes.
type Mode uint8

// ModeTCP is the only mode.
const ModeTCP Mode = 0

// Options are the socket options of a connection as they were last set.
type Options struct {
	NoDelay     bool
	KeepAlive   net.KeepAliveConfig
	Linger      int // seconds; negative: default
	ReadBuffer  int // bytes, 0: default
	WriteBuffer int
}

// A Conn is a TCP connection that counts its bytes and remembers its options.
type Conn struct {
	host    *Host
	tcp     *net.TCPConn
	client  bool
	in, out atomic.Uint64 // bytes

	mu      sync.Mutex
	options Options
}

// Mode returns ModeTCP.
func (c *Conn) Mode() Mode { return ModeTCP }

// Reason returns why the connection is plain TCP.
func (c *Conn) Reason() clc.Reason { return c.host.reason }

// Totals returns the bytes that the application has read and written.
func (c *Conn) Totals() (in, out uint64) { return c.in.Load(), c.out.Load() }

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.tcp.Read(b)
	c.in.Add(uint64(n))
	return n, err
}

// Write implements [net.Conn].
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.tcp.Write(b)
	c.out.Add(uint64(n))
	return n, err
}

// WriteBuffers writes the buffers one after the other. On return, bufs holds the bytes that were
// not written.
func (c *Conn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	n, err := bufs.WriteTo(c.tcp)
	c.out.Add(uint64(n))
	return n, err
}

// ReadFrom implements [io.ReaderFrom].
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.tcp.ReadFrom(r)
	c.out.Add(uint64(n))
	return n, err
}

// WriteTo implements [io.WriterTo].
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	n, err := c.tcp.WriteTo(w)
	c.in.Add(uint64(n))
	return n, err
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.host.forget(c)
	return c.tcp.Close()
}

// Forget lets go of a connection that nobody can use any more. Package net closes its socket when
// that is unreachable, too.
func (c *Conn) Forget() { c.host.forget(c) }

// CloseRead is the method of [net.TCPConn].
func (c *Conn) CloseRead() error { return c.tcp.CloseRead() }

// CloseWrite is the method of [net.TCPConn].
func (c *Conn) CloseWrite() error { return c.tcp.CloseWrite() }

// LocalAddr implements [net.Conn].
func (c *Conn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

// RemoteAddr implements [net.Conn].
func (c *Conn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error { return c.tcp.SetDeadline(t) }

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error { return c.tcp.SetReadDeadline(t) }

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }

// SyscallConn returns the socket.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.tcp.SyscallConn() }

// File returns a copy of the socket.
func (c *Conn) File() (*os.File, error) { return c.tcp.File() }

// Options returns the values that the Set methods were given.
func (c *Conn) Options() Options {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.options
}

// set remembers an option if setting it did not fail.
func (c *Conn) set(err error, remember func(*Options)) error {
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	remember(&c.options)
	return nil
}

// SetNoDelay is the method of [net.TCPConn].
func (c *Conn) SetNoDelay(noDelay bool) error {
	return c.set(c.tcp.SetNoDelay(noDelay), func(o *Options) { o.NoDelay = noDelay })
}

// SetKeepAlive is the method of [net.TCPConn].
func (c *Conn) SetKeepAlive(on bool) error {
	return c.set(c.tcp.SetKeepAlive(on), func(o *Options) { o.KeepAlive.Enable = on })
}

// SetKeepAlivePeriod is the method of [net.TCPConn].
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	return c.set(c.tcp.SetKeepAlivePeriod(d),
		func(o *Options) { o.KeepAlive.Idle, o.KeepAlive.Interval = d, d })
}

// SetKeepAliveConfig is the method of [net.TCPConn].
func (c *Conn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	return c.set(c.tcp.SetKeepAliveConfig(config), func(o *Options) { o.KeepAlive = config })
}

// SetLinger is the method of [net.TCPConn].
func (c *Conn) SetLinger(sec int) error {
	return c.set(c.tcp.SetLinger(sec), func(o *Options) { o.Linger = sec })
}

// SetReadBuffer is the method of [net.TCPConn].
func (c *Conn) SetReadBuffer(bytes int) error {
	return c.set(c.tcp.SetReadBuffer(bytes), func(o *Options) { o.ReadBuffer = bytes })
}

// SetWriteBuffer is the method of [net.TCPConn].
func (c *Conn) SetWriteBuffer(bytes int) error {
	return c.set(c.tcp.SetWriteBuffer(bytes), func(o *Options) { o.WriteBuffer = bytes })
}

// errNoUrgent is the error of all that has to do with urgent data: each system has a way of its own
// to send and await it.
var errNoUrgent = fmt.Errorf("smc: urgent data needs Linux: %w", errors.ErrUnsupported)

func (c *Conn) noUrgent(op string) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: errNoUrgent}
}

// WriteUrgent fails: see errNoUrgent. It writes nothing.
func (c *Conn) WriteUrgent([]byte) (int, error) { return 0, c.noUrgent("write") }

// WaitUrgent fails: see errNoUrgent.
func (c *Conn) WaitUrgent() error { return c.noUrgent("read") }

// ReadUrgent fails: see errNoUrgent.
func (c *Conn) ReadUrgent() (byte, error) { return 0, c.noUrgent("read") }

// AtUrgentMark fails: see errNoUrgent.
func (c *Conn) AtUrgentMark() (bool, error) { return false, c.noUrgent("read") }

// SetUrgentInline fails: see errNoUrgent. false stands for the system's default.
func (c *Conn) SetUrgentInline(inline bool) error {
	if !inline {
		return nil
	}
	return c.noUrgent("set")
}
