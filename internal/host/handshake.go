package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// A handshake carries out what core decides for one CLC handshake. It runs on one
// goroutine; what it waits for is bounded by core's deadline and by ctx.
type handshake struct {
	ctx     context.Context
	host    *Host
	conn    *Conn
	peer    *ism.Peer
	buffer  int
	require Requirement

	core   *core.Handshake
	queue  []core.Output // yet to be carried out
	dmb    *ism.DMB
	window *ism.Window
	group  *core.LinkGroup
	data   *atomic.Pointer[stream.Conn] // what a ring of the peer wakes

	err error // of the end, nil if the connection can be used
}

// connect does the client's handshake with the host behind peer. When it returns nil, c is
// ready, in whatever mode; otherwise its TCP connection is closed.
func (h *Host) connect(ctx context.Context, c *Conn, peer *ism.Peer, buffer int, require Requirement) error {
	return h.shake(ctx, core.RoleClient, c, peer, buffer, require)
}

// accept is connect for the server.
func (h *Host) accept(ctx context.Context, c *Conn, peer *ism.Peer, buffer int, require Requirement) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return h.shake(ctx, core.RoleServer, c, peer, buffer, require)
}

func (h *Host) shake(ctx context.Context, role core.Role, c *Conn, peer *ism.Peer, buffer int, require Requirement) error {
	f, reason, err := h.open()
	if err != nil {
		c.tcp.Close()
		c.traceFailed(err)
		return &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("%v: %w", reason, err)}
	}
	s := &handshake{
		ctx: ctx, host: h, conn: c, peer: peer, buffer: buffer, require: require,
		core: core.NewHandshake(role, h.capabilities(f, c.RemoteAddr())),
		data: new(atomic.Pointer[stream.Conn]),
	}
	if role == core.RoleServer {
		s.core.SetReachable(peer.GID())
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		c.tcp.SetDeadline(longAgo)
		close(interrupted)
	})
	s.run(f)
	if !stop() {
		<-interrupted
		c.tcp.SetDeadline(time.Time{}) // if the handshake had just ended well, so it has
	}
	return s.err
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// capabilities is what this host offers and accepts for a connection to a local peer.
func (h *Host) capabilities(f *fabric, peer net.Addr) core.Capabilities {
	return core.Capabilities{
		Peer:     addrOf(peer), // rule: TestCapabilitiesPeer: addrOf(peer) -> netip.Addr{}
		OS:       clc.OSLinux,
		HostName: h.name,
		Release:  clc.Release1,
		SEID:     h.seid,
		UEIDs:    h.ueids,
		ISM:      []clc.ISMDevice{{GID: f.device.GID(), CHID: wire.CHIDLoopback}},
		MaxConns: maxConnsPerGroup,
		MaxLinks: 2,
	}
}

// addrOf returns the IP address of one end of a TCP connection, zero if that is closed.
func addrOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	return netip.Addr{}
}

// run drives the handshake to its end.
func (s *handshake) run(f *fabric) {
	s.queue = s.core.Start(time.Now(), s.queue)
	for {
		s.carryOut(f)
		if s.core.Over() {
			return
		}
		m, err := s.read()
		now := time.Now()
		var decode *wire.DecodeError
		switch {
		case err == nil || errors.As(err, &decode):
			s.queue = s.core.HandleMessage(now, m, err, s.queue)
		case errors.Is(err, os.ErrDeadlineExceeded) && s.ctx.Err() == nil:
			s.queue = s.core.Advance(now, s.queue)
		default:
			s.queue = s.core.HandleTCPEnd(now, err, s.queue)
		}
	}
}

// read reads one CLC message and not a byte more. Errors are of type *wire.DecodeError, or
// those of the TCP connection.
func (s *handshake) read() (clc.Message, error) {
	tcp := s.conn.tcp
	if err := s.setDeadline(tcp.SetReadDeadline); err != nil {
		return nil, err
	}
	var header [clc.HeaderLen]byte
	if _, err := io.ReadFull(tcp, header[:]); err != nil {
		return nil, s.tcpError(err)
	}
	h, err := clc.ParseHeader(header[:])
	if err != nil {
		s.conn.traceCLC(header[:], false)
		return nil, err
	}
	b := make([]byte, h.Len)
	copy(b, header[:])
	if _, err := io.ReadFull(tcp, b[clc.HeaderLen:]); err != nil {
		return nil, s.tcpError(err)
	}
	s.conn.traceCLC(b, false)
	return clc.Parse(b)
}

