package host

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// Mode is what carries a connection's bytes.
type Mode uint8

// The modes.
const (
	ModeTCP Mode = iota
	ModeSMCD
	ModeSMCR
	ModeUnix // a pair of Unix sockets, with a program of 'gosmc run'
)

var modeNames = [...]string{ModeTCP: "TCP", ModeSMCD: "SMC-D", ModeSMCR: "SMC-R", ModeUnix: "Unix"}

func (m Mode) String() string { return modeNames[m] }

// modes are those of core.
var modes = map[core.Mode]Mode{core.SMCD: ModeSMCD, core.SMCR: ModeSMCR}

// A Conn is an established connection, over SMC, plain TCP or a pair of Unix sockets. Its methods may be called
// by several goroutines at once, and have the meaning that they have in package net.
type Conn struct {
	host *Host
	id   uint64 // of the host's connections, from 1
	tcp  *net.TCPConn

	local, remote netip.AddrPort // of tcp; unmapped, without zone

	data *stream.Conn // nil where bytes pass through a socket
	pair *pairEnd     // nil but for ModeUnix
	mode Mode

	client  bool
	since   time.Time
	reason  clc.Reason        // why plain TCP
	byPeer  bool              // the peer declined
	agreed  *Agreed           // never changed; nil on plain TCP, and before there is anything
	group   wire.LinkID       // 0: none
	binding transport.Binding // nil on plain TCP
	traits  transport.Traits  // of binding
	unused  bool              // the application has closed it; guarded by the host's mu

	tcpIn, tcpOut atomic.Uint64 // bytes, on plain TCP
	urgent        urgentSocket
	crossing      *crossing // what plain TCP may begin with; nil for most

	options   optionStore
	keepAlive lateKeepAlive // put off until the mode is known

	ready atomic.Bool // data is there for wake
	left  atomic.Bool // peerLeft has run
	lost  atomic.Bool // elementLost has run

	// mu guards what follows. It is held while outputs of life are carried out.
	mu       sync.Mutex
	life     *core.Conn
	sends    bool              // the way to the peer is open
	holds    bool              // our buffer is there
	watcher  *tcpwatch.Watcher // nil if the TCP socket is not watched
	watchKey int64
	tcpEnded bool // the TCP socket is closed
	tcpReset bool // it was reset, which counts a moment later
	timer    *time.Timer
	closed   bool  // Close was called
	broken   error // the rule that the peer broke; nil if it has not
	counted  bool  // that it failed
	outputs  []core.Output

	awaitsWord bool // awaitWord was called

	unreadSweeps int // sweeps in which the connection was quiet, but not all was known to be read
}

// Mode returns what carries the bytes.
func (c *Conn) Mode() Mode { return c.mode }

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (int, error) {
	if c.data == nil {
		n, err := c.readSocket(b)
		c.tcpIn.Add(uint64(n))
		return n, err
	}
	n, err := c.data.Read(b)
	if err != nil && err != io.EOF {
		err = opError("read", c, err)
	}
	return n, err
}

// readSocket reads from plain TCP, or a pair.
func (c *Conn) readSocket(b []byte) (int, error) {
	if c.pair != nil {
		return c.pair.Read(b)
	}
	if c.crossing != nil && len(b) > 0 {
		if n, err, ok := c.crossing.read(socket{c.tcp}, b); ok {
			return n, err
		}
	}
	return c.tcp.Read(b)
}

// Write implements [net.Conn].
func (c *Conn) Write(b []byte) (int, error) {
	if c.data == nil {
		n, err := c.writeSocket(b)
		c.tcpOut.Add(uint64(n))
		return n, err
	}
	n, err := c.data.Write(b)
	if err != nil {
		err = opError("write", c, err)
	}
	return n, err
}

func (c *Conn) writeSocket(b []byte) (int, error) {
	if c.pair != nil {
		return c.pair.Write(b)
	}
	return c.tcp.Write(b)
}

// WriteBuffers writes the buffers one after the other, like a writev. On return, bufs
// holds what was not written.
func (c *Conn) WriteBuffers(bufs *net.Buffers) (int64, error) {
	if c.data == nil {
		var n int64
		var err error
		if c.pair != nil {
			n, err = c.pair.writeBuffers(bufs)
		} else {
			n, err = bufs.WriteTo(c.tcp)
		}
		c.tcpOut.Add(uint64(n))
		return n, err
	}
	n, err := c.data.WriteBuffers(*bufs)
	consume(bufs, n)
	if err != nil {
		err = opError("writev", c, err)
	}
	return n, err
}

