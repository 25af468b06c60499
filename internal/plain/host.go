package plain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/pnet"
	"github.com/gosmc/smc/wire/clc"
)

// Sizes that ReadBuffer and WriteBuffer may have, in bytes. A program that is wrong on Linux is
// wrong here, too.
const (
	minBuffer = 16 << 10
	maxBuffer = 8 << 20
)

// Config holds the settings that have a meaning without SMC. The exported smc.Config describes them.
type Config struct {
	Dir        string
	UEIDs      []string
	ReadBuffer int // bytes; 0: default
}

// A Host makes TCP connections and listeners, and closes them when it ends.
type Host struct {
	dir    string
	reason clc.Reason // of every connection

	mu        sync.Mutex
	numbers   Numbers // without the bytes of connections that there are
	closing   bool
	conns     map[*Conn]struct{}
	listeners map[*Listener]struct{}
	idle      chan struct{} // closed and replaced when the last connection goes; nil if nobody waits
}

var (
	errHostClosed   = errors.New("smc: host is closed")
	errNotConnected = errors.New("smc: the socket is not connected")
)

// New returns a host. The only errors are errors in the configuration.
func New(cfg Config) (*Host, error) {
	if _, err := pnet.ParseUEIDs(cfg.UEIDs); err != nil {
		return nil, fmt.Errorf("smc: %w", err)
	}
	if err := CheckBuffer(cfg.ReadBuffer); err != nil {
		return nil, fmt.Errorf("smc: ReadBuffer: %w", err)
	}
	reason := clc.Lookup(clc.DiagNotSupported, clc.OSUnspecified)
	reason.Sentence = fmt.Sprintf("SMC needs Linux; this is %s.", runtime.GOOS)
	return &Host{
		dir: cfg.Dir, reason: reason, numbers: Numbers{Started: time.Now()},
		conns: make(map[*Conn]struct{}), listeners: make(map[*Listener]struct{}),
	}, nil
}

// Numbers count the connections of a host, and their payload in bytes. Those that are not dialed are
// a server's.
type Numbers struct {
	Started                time.Time
	OpenClient, OpenServer int // now
	Client, Server         uint64
	In, Out                uint64
}

// Numbers returns the numbers of the host, and the reason why its connections are TCP.
func (h *Host) Numbers() (Numbers, clc.Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.numbers
	for c := range h.conns {
		n.move(c)
	}
	return n, h.reason
}

// move adds the bytes of a connection.
func (n *Numbers) move(c *Conn) {
	in, out := c.Totals()
	n.In += in
	n.Out += out
}

// CheckBuffer returns an error that names the fault of a wanted buffer size; 0 is the default.
func CheckBuffer(n int) error {
	if n != 0 && (n < minBuffer || n > maxBuffer) {
		return fmt.Errorf("%d is not in the range of %d to %d bytes", n, minBuffer, maxBuffer)
	}
	return nil
}

// Dir returns the run directory of the configuration. It may be empty: nothing is ever put there.
func (h *Host) Dir() string { return h.dir }

// Requirement is the condition that the mode of a connection must meet. Only AnyMode can be met.
type Requirement uint8

// AnyMode is met by plain TCP.
const AnyMode Requirement = 0

// A FallbackError says why a connection that was required to be SMC is not. The TCP connection was closed.
type FallbackError struct {
	Reason clc.Reason
	ByPeer bool  // always false here
	Err    error // always nil here
}

func (e *FallbackError) Error() string { return "smc: fell back to TCP: " + e.Reason.Sentence }

func (e *FallbackError) Unwrap() error { return e.Err }

// DialOptions say how to dial. The zero value is useful.
type DialOptions struct {
	Require    Requirement
	LocalAddr  *net.TCPAddr // nil: any
	ReadBuffer int          // bytes; checked, and otherwise without effect
	Net        net.Dialer   // Timeout, Deadline, KeepAlive and so on; not LocalAddr, Control, ControlContext
	Control    func(ctx context.Context, network, address string, c syscall.RawConn) error
}