// setDeadline sets the deadline of core, or one that has passed if the caller gave up.
func (s *handshake) setDeadline(set func(time.Time) error) error {
	at := s.core.Deadline()
	if at.IsZero() {
		at = time.Now().Add(clcTimeout)
	}
	if err := set(at); err != nil {
		return err
	}
	// The order matters: what runs when ctx ends sets the deadline too.
	return s.ctx.Err()
}

// tcpError prefers the reason why the deadline was moved.
func (s *handshake) tcpError(err error) error {
	if cause := s.ctx.Err(); cause != nil {
		return cause
	}
	return err
}

// carryOut does what core has asked for, and what comes of that.
func (s *handshake) carryOut(f *fabric) {
	for len(s.queue) > 0 {
		out := s.queue[0]
		s.queue = s.queue[1:]
		switch out := out.(type) {
		case core.SendCLC:
			s.send(out.Message)
		case core.Prepare:
			s.prepare(out.Choice)
		case core.Established:
			s.established(f, out.Result)
		case core.FallBack:
			s.fellBack(out)
		case core.EndTCP:
			s.failed(out.Err)
		case core.SetTimer, core.ClearTimer:
			// The deadline is asked for before each wait.
		case core.StartLink:
			panic("host: impossible SMC-R link without a device")
		default:
			panic(fmt.Sprintf("host: impossible output %T", out))
		}
	}
}

func (s *handshake) send(m clc.Message) {
	err := s.setDeadline(s.conn.tcp.SetWriteDeadline)
	if err == nil {
		b := m.Append(nil)
		s.conn.traceCLC(b, true) // before the answer can be there
		_, err = s.conn.tcp.Write(b)
	}
	if err != nil {
		s.queue = s.core.HandleTCPEnd(time.Now(), s.tcpError(err), s.queue)
	}
}

// prepare makes our buffer ready, and on the client maps the server's.
func (s *handshake) prepare(choice core.Choice) {
	r, err := s.resources(choice)
	if err != nil {
		s.release()
		s.host.cfg.Logger.Debug("no resources for a connection", "peer", s.peer.GID(), "err", err)
		s.queue = s.core.PrepareFailed(time.Now(), resourceReason(err), s.queue)
		return
	}
	s.queue = s.core.Prepared(time.Now(), r, s.queue)
}

func (s *handshake) resources(choice core.Choice) (r core.Resources, err error) {
	// rule: TestClientLies: choice.Remote.GID != s.peer.GID() -> false
	if choice.Mode != core.SMCD || choice.Remote.GID != s.peer.GID() {
		return r, errUnreachable
	}
	data := s.data
	ring := func() {
		if d := data.Load(); d != nil {
			d.Wake()
		}
	}
	// Our buffer comes first: it looks for room for the peer's, which is not to be there already.
	if s.dmb, err = s.peer.NewDMB(s.buffer, ring); err != nil {
		return r, err
	}
	if choice.D != nil { // we are the client
		if s.window, err = s.attach(choice.D); err != nil {
			return r, err
		}
	}
	return s.joinGroup(choice, core.Resources{D: &clc.ParamsD{
		Token:    s.dmb.Token(),
		DMBESize: wire.SizeCodeFor(s.buffer),
	}})
}

var errUnreachable = errors.New("the peer's device is not the one that the connection was agreed on with")

// attach maps the peer's buffer. If the peer is stopped, that ends while a Decline still finds
// it listening, or for a server, which has got its Confirm, after some time.
func (s *handshake) attach(d *clc.ParamsD) (*ism.Window, error) {
	until := s.core.Deadline()
	if until.IsZero() {
		until = time.Now().Add(clcTimeout)
	}
	ctx, cancel := context.WithDeadline(s.ctx, until)
	defer cancel()
	return s.peer.Attach(ctx, d.Token, d.DMBESize.Bytes())
}

// release gives back what was made ready.
func (s *handshake) release() {
	if s.window != nil {
		s.window.Release(false)
		s.window = nil
	}
	if s.dmb != nil {
		s.dmb.Release(false)
		s.dmb = nil
	}
	s.leaveGroup()
}