// consume drops the first n bytes.
func consume(bufs *net.Buffers, n int64) {
	for len(*bufs) > 0 {
		first := int64(len((*bufs)[0]))
		if first > n {
			(*bufs)[0] = (*bufs)[0][n:]
			return
		}
		n -= first
		(*bufs)[0] = nil
		*bufs = (*bufs)[1:]
	}
}

// ReadFrom implements [io.ReaderFrom].
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	if c.data == nil {
		n, err := c.readSocketFrom(r)
		c.tcpOut.Add(uint64(n))
		return n, err
	}
	n, err := c.data.ReadFrom(r)
	return n, c.copyError("readfrom", err)
}

func (c *Conn) readSocketFrom(r io.Reader) (int64, error) {
	if c.pair != nil {
		return c.pair.ReadFrom(r)
	}
	return c.tcp.ReadFrom(r)
}

// WriteTo implements [io.WriterTo].
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	if c.data == nil {
		n, err := c.writeSocketTo(w)
		c.tcpIn.Add(uint64(n))
		return n, err
	}
	n, err := c.data.WriteTo(w)
	return n, c.copyError("writeto", err)
}

// writeSocketTo is WriteTo on plain TCP, or a pair.
func (c *Conn) writeSocketTo(w io.Writer) (int64, error) {
	if c.pair != nil {
		return c.pair.WriteTo(w)
	}
	if c.crossing == nil {
		return c.tcp.WriteTo(w)
	}
	held, err := c.crossing.writeTo(socket{c.tcp}, w)
	if err != nil {
		return held, err
	}
	n, err := c.tcp.WriteTo(w)
	return held + n, err
}

// copyError wraps the error of a copy, whichever end it is from, as package net does.
func (c *Conn) copyError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return opError(op, c, err)
}

// LocalAddr implements [net.Conn].
func (c *Conn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

// RemoteAddr implements [net.Conn].
func (c *Conn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	if c.data == nil {
		c.urgent.setDeadline(t)
		return c.setPair(c.socket().SetDeadline(t))
	}
	err := c.data.SetReadDeadline(t)
	if err == nil {
		err = c.data.SetWriteDeadline(t)
	}
	return c.setError(err)
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.data == nil {
		c.urgent.setDeadline(t)
		return c.setPair(c.socket().SetReadDeadline(t))
	}
	return c.setError(c.data.SetReadDeadline(t))
}

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.data == nil {
		return c.setPair(c.socket().SetWriteDeadline(t))
	}
	return c.setError(c.data.SetWriteDeadline(t))
}

// setPair gives an error of a pair the connection's addresses.
func (c *Conn) setPair(err error) error {
	if c.pair != nil {
		return c.pair.failed(err)
	}
	return err
}

func (c *Conn) setError(err error) error {
	if err != nil {
		return opError("set", c, err)
	}
	return nil
}

// CloseRead ends reading: reads return io.EOF. As with TCP the peer is not told.
func (c *Conn) CloseRead() error {
	switch {
	case c.pair != nil:
		return c.pair.failed(c.pair.CloseRead())
	case c.data == nil:
		return c.tcp.CloseRead()
	}
	if err := c.data.CloseRead(); err != nil {
		return opError("close", c, err)
	}
	return nil
}

// CloseWrite ends writing: the peer reads io.EOF after what was written.
func (c *Conn) CloseWrite() error {
	switch {
	case c.pair != nil:
		return c.pair.failed(c.pair.CloseWrite())
	case c.data == nil:
		return c.tcp.CloseWrite()
	}
	if err := c.data.CloseWrite(); err != nil {
		return opError("close", c, err)
	}
	c.event(core.ConnEvent{Kind: core.EventShutdownWrite})
	return nil
}

// Close implements [net.Conn]. Bytes that were written reach the peer. If bytes have
// arrived that nobody has read, or SetLinger(0) was called, the connection is reset.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return opError("close", c, net.ErrClosed)
	}
	c.closed = true
	finished := c.peerFinished()
	c.mu.Unlock()
	if c.data == nil {
		c.host.forget(c)
		c.urgent.close()
		return c.setPair(c.socket().Close())
	}
	unread := c.data.Close()
	// rule: TestCloseResets: c.options.abortive() -> false
	abort := unread > 0 || c.options.abortive() // rule: TestCloseResets: unread > 0 -> unread < 0
	c.event(core.ConnEvent{Kind: core.EventClose, Abortive: abort})
	if !abort && !finished { // rule: TestSMCRCloseAfterPeer: !abort && !finished -> !abort
		c.binding.Flush() // rule: TestSMCRExit
	}
	c.host.unused(c)
	return nil
}

