package smc

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/host"
)

// A ListenConfig makes listeners. The zero value is ready to use.
type ListenConfig struct {
	Host *Host // nil: [DefaultHost]

	// Require closes connections that are less, before Accept sees them.
	Require Requirement

	// Control, KeepAlive and KeepAliveConfig are those of [net.ListenConfig].
	Control         func(network, address string, c syscall.RawConn) error
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig

	// ReadBuffer and WriteBuffer are described at [Dialer].
	ReadBuffer, WriteBuffer int
}

// Listen listens with the zero [ListenConfig].
func Listen(network, addr string) (*Listener, error) {
	var lc ListenConfig
	return lc.Listen(context.Background(), network, addr)
}

// Listen listens on a TCP address and announces the listener to the programs of this
// machine. network is "tcp", "tcp4" or "tcp6"; addr is as for [net.Listen].
//
// If the listener cannot be announced it works all the same, with plain TCP, and the
// State of its connections says why.
func (lc *ListenConfig) Listen(ctx context.Context, network, addr string) (*Listener, error) {
	if err := host.CheckBuffer(lc.WriteBuffer); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: fmt.Errorf("WriteBuffer: %w", err)}
	}
	l, err := lc.Host.or().Listen(ctx, network, addr, host.ListenOptions{
		Require:    host.Requirement(lc.Require),
		ReadBuffer: lc.ReadBuffer,
		Net: net.ListenConfig{
			Control:         lc.Control,
			KeepAlive:       lc.KeepAlive,
			KeepAliveConfig: lc.KeepAliveConfig,
		},
	})
	if err != nil {
		return nil, publicError(err)
	}
	return &Listener{l: l}, nil
}

// A Listener is a [net.Listener] whose connections are SMC where the client can. It takes
// connections from the system at once, also while nobody calls Accept, so that clients do
// not wait for their handshake.
type Listener struct {
	l *host.Listener
}

// Accept implements [net.Listener]. The connections are of type [*Conn].
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptSMC()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptSMC is Accept with a result of type [*Conn].
func (l *Listener) AcceptSMC() (*Conn, error) {
	c, err := l.l.Accept()
	if err != nil {
		return nil, publicError(err)
	}
	return &Conn{c: c}, nil
}

// Close implements [net.Listener]. Connections that have not been accepted are reset.
func (l *Listener) Close() error { return l.l.Close() }

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

// SetDeadline bounds the calls of Accept under way and to come; zero means no bound.
func (l *Listener) SetDeadline(t time.Time) error { return l.l.SetDeadline(t) }

// SyscallConn returns the listening TCP socket.
func (l *Listener) SyscallConn() (syscall.RawConn, error) { return l.l.SyscallConn() }
