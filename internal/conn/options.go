package conn

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Options are the socket options of a connection as they were last set. They are kept on every
// transport, so that a program reads back the values that it has set (RFC 7609 B.1), and also take
// effect on the TCP socket.
type Options struct {
	NoDelay     bool // true by default, as in package net, and without effect then: see SetNoDelay
	KeepAlive   net.KeepAliveConfig
	Linger      int // seconds; negative: default
	ReadBuffer  int // bytes, 0: default
	WriteBuffer int
}

type optionStore struct {
	mu            sync.Mutex
	values        Options
	lateKeepAlive bool // is to be turned on
}

func (s *optionStore) abortive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values.Linger == 0
}

// Options implements [Conn].
func (b *base) Options() Options {
	b.options.mu.Lock()
	defer b.options.mu.Unlock()
	return b.options.values
}

// setOption applies an option to a socket and remembers it.
func (b *base) setOption(apply func() error, remember func(*Options)) error {
	if b.IsClosed() { // the TCP socket may live on until the peer has closed too
		return b.opError("set", net.ErrClosed)
	}
	// After a reset by the peer the TCP socket is gone, which the application has not closed.
	if err := apply(); err != nil && (!b.outlives || !errors.Is(err, net.ErrClosed)) {
		return err
	}
	b.options.mu.Lock()
	defer b.options.mu.Unlock()
	remember(&b.options.values)
	return nil
}

// SetNoDelay implements [Conn].
func (b *base) SetNoDelay(noDelay bool) error {
	return b.setOption(func() error { return b.tcp.SetNoDelay(noDelay) }, func(o *Options) { o.NoDelay = noDelay })
}

// SetKeepAlive implements [Conn].
func (b *base) SetKeepAlive(on bool) error {
	b.turnOnKeepAlive() // rule: TestLateKeepAlive
	return b.setOption(func() error { return b.tcp.SetKeepAlive(on) }, func(o *Options) { o.KeepAlive.Enable = on })
}

// SetKeepAlivePeriod is the method of [net.TCPConn].
func (b *base) SetKeepAlivePeriod(d time.Duration) error { return b.setKeepAlivePeriod(d, d) }

// setKeepAlivePeriod remembers d, and tells TCP another time.
func (b *base) setKeepAlivePeriod(d, tcp time.Duration) error {
	b.turnOnKeepAlive() // rule: TestLateKeepAlive
	return b.setOption(func() error { return b.tcp.SetKeepAlivePeriod(tcp) }, func(o *Options) { o.KeepAlive.Idle, o.KeepAlive.Interval = d, d })
}

// SetKeepAliveConfig is the method of [net.TCPConn].
func (b *base) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	return b.setKeepAliveConfig(config, config)
}

// setKeepAliveConfig remembers config, and tells TCP another one.
func (b *base) setKeepAliveConfig(config, tcp net.KeepAliveConfig) error {
	b.turnOnKeepAlive() // rule: TestLateKeepAlive
	return b.setOption(func() error { return b.tcp.SetKeepAliveConfig(tcp) }, func(o *Options) { o.KeepAlive = config })
}

// SetLinger implements [Conn].
func (b *base) SetLinger(sec int) error {
	return b.setOption(func() error { return b.tcp.SetLinger(sec) }, func(o *Options) { o.Linger = sec })
}
