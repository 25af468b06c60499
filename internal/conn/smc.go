package conn

import (
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// An SMC is a connection over SMC. It is a [Conn] once it is established. It has layers, each of
// which knows those before it:
//
//	[ident], [base]  the fields of all connections
//	[dataPath]       reads and writes
//	[life]           its state: the decisions of core, and the idle TCP socket
//	SMC              its options, its close and its establishment
type SMC struct {
	life
	group wire.LinkID
}

// NewSMC returns the connection that p will be if its handshake comes to that. A fabric may call
// Wake, PeerLeft and ElementLost at once.
func NewSMC(p *Pending) *SMC {
	c := new(SMC)
	c.init(p)
	c.gain.begin(p.verdict)
	c.outlives, c.conn = true, c
	return c
}

// Bind gives the connection its binding and its data path. An error of Attach is known by then.
func (c *SMC) Bind(b transport.Binding) {
	cfg := b.Stream()
	cfg.Notice = c.onNotice
	cfg.Dirty, cfg.Stats = c.env.Dirty, c.env.Stats
	c.binding, c.traits, c.data = b, b.Traits(), stream.New(cfg)
}

// PeerFinished reports whether the peer has said that nothing more will come. It may be called after Bind.
func (c *SMC) PeerFinished() bool { return c.data.PeerFlags()&(cdc.Closed|cdc.Abort) != 0 }

// An Agreement is the result of the handshake of an SMC connection.
type Agreement struct {
	Mode    core.Mode
	Group   wire.LinkID
	Agreed  *Agreed
	Watcher *tcpwatch.Watcher // of the TCP socket
}

// Establish makes the connection one of its host's, after Bind and the binding's Confirm. The order
// is fixed, since the peer, the end of the association and the host's Close may come at any moment
// from another goroutine:
//
//  1. The state is there and ready is set: from now on Wake, PeerLeft and ElementLost act by themselves.
//  2. EventEstablished is the first event: one that the peer has aborted already still has an application, and its buffers
//     are not released before that has closed it.
//  3. The host's table has the connection: the end of the association and Close find it from now on. If the host is closing,
//     nobody else would end the wait for the peer's answer.
//  4. The fabric and TCP are told of keepalive, and the TCP socket is watched.
//  5. Events before 1 and 3 are looked for: flags of a peer that was done before we were, a lost
//     element, and an association that ended before the table had the connection. One that ends
//     later finds it.
func (c *SMC) Establish(a Agreement) error {
	if c.traits.KeepAlive { // rule: internal/host TestKeepAlive: c.traits.KeepAlive -> true
		c.keepAlive.turnOn(c.tcp) // rule: internal/host TestSMCR
	}
	c.mode, c.group, c.agreed = ModeOf(a.Mode), a.Group, a.Agreed
	c.sends, c.holds = true, true
	c.state = core.NewConn(a.Mode)
	c.ready.Store(true)
	c.tcp.SetDeadline(time.Time{})
	c.traceEstablished()
	c.event(core.ConnEvent{Kind: core.EventEstablished})
	if err := c.env.Owner.Add(c); err != nil {
		c.TraceFailed(err)
		c.Abort()
		c.Close()
		c.event(core.ConnEvent{Kind: core.EventPeerDead})
		return c.SetupError(err)
	}
	c.tellKeepAlive()
	c.raiseKeepAlive()
	a.Watcher.Soon(c)
	c.event(core.ConnEvent{Kind: core.EventPeerFlags})
	if c.lost.Load() {
		c.event(core.ConnEvent{Kind: core.EventElementLost})
	}
	select {
	case <-c.Association().Done():
		c.event(core.ConnEvent{Kind: c.Association().Cause()})
	default:
	}
	return nil
}

// CloseWrite implements [Conn].
func (c *SMC) CloseWrite() error {
	if err := c.data.CloseWrite(); err != nil {
		return c.opError("close", err)
	}
	c.event(core.ConnEvent{Kind: core.EventShutdownWrite})
	return nil
}

// Close implements [net.Conn]. Bytes that were written reach the peer. If bytes have
// arrived that nobody has read, or SetLinger(0) was called, the connection is reset.
func (c *SMC) Close() error {
	if err := c.beginClose(); err != nil {
		return err
	}
	c.mu.Lock()
	finished, broken := c.peerFinished(), c.state.Failure() != core.FailNone
	c.mu.Unlock()
	if in, out := c.data.Totals(); !broken {
		c.gain.end(in, out, time.Since(c.since))
	}
	unread := c.data.Close()
	// rule: internal/host TestCloseResets: c.options.abortive() -> false
	abort := unread > 0 || c.options.abortive() // rule: internal/host TestCloseResets: unread > 0 -> unread < 0
	c.event(core.ConnEvent{Kind: core.EventClose, Abortive: abort})
	if !abort && !finished { // rule: internal/host TestSMCRCloseAfterPeer: !finished -> (!finished || true)
		c.binding.Flush() // rule: internal/host TestSMCRExit
	}
	c.env.Owner.Closed(c)
	return nil
}

// Abort implements [Conn].
func (c *SMC) Abort() { c.event(core.ConnEvent{Kind: core.EventAbort}) }

// Forget implements [Conn].
func (c *SMC) Forget() { c.Close() }

// SyscallConn implements [Conn].
func (c *SMC) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return raw, err
	}
	return opaqueConn{raw, &c.ident, nil}, nil
}

