package plain

import (
	"context"
	"net"
	"os"
	"syscall"
	"time"
)

// ListenOptions say how to listen. The zero value is useful.
type ListenOptions struct {
	Require    Requirement      // connections that are less are closed, and Accept does not see them
	ReadBuffer int              // bytes; checked, and otherwise without effect
	Net        net.ListenConfig // KeepAlive, Control and so on
}

// A Listener accepts TCP connections.
type Listener struct {
	host *Host
	tcp  *net.TCPListener
	opts ListenOptions
}

// Listen opens a listener on a TCP address.
func (h *Host) Listen(ctx context.Context, network, address string, opts ListenOptions) (*Listener, error) {
	err := h.begin(network, opts.ReadBuffer)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	inner, err := opts.Net.Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l, err := h.ListenOn(inner.(*net.TCPListener), opts)
	if err != nil {
		inner.Close()
	}
	return l, err
}

// ListenOn makes a listener of one that was made elsewhere. If it succeeds, inner belongs to the result.
func (h *Host) ListenOn(inner *net.TCPListener, opts ListenOptions) (*Listener, error) {
	fail := func(err error) error {
		return &net.OpError{Op: "listen", Net: "tcp", Addr: inner.Addr(), Err: err}
	}
	if err := CheckBuffer(opts.ReadBuffer); err != nil {
		return nil, fail(err)
	}
	l := &Listener{host: h, tcp: inner, opts: opts}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return nil, fail(errHostClosed)
	}
	h.listeners[l] = struct{}{}
	return l, nil
}

// Accept implements [net.Listener].
func (l *Listener) Accept() (*Conn, error) {
	for {
		tcp, err := l.tcp.AcceptTCP()
		if err != nil {
			return nil, err
		}
		c, err := l.host.take(tcp, "accept", l.opts.Require, l.opts.Net.KeepAliveConfig)
		if err == nil {
			return c, nil
		}
		// The connection is less than the listener requires, or the host is closed. A closed host
		// fails the next AcceptTCP.
	}
}

// Close implements [net.Listener].
func (l *Listener) Close() error {
	l.host.mu.Lock()
	delete(l.host.listeners, l)
	l.host.mu.Unlock()
	return l.tcp.Close()
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// SetDeadline bounds the calls of Accept under way and to come; zero means no bound.
func (l *Listener) SetDeadline(t time.Time) error { return l.tcp.SetDeadline(t) }

// SyscallConn returns the listening socket.
func (l *Listener) SyscallConn() (syscall.RawConn, error) { return l.tcp.SyscallConn() }

// File returns a copy of the listening socket.
func (l *Listener) File() (*os.File, error) { return l.tcp.File() }
