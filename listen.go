package smc

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
)

// A ListenConfig makes listeners. The zero value is ready to use.
type ListenConfig struct {
	Host *Host // nil: [DefaultHost]

	// Require closes connections that are less, before Accept sees them.
	Require Requirement

	// Control, KeepAlive and KeepAliveConfig work as in [net.ListenConfig]. For keepalive see
	// [Dialer].
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
	opts, err := lc.options(network)
	if err != nil {
		return nil, err
	}
	l, err := lc.Host.or().Listen(ctx, network, addr, opts)
	if err != nil {
		return nil, publicError(err)
	}
	return newListener(l), nil
}

// NewListener makes a Listener of an existing one, such as package net makes of a socket that was
// inherited or handed over by systemd. inner has to be a [*net.TCPListener]. If there is no error
// it belongs to the result and is not to be used any more; otherwise it is as it was. Control,
// KeepAlive and KeepAliveConfig have no effect: inner has its own.
//
// Other processes may have the same socket, so a connection is only taken for a call of Accept that
// waits; and clients move to shared memory only while Accept is called, which has to be again and
// again, as in a loop. They do that only if the socket was made by the user that this process runs
// as, or this process runs as root. For them, the user that made the socket is the one that
// listens.
func (lc *ListenConfig) NewListener(inner net.Listener) (*Listener, error) {
	tcp, ok := inner.(*net.TCPListener)
	if !ok {
		return nil, notTCP("listen", inner.Addr(), inner)
	}
	opts, err := lc.options("tcp")
	if err != nil {
		return nil, err
	}
	l, err := lc.Host.or().ListenOn(tcp, opts)
	if err != nil {
		return nil, publicError(err)
	}
	return newListener(l), nil
}

// FileListener listens on a copy of the listening TCP socket that f is, as [net.FileListener] does,
// with the zero [ListenConfig]; see [ListenConfig.NewListener]. The caller closes both.
func FileListener(f *os.File) (*Listener, error) {
	inner, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	var lc ListenConfig
	l, err := lc.NewListener(inner)
	if err != nil {
		inner.Close()
		return nil, err
	}
	return l, nil
}

// options returns the options for the host.
func (lc *ListenConfig) options(network string) (innerListenOptions, error) {
	if err := checkBuffer(lc.WriteBuffer); err != nil {
		return innerListenOptions{}, &net.OpError{Op: "listen", Net: network,
			Err: fmt.Errorf("WriteBuffer: %w", err)}
	}
	return innerListenOptions{
		Require:    innerRequirement(lc.Require),
		ReadBuffer: lc.ReadBuffer,
		Net: net.ListenConfig{
			Control:         lc.Control,
			KeepAlive:       lc.KeepAlive,
			KeepAliveConfig: lc.KeepAliveConfig,
		},
	}, nil
}

// A Listener is a [net.Listener]. Its connections are SMC where the client can. It takes
// connections from the system at once, also while nobody calls Accept, so that clients do not wait
// for their handshake; unless its socket is shared, see File and [ListenConfig.NewListener].
//
// A Listener that becomes unreachable without Close is closed by the garbage collector.
type Listener struct {
	l *innerListener // which the host holds: it must not lead back to the Listener
}

// newListener returns the Listener that an application holds.
func newListener(inner *innerListener) *Listener {
	l := &Listener{l: inner}
	runtime.AddCleanup(l, func(inner *innerListener) { go inner.Close() }, inner) // which may have to wait
	return l
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
	runtime.KeepAlive(l) // a listener that is used is not to be collected, also by its last user
	if err != nil {
		return nil, publicError(err)
	}
	return newConn(c), nil
}

// Close implements [net.Listener]. Connections that have not been accepted are reset, with two
// exceptions. If a call of Accept waits, it gets the connection that has its handshake under way.
// The other exception is a Listener with a shared socket, which was inherited ([FileListener],
// [ListenConfig.NewListener]) or handed out with File. It leaves the connections that it has not
// taken to the other listeners, and Accept returns the ones that it has taken. So a server that is
// replaced by another one at the same socket loses no connection. All that is for a second at most.
func (l *Listener) Close() error { return l.l.Close() }

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

// SetDeadline bounds the calls of Accept under way and to come; zero means no bound.
func (l *Listener) SetDeadline(t time.Time) error { return l.l.SetDeadline(t) }

// SyscallConn returns the listening TCP socket.
func (l *Listener) SyscallConn() (syscall.RawConn, error) {
	raw, err := l.l.SyscallConn()
	if err == nil {
		raw = heldConn{raw, l}
	}
	return raw, err
}

// File returns a copy of the listening TCP socket, as File of [net.TCPListener] does; the caller
// closes both.
//
// A Listener takes connections from the system before Accept asks for them. From the first call of
// File on it does so only while a call of Accept waits. So a program that hands the socket to its
// workers, and accepts nothing itself, leaves all connections to them; and while Accept is not
// called it is not announced. Connections that it has already taken stay with it.
func (l *Listener) File() (*os.File, error) { return l.l.File() }
