package conn

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/wire/clc"
)

// An ident has the values by which a connection is known.
type ident struct {
	env           *Env
	id            uint64 // of the host's connections, from 1
	tcp           *net.TCPConn
	local, remote netip.AddrPort // of tcp; unmapped, without zone
	client        bool
	since         time.Time
	mode          Mode    // ModeTCP until it is known
	agreed        *Agreed // never changed; nil on plain TCP, and before there is anything
}

// Params are the values with which a connection begins.
type Params struct {
	ID            uint64 // another one for each connection of a host, from 1
	TCP           *net.TCPConn
	Local, Remote netip.AddrPort // of TCP; unmapped, without zone
	Client        bool
	KeepAlive     net.KeepAliveConfig // as the dialer or the listener has it
	LateKeepAlive LateKeepAlive
	Verdict       Verdict // on whether it was right to move the connection; nil: nobody wants to know
}

// A Pending is a TCP connection whose transport is not known yet.
type Pending struct {
	ident
	asked     net.KeepAliveConfig
	keepAlive LateKeepAlive // put off until the mode is known
	verdict   Verdict
}

// New returns a connection that is not yet anything.
func New(env *Env, p Params) *Pending {
	return &Pending{
		ident: ident{env: env, id: p.ID, tcp: p.TCP, local: p.Local, remote: p.Remote, client: p.Client,
			since: time.Now()},
		asked: p.KeepAlive, keepAlive: p.LateKeepAlive, verdict: p.Verdict,
	}
}

// TCP returns the TCP connection.
func (p *Pending) TCP() *net.TCPConn { return p.tcp }

// SetVerdict sets the Verdict that learns whether it was right to move the connection.
func (p *Pending) SetVerdict(v Verdict) { p.verdict = v }

// Local returns the address of our end, Remote the peer's address; unmapped, without zone.
func (p *Pending) Local() netip.AddrPort  { return p.local }
func (p *Pending) Remote() netip.AddrPort { return p.remote }

// SetupError says that the connection did not come about.
func (i *ident) SetupError(err error) error {
	op := "accept"
	if i.client {
		op = "dial"
	}
	return &net.OpError{Op: op, Net: "tcp", Source: i.tcp.LocalAddr(), Addr: i.tcp.RemoteAddr(), Err: err}
}

// ID implements [Conn].
func (i *ident) ID() uint64 { return i.id }

// Since implements [Conn].
func (i *ident) Since() time.Time { return i.since }

// Client implements [Conn].
func (i *ident) Client() bool { return i.client }

// Mode implements [Conn].
func (i *ident) Mode() Mode { return i.mode }

// Agreed implements [Conn].
func (i *ident) Agreed() (a Agreed) {
	if i.agreed != nil {
		a = *i.agreed
	}
	return a
}

// LocalAddr implements [net.Conn].
func (i *ident) LocalAddr() net.Addr { return i.tcp.LocalAddr() }

// RemoteAddr implements [net.Conn].
func (i *ident) RemoteAddr() net.Addr { return i.tcp.RemoteAddr() }

// Trace traces an event of the connection.
func (i *ident) Trace(r Record, message []byte) {
	place := i.env.Owner.BeginTrace()
	*place = r
	i.name(place)
	i.env.Owner.EndTrace(message)
}

// name says of an event which connection it is about.
func (i *ident) name(r *Record) {
	r.Conn, r.Client, r.Mode, r.Agreed = i.id, i.client, i.mode, i.agreed
	r.Local, r.Peer = i.local, i.remote
}

// TraceFailed traces the end of a connection that did not come about.
func (i *ident) TraceFailed(err error) {
	text := "no reason"
	if err != nil {
		text = err.Error()
	}
	i.Trace(Record{Kind: control.TraceFailed, Text: text}, nil)
}

// TraceClosed implements [Conn].
func (i *ident) TraceClosed(in, out uint64) {
	age := time.Since(i.since)
	r := i.env.Owner.BeginTrace()
	i.name(r)
	r.Kind, r.Numbers, r.Age = control.TraceClosed, [2]uint64{in, out}, age
	i.env.Owner.EndTrace(nil)
}

// opError wraps an error of the connection as package net does.
func (i *ident) opError(op string, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: i.LocalAddr(), Addr: i.RemoteAddr(), Err: err}
}

// ioError is opError of an error that may be nil or io.EOF, which stays unchanged.
func (i *ident) ioError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return i.opError(op, err)
}

// status is Status from the fields that all connections have.
func (i *ident) status() control.StatusConn {
	agreed := i.Agreed()
	s := control.StatusConn{
		State:      "Active",
		Local:      i.LocalAddr().String(),
		Peer:       i.RemoteAddr().String(),
		Role:       "server",
		Mode:       i.mode.String(),
		Version:    agreed.Version,
		EID:        agreed.EID,
		PeerPID:    agreed.PeerPID,
		PeerHost:   agreed.PeerHost,
		AgeSeconds: time.Since(i.since).Seconds(),
	}
	if i.client {
		s.Role = "client"
	}
	return s
}

// A base has the fields that established connections have in common.
type base struct {
	ident
	options   optionStore
	outlives  bool // the connection goes on when its TCP socket is closed
	keepAlive LateKeepAlive

	mu     sync.Mutex // guards closed, and more of an [SMC]
	closed bool       // Close was called
}

// init makes b one of p.
func (b *base) init(p *Pending) {
	b.ident, b.keepAlive = p.ident, p.keepAlive
	b.options.values = Options{NoDelay: true, Linger: -1, KeepAlive: p.asked}
}

// Reason implements [Conn].
func (b *base) Reason() clc.Reason { return clc.Reason{} }

// ByPeer implements [Conn].
func (b *base) ByPeer() bool { return false }

// IsClosed implements [Conn].
func (b *base) IsClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// beginClose reports an error if Close was called before.
func (b *base) beginClose() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b.opError("close", net.ErrClosed)
	}
	b.closed = true
	return nil
}
