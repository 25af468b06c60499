package host

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Options are the socket options of a connection as they were last set. They are kept
// whatever carries the bytes, so that a program reads back what it has set (RFC 7609 B.1),
// and also take effect on the TCP socket.
type Options struct {
	NoDelay     bool // true by default, as in package net, and without effect then: see SetNoDelay
	KeepAlive   net.KeepAliveConfig
	Linger      int // seconds; negative: default
	ReadBuffer  int // bytes, 0: default
	WriteBuffer int
}

type optionStore struct {
	mu     sync.Mutex
	values Options
}

func (s *optionStore) abortive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values.Linger == 0
}

// Options returns the connection's socket options.
func (c *Conn) Options() Options {
	c.options.mu.Lock()
	defer c.options.mu.Unlock()
	return c.options.values
}

// setOption applies an option to the TCP socket and remembers it.
func (c *Conn) setOption(apply func() error, remember func(*Options)) error {
	if c.isClosed() { // the TCP socket may live on until the peer has closed too
		return opError("set", c, net.ErrClosed)
	}
	// After a reset by the peer the TCP socket is gone, which the application has not closed.
	if err := apply(); err != nil && (c.data == nil && c.pair == nil || !errors.Is(err, net.ErrClosed)) {
		return err
	}
	c.options.mu.Lock()
	defer c.options.mu.Unlock()
	remember(&c.options.values)
	return nil
}

// isClosed reports whether Close was called.
func (c *Conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// SetNoDelay remembers the option and sets it on the TCP socket. Over SMC-D what is written is visible to the peer at once. Over SMC-R
// small writes gather while an earlier one is on its way, unless the program has set the option: RFC 7609 §4.5.2. That
// it is set from the beginning, as in package net, does not count.
func (c *Conn) SetNoDelay(noDelay bool) error {
	err := c.setOption(func() error { return c.tcp.SetNoDelay(noDelay) }, func(o *Options) { o.NoDelay = noDelay })
	if c.binding != nil && err == nil {
		c.binding.SetNoDelay(noDelay)
	}
	return err
}

// SetKeepAlive turns TCP's own keepalive on the idle TCP connection on or off; when it
// finds the peer unreachable, the SMC connection ends too. Over SMC-R the link is asked as well.
func (c *Conn) SetKeepAlive(on bool) error {
	defer c.tellKeepAlive()
	return c.setOption(func() error { return c.tcp.SetKeepAlive(on) }, func(o *Options) { o.KeepAlive.Enable = on })
}

// SetKeepAlivePeriod is that of [net.TCPConn].
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	defer c.tellKeepAlive()
	tcp := c.floorKeepAlive(net.KeepAliveConfig{Idle: d}).Idle
	return c.setOption(func() error { return c.tcp.SetKeepAlivePeriod(tcp) }, func(o *Options) { o.KeepAlive.Idle, o.KeepAlive.Interval = d, d })
}

// SetKeepAliveConfig is that of [net.TCPConn].
func (c *Conn) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	defer c.tellKeepAlive()
	tcp := c.floorKeepAlive(config)
	return c.setOption(func() error { return c.tcp.SetKeepAliveConfig(tcp) }, func(o *Options) { o.KeepAlive = config })
}

// SetLinger sets what Close does with bytes the peer has not read: with 0 it resets the
// connection. Otherwise there is nothing to wait for, because what Write has taken is
// already in the peer's memory.
func (c *Conn) SetLinger(sec int) error {
	return c.setOption(func() error { return c.tcp.SetLinger(sec) }, func(o *Options) { o.Linger = sec })
}

var errBufferFixed = errors.New("the buffers of an SMC connection are fixed in the handshake: set them in the Dialer or ListenConfig")

// SetReadBuffer sets the receive buffer of a plain TCP connection. On SMC it fails, since
// the buffer was given to the peer in the handshake.
func (c *Conn) SetReadBuffer(bytes int) error {
	if c.data != nil {
		return opError("set", c, errBufferFixed)
	}
	return c.setOption(func() error {
		if c.pair != nil {
			return c.pair.failed(c.pair.SetReadBuffer(bytes))
		}
		return c.tcp.SetReadBuffer(bytes)
	}, func(o *Options) { o.ReadBuffer = bytes })
}

// SetWriteBuffer sets the send buffer of a plain TCP connection. On SMC it fails.
func (c *Conn) SetWriteBuffer(bytes int) error {
	if c.data != nil {
		return opError("set", c, errBufferFixed)
	}
	return c.setOption(func() error {
		if c.pair != nil {
			return c.pair.failed(c.pair.SetWriteBuffer(bytes))
		}
		return c.tcp.SetWriteBuffer(bytes)
	}, func(o *Options) { o.WriteBuffer = bytes })
}