// begin checks the arguments of Dial and Listen.
func (h *Host) begin(network string, buffer int) error {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return net.UnknownNetworkError(network)
	}
	if err := CheckBuffer(buffer); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return errHostClosed
	}
	return nil
}

// Dial makes a TCP connection.
func (h *Host) Dial(ctx context.Context, network, address string, opts DialOptions) (*Conn, error) {
	if err := h.begin(network, opts.ReadBuffer); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	d := opts.Net
	d.Control, d.ControlContext, d.LocalAddr = nil, opts.Control, nil
	if opts.LocalAddr != nil { // else a nil pointer in an interface
		d.LocalAddr = opts.LocalAddr
	}
	tcp, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return h.take(tcp.(*net.TCPConn), "dial", opts.Require, opts.Net.KeepAliveConfig)
}

// Adopt takes over a connection that was made elsewhere. If it succeeds, tcp belongs to the result.
func (h *Host) Adopt(tcp *net.TCPConn) (*Conn, error) {
	if tcp.RemoteAddr() == nil {
		return nil, &net.OpError{Op: "file", Net: "tcp", Source: tcp.LocalAddr(), Err: errNotConnected}
	}
	return h.take(tcp, "file", AnyMode, net.KeepAliveConfig{})
}

// take makes a Conn of a TCP connection, or closes it and says why not.
func (h *Host) take(tcp *net.TCPConn, op string, require Requirement,
	alive net.KeepAliveConfig) (*Conn, error) {
	var err error
	if require != AnyMode {
		err = &FallbackError{Reason: h.reason}
	}
	c := &Conn{host: h, tcp: tcp, client: op == "dial",
		options: Options{NoDelay: true, Linger: -1, KeepAlive: alive}}
	h.mu.Lock()
	if err == nil && h.closing {
		err = errHostClosed
	}
	if err == nil {
		h.conns[c] = struct{}{}
		if c.client {
			h.numbers.OpenClient++
			h.numbers.Client++
		} else {
			h.numbers.OpenServer++
			h.numbers.Server++
		}
	}
	h.mu.Unlock()
	if err == nil {
		return c, nil
	}
	err = &net.OpError{Op: op, Net: "tcp", Source: tcp.LocalAddr(), Addr: tcp.RemoteAddr(), Err: err}
	if op != "file" { // whose caller closes it
		tcp.Close()
	}
	return nil, err
}

// forget takes a connection out of the table.
func (h *Host) forget(c *Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.conns[c]; !ok { // rule: TestNumbers
		return
	}
	delete(h.conns, c)
	h.numbers.move(c)
	if c.client {
		h.numbers.OpenClient--
	} else {
		h.numbers.OpenServer--
	}
	if len(h.conns) == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// stop lets nothing new begin, and closes the listeners.
func (h *Host) stop() {
	h.mu.Lock()
	h.closing = true
	listeners := slices.Collect(maps.Keys(h.listeners))
	h.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
}

// Shutdown closes all listeners and waits until the application has closed all connections. When
// ctx ends first, it resets the connections that are left and returns ctx.Err().
func (h *Host) Shutdown(ctx context.Context) error {
	h.stop()
	for {
		h.mu.Lock()
		if len(h.conns) == 0 {
			h.mu.Unlock()
			return nil
		}
		if h.idle == nil {
			h.idle = make(chan struct{})
		}
		idle := h.idle
		h.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			h.Close()
			return ctx.Err()
		}
	}
}

// Close closes all listeners and resets all connections.
func (h *Host) Close() error {
	h.stop()
	h.mu.Lock()
	left := slices.Collect(maps.Keys(h.conns))
	h.mu.Unlock()
	for _, c := range left {
		c.tcp.SetLinger(0)
		c.Close()
	}
	return nil
}