// established puts the connection onto shared memory.
func (s *handshake) established(f *fabric, r core.Result) {
	h, c := s.host, s.conn
	var missing error // why we, the server, do not have the client's buffer
	if s.window == nil {
		s.window, missing = s.attach(r.D)
	}
	if !s.require.met(ModeSMCD) {
		s.failed(&FallbackError{Reason: clc.Lookup(clc.DiagPolicy, clc.OSUnspecified)})
		return
	}
	c.mode, c.peer, c.group = ModeSMCD, s.peer, s.group
	c.agreed = h.agreed(s.peer, s.group, r)
	c.dmb, c.window = s.dmb, s.window
	c.life = core.NewConn(core.SMCD)
	c.data = stream.New(s.streamConfig())
	if missing != nil && !s.finished(missing) {
		c.dmb = nil
		s.failed(fmt.Errorf("attach the client's buffer: %w", missing))
		return
	}
	s.data.Store(c.data)
	c.tcp.SetDeadline(time.Time{})
	c.traceEstablished()
	c.event(core.ConnEvent{Kind: core.EventEstablished})
	if err := h.add(c); err != nil {
		c.traceFailed(err)
		c.abandon()
		c.event(core.ConnEvent{Kind: core.EventPeerDead}) // nobody else would end the wait for its answer
		s.err = c.setupError(err)
		return
	}
	// From here on PeerGone and Close find the connection, if the peer is not gone already.
	if err := c.watch(f.watcher); err != nil {
		c.traceFailed(err)
		c.abandon()
		s.err = c.setupError(err)
		return
	}
	c.event(core.ConnEvent{Kind: core.EventPeerFlags}) // of a peer that was done before we were
	select {
	case <-s.peer.Done():
		c.event(core.ConnEvent{Kind: core.EventPeerDead})
	default: // PeerGone is still to come, and finds the connection
	}
	h.counters.handshakesOK.Add(1)
}

// streamConfig is what the data path needs to know. In place of a buffer of the peer that we could not have
// there is memory that nobody else sees.
func (s *handshake) streamConfig() stream.Config {
	h := s.host
	cfg := stream.Config{
		In:           stream.ElementInbox(s.dmb.Mem()),
		ReaderSleeps: s.dmb.ReaderSleeps(), WriterSleeps: s.dmb.WriterSleeps(),
		Read:     s.dmb.Read(),
		Doorbell: s.peer,
		Spin:     h.cfg.Spin,
		Notice:   s.conn.onNotice,
		Dirty:    h.sweeper.wake,
		Stats:    &h.counters.data,
	}
	if s.window == nil {
		cfg.Out = stream.NoMemory()
		return cfg
	}
	cfg.Out = stream.NewMemory(s.window.Mem(), s.window.PeerReaderSleeps(), s.window.PeerWriterSleeps(), s.window.Ring)
	cfg.PeerRead = s.window.PeerRead()
	return cfg
}

// finished reports whether a client whose buffer we could not attach has no need of it: it is gone, or it
// will not read any more. Its Confirm was good, so the connection is established for it, and what it wrote
// is in our buffer.
func (s *handshake) finished(missing error) bool {
	if s.ctx.Err() != nil {
		return false // we are being closed
	}
	return errors.Is(missing, ism.ErrPeerGone) || s.conn.data.PeerFlags()&(cdc.Closed|cdc.Abort) != 0
}

// fellBack makes the connection plain TCP.
func (s *handshake) fellBack(out core.FallBack) {
	if out.OutOfSync { // rule: TestOutOfSync
		s.dropGroup()
	}
	s.release()
	reason := clc.Lookup(out.Diagnosis, clc.OSUnspecified)
	if out.ByPeer { // never to be taken for one of our own
		reason = clc.Decline{Diagnosis: out.Diagnosis, OS: out.OS}.Reason()
	}
	s.conn.tcp.SetDeadline(time.Time{})
	s.conn.byPeer = out.ByPeer
	s.err = s.host.finishTCP(s.conn, reason, s.require, nil)
}

// failed ends the TCP connection: the two sides no longer agree on what its bytes mean.
func (s *handshake) failed(err error) {
	s.release()
	s.host.counters.handshakesFailed.Add(1)
	s.conn.tcp.SetLinger(0)
	s.conn.tcp.Close()
	s.conn.traceFailed(err)
	s.err = s.conn.setupError(err)
}