// abort ends the connection for the host.
func (c *Conn) abort() {
	if c.data == nil {
		c.tcp.SetLinger(0)
		c.Close()
		return
	}
	c.event(core.ConnEvent{Kind: core.EventAbort})
}

// abandon ends a connection that the application never got.
func (c *Conn) abandon() {
	c.abort()
	c.Close()
}

// SyscallConn returns the TCP socket, or our end of a pair. Only on plain TCP may the connection's bytes be read and
// written there.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.socket().SyscallConn()
	switch {
	case err != nil:
		return raw, err
	case c.data != nil, c.pair != nil:
		return opaqueConn{raw, c}, nil
	case c.crossing != nil && !c.crossing.over.Load():
		return filteredConn{raw, c}, nil
	}
	return raw, nil
}

// An opaqueConn hides what package os would find behind a RawConn of package net: a socket into
// which io.Copy(conn, file) sends the file, past our Write.
//
// Nor does it write: who does that wants to send data, and would break the connection. Reading is for those who look
// in that way whether a connection is alive. It waits for nothing, since nothing comes.
type opaqueConn struct {
	syscall.RawConn
	conn *Conn
}

// Write implements [syscall.RawConn].
func (o opaqueConn) Write(func(fd uintptr) bool) error {
	return opError("raw-write", o.conn, errNoSocket)
}

// Read implements [syscall.RawConn].
func (o opaqueConn) Read(f func(fd uintptr) (done bool)) error {
	done := false
	err := o.RawConn.Read(func(fd uintptr) bool {
		done = f(fd)
		return true
	})
	if err == nil && !done {
		err = opError("raw-read", o.conn, errNoSocket)
	}
	return err
}

// errNoSocket says that data does not pass through a socket.
var errNoSocket = fmt.Errorf("smc: the data of a connection over shared memory passes through no socket: %w", errors.ErrUnsupported)

// errNoFile says that the bytes of a connection pass through no socket.
var errNoFile = fmt.Errorf("smc: a connection over shared memory has no file: %w", errors.ErrUnsupported)

// File returns a copy of the TCP socket of a plain TCP connection. On SMC it fails, and where the last message of a handshake that
// led to TCP may still come, before the first Read.
func (c *Conn) File() (*os.File, error) {
	if c.data != nil || c.pair != nil {
		return nil, opError("file", c, errNoFile)
	}
	if c.crossing != nil {
		raw, err := c.tcp.SyscallConn()
		if err == nil {
			err = c.crossing.ready(raw)
		}
		if err != nil {
			return nil, opError("file", c, err)
		}
	}
	return c.tcp.File()
}

// Forget ends a connection that nobody can use any more. The socket of one over plain TCP is closed as soon
// as nobody can use that either: somebody may have asked for it with SyscallConn.
func (c *Conn) Forget() {
	if c.data == nil {
		c.host.forget(c)
		return
	}
	c.Close()
}

// Totals returns the bytes that the application has read and written.
func (c *Conn) Totals() (in, out uint64) {
	if c.data == nil {
		return c.tcpIn.Load(), c.tcpOut.Load()
	}
	return c.data.Totals()
}

// Buffers returns the sizes of our receive buffer and the peer's in bytes; zero on TCP.
func (c *Conn) Buffers() (local, remote int) {
	if c.data == nil {
		return 0, 0
	}
	local, remote = c.data.Buffers()
	return local + int(c.traits.HeaderLen), remote + int(c.traits.HeaderLen)
}

// Link returns the number of the link of SMC-R that what is written goes over, 0 if it is not over one.
func (c *Conn) Link() uint8 {
	if c.binding != nil {
		return c.binding.LinkNumber()
	}
	return 0
}

// Reason says why the connection is plain TCP.
func (c *Conn) Reason() clc.Reason { return c.reason }

// Agreed is what the handshake agreed on, as people want to see it.
type Agreed struct {
	Version  string // "2.1"
	EID      string
	PeerHost string
	PeerOS   string
	PeerPID  int // 0 if it cannot be seen
}

// Agreed returns what the handshake agreed on; the zero value on plain TCP.
func (c *Conn) Agreed() (a Agreed) {
	if c.agreed != nil {
		a = *c.agreed
	}
	return a
}