// File implements [Conn].
func (c *SMC) File() (*os.File, error) { return nil, c.opError("file", errNoFile) }

// Socket implements [Conn].
func (c *SMC) Socket() syscall.Conn { return c.tcp }

// Status implements [Conn].
func (c *SMC) Status() control.StatusConn {
	s := c.status()
	s.Group = uint32(c.group)
	s.BytesIn, s.BytesOut = c.Totals()
	local, remote := c.Buffers()
	s.RcvBuf, s.SndBuf = uint64(local), uint64(remote)
	c.mu.Lock()
	defer c.mu.Unlock()
	s.State = c.state.State().String()
	if c.holds { // else the memory that Queues reads is gone
		recv, send := c.data.Queues()
		s.RecvQ, s.SendQ = uint64(recv), uint64(send)
	}
	return s
}

// WriteUrgent implements [Conn].
func (c *SMC) WriteUrgent(b []byte) (int, error) {
	n, err := c.data.WriteUrgent(b)
	c.traceUrgent(true, err)
	return n, c.ioError("write", err)
}

// ReadUrgent implements [Conn].
func (c *SMC) ReadUrgent() (byte, error) {
	value, err := c.data.ReadUrgent()
	c.traceUrgent(false, err)
	return value, c.ioError("read", err)
}

// WaitUrgent implements [Conn].
func (c *SMC) WaitUrgent() error {
	err := c.data.WaitUrgent()
	c.traceUrgent(false, err)
	return c.ioError("read", err)
}

// SetNoDelay implements [Conn].
func (c *SMC) SetNoDelay(noDelay bool) error {
	err := c.base.SetNoDelay(noDelay)
	if err == nil {
		c.binding.SetNoDelay(noDelay)
	}
	return err
}

var errBufferFixed = errors.New("the buffers of an SMC connection are fixed in the handshake: set them in the Dialer or ListenConfig")

// SetReadBuffer implements [Conn].
func (c *SMC) SetReadBuffer(int) error { return c.opError("set", errBufferFixed) }

// SetWriteBuffer implements [Conn].
func (c *SMC) SetWriteBuffer(int) error { return c.opError("set", errBufferFixed) }

var (
	_ Conn = (*SMC)(nil)
	_ Conn = (*TCP)(nil)
	_ Conn = (*Unix)(nil)
)
