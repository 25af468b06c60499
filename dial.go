package smc

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"time"
)

// Requirement is the least that a connection must be. A connection that is less is closed.
type Requirement uint8

// The requirements.
const (
	AnyMode     Requirement = iota // plain TCP will do
	RequireSMC                     // SMC-D or SMC-R
	RequireSMCD                    // SMC-D
	RequireSMCR                    // SMC-R
)

// String returns "any", "smc", "smc-d" or "smc-r".
func (r Requirement) String() string { return requirementNames[r] }

var requirementNames = [...]string{AnyMode: "any", RequireSMC: "smc", RequireSMCD: "smc-d",
	RequireSMCR: "smc-r"}

// ParseRequirement is the inverse of [Requirement.String].
func ParseRequirement(s string) (Requirement, error) {
	for r := AnyMode; r <= RequireSMCR; r++ {
		if r.String() == s {
			return r, nil
		}
	}
	return 0, fmt.Errorf("smc: %q is not one of any, smc, smc-d, smc-r", s)
}

// A Dialer makes connections. The zero value is ready to use. Its fields must not be
// changed while it is in use.
type Dialer struct {
	Host *Host // nil: [DefaultHost]

	// Require makes the dial fail with an error matching [ErrFallback] when the connection
	// would be less.
	Require Requirement

	// Timeout and Deadline bound the TCP connect and the SMC handshake together, as the fields of
	// [net.Dialer] bound the connect. Zero means no bound but the bounds of the system and of the
	// handshake itself, some seconds; a negative Timeout has passed already.
	Timeout  time.Duration
	Deadline time.Time

	// LocalAddr is the address to connect from, a [*net.TCPAddr]; nil chooses one.
	LocalAddr net.Addr

	// FallbackDelay, KeepAlive, KeepAliveConfig and Resolver work as in [net.Dialer]. Keepalive
	// probes go over the TCP connection, which stays idle beside SMC; when they find the peer
	// unreachable the connection ends. Beside SMC-D, which has its peer on this machine, there are
	// none unless KeepAlive or KeepAliveConfig ask for them.
	FallbackDelay   time.Duration
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig
	Resolver        *net.Resolver

	// ControlContext is called on each socket before it connects, as with [net.Dialer]. It must not
	// bind the socket.
	ControlContext func(ctx context.Context, network, address string, c syscall.RawConn) error

	// ReadBuffer is the size of the receive buffer in bytes, 16 KiB to 8 MiB; 0 takes the
	// host's.
	ReadBuffer int

	// WriteBuffer is kept for symmetry with package net: on SMC the bytes that were written and not
	// yet read are in the peer's receive buffer, and the peer chooses its size. It must be 0, or in
	// the range of ReadBuffer.
	WriteBuffer int
}

// Dial connects to addr with the zero [Dialer].
func Dial(network, addr string) (*Conn, error) {
	return DialContext(context.Background(), network, addr)
}

// DialContext connects to addr with the zero [Dialer].
func DialContext(ctx context.Context, network, addr string) (*Conn, error) {
	var d Dialer
	return d.DialContext(ctx, network, addr)
}

// Dial is DialContext without a context.
func (d *Dialer) Dial(network, addr string) (*Conn, error) {
	return d.DialContext(context.Background(), network, addr)
}

// DialContext connects to addr over TCP and moves the connection onto shared memory if
// both ends can.
//
// network is "tcp", "tcp4" or "tcp6"; addr is host:port as for [net.Dial].
//
// When SMC cannot be used DialContext still succeeds: it returns a working TCP connection,
// and [Conn.State] says why. Set Require to get an error instead. Errors are of type
// [*net.OpError].
//
// ctx bounds the TCP connect and the SMC handshake; once DialContext has returned, ctx has
// no effect on the connection.
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (*Conn, error) {
	opts := innerDialOptions{
		Require:    innerRequirement(d.Require),
		ReadBuffer: d.ReadBuffer,
		Control:    d.ControlContext,
		Net: net.Dialer{
			FallbackDelay:   d.FallbackDelay,
			KeepAlive:       d.KeepAlive,
			KeepAliveConfig: d.KeepAliveConfig,
			Resolver:        d.Resolver,
		},
	}
	if d.LocalAddr != nil {
		local, ok := d.LocalAddr.(*net.TCPAddr)
		if !ok {
			return nil, &net.OpError{Op: "dial", Net: network,
				Err: &net.AddrError{Err: "not a TCP address", Addr: d.LocalAddr.String()}}
		}
		opts.LocalAddr = local
	}
	if err := checkBuffer(d.WriteBuffer); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("WriteBuffer: %w", err)}
	}
	deadline := d.Deadline
	if d.Timeout != 0 { // negative: it has passed, as in package net
		if t := time.Now().Add(d.Timeout); deadline.IsZero() || t.Before(deadline) {
			deadline = t
		}
	}
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	c, err := d.Host.or().Dial(ctx, network, addr, opts)
	if err != nil {
		return nil, publicError(err)
	}
	return newConn(c), nil
}
