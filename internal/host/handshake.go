package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/late"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A handshake carries out what core decides for one CLC handshake. It runs on one
// goroutine; what it waits for is bounded by core's deadline and by ctx.
type handshake struct {
	ctx     context.Context
	host    *Host
	conn    *conn.Pending
	role    core.Role
	paths   []transport.Path // to the peer, no two of a mode
	buffer  int
	require conn.Requirement

	core    *core.Handshake // engine
	reader  clcReader
	news    linkNews
	queue   []core.Output     // yet to be carried out
	chosen  transport.Path    // nil before core has chosen
	binding transport.Binding // likewise
	smc     *conn.SMC         // what conn is to become; likewise

	sent    [256]byte      // memory for messages that are sent
	outputs [6]core.Output // and for queue

	// foreign has what was read of something that a client said in place of a Proposal, where that may be one of a program that
	// does not speak CLC; nil if there is none.
	foreign []byte

	linkSince time.Time // when the first contact began, zero without one

	ended bool // the peer has closed TCP while its link was still to come

	turn *turn // of a server of SMC-R that has got a Proposal

	patient time.Time // until when a silent peer is waited for again and again, see peerMayBeSlow
	end     time.Time // of all patience with a client, zero for none

	result conn.Conn // nil unless the connection can be used
	err    error     // of the end, nil if it can

	engine core.Handshake
	caps   core.Capabilities
	ism    [1]clc.ISMDevice // memory for those of caps
}

// handshakes has memory for them: it is most of what a connection would leave to the garbage collector.
var handshakes = sync.Pool{New: func() any { return new(handshake) }}

// recycle gives the memory back, unless somebody else still knows it.
func (s *handshake) recycle() {
	if !s.linkSince.IsZero() { // rule: TestRecycle
		return // a link of SMC-R knows it
	}
	*s = handshake{} // it holds on to nothing meanwhile
	handshakes.Put(s)
}

// shakeNetworks does the handshake with a peer that expects CLC and shares no memory with us. The result may be of any mode
// that meets the requirement. After an error the TCP connection is closed.
func (h *Host) shakeNetworks(ctx context.Context, role core.Role, c *conn.Pending, buffer int, require conn.Requirement) (conn.Conn, error) {
	paths := make([]transport.Path, len(h.networks))
	for i, n := range h.networks {
		w := n.NewPath(role, addrOf(c.LocalAddr()), addrOf(c.RemoteAddr()))
		defer w.Close()
		switch {
		case role == core.RoleServer && h.refusesServer(c.Local()): // rule: TestPolicySMCR
			w.Refuse(clc.DiagNotAllowed) // it has begun with CLC, which needs an answer
		case !require.Met(conn.ModeOf(w.Mode())):
			w.Refuse(clc.DiagPolicy) // it awaits our word, and would be reset if it got this mode
		}
		paths[i] = w
	}
	return h.shakeOn(ctx, role, c, paths, buffer, require)
}

// shakePeer is shakeNetworks with the host behind a peering.
func (h *Host) shakePeer(ctx context.Context, role core.Role, c *conn.Pending, peer *ism.Peer, buffer int, require conn.Requirement) (conn.Conn, error) {
	f, reason, err := h.open()
	if err != nil {
		c.TCP().Close()
		c.TraceFailed(err)
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("%v: %w", reason, err)}
	}
	return h.shakeOn(ctx, role, c, []transport.Path{f.device.NewPath(peer)}, buffer, require)
}

// shakeOn does the handshake on TCP, for one of the paths.
func (h *Host) shakeOn(ctx context.Context, role core.Role, c *conn.Pending, paths []transport.Path, buffer int, require conn.Requirement) (conn.Conn, error) {
	s := handshakes.Get().(*handshake)
	defer s.recycle()
	s.ctx, s.host, s.conn, s.role, s.paths, s.buffer, s.require = ctx, h, c, role, paths, buffer, require
	s.caps.ISM = s.ism[:0]
	h.capabilities(&s.caps, paths, c.Remote().Addr())
	s.core = &s.engine
	s.core.Reset(role, &s.caps)
	s.patient = time.Now().Add(s.patience())
	if role == core.RoleServer {
		s.end = s.patient.Add(handshakeTimeout)
	}
	s.news.tcp = c.TCP()
	defer s.leaveTurn()
	if ctx.Done() == nil { // it never ends
		s.run()
		return s.result, s.err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { // which knows nothing of s
		c.TCP().SetDeadline(longAgo)
		close(interrupted)
	})
	s.run()
	if !stop() {
		<-interrupted
		c.TCP().SetDeadline(time.Time{}) // if the handshake had just ended well, so it has
	}
	return s.result, s.err
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// capabilities fills in what this host offers and accepts for a connection to a peer, by these paths. There may be memory
// for its devices in caps.
func (h *Host) capabilities(caps *core.Capabilities, paths []transport.Path, peer netip.Addr) {
	*caps = core.Capabilities{
		Peer:     peer, // rule: TestCapabilitiesPeer: peer -> netip.Addr{}
		OS:       clc.OSLinux,
		HostName: h.name,
		Release:  clc.Release1,
		SEID:     h.seid,
		UEIDs:    h.ueids,
		MaxConns: maxConnsPerGroup,
		MaxLinks: uint8(h.cfg.SMCRLinks), // normalized
		ISM:      caps.ISM[:0],
	}
	if h.cfg.Release0 {
		caps.Release = clc.Release0
	}
	for _, w := range paths {
		w.Offer(caps)
	}
}

// run drives the handshake to its end.
func (s *handshake) run() {
	s.queue = s.core.Start(time.Now(), s.outputs[:0])
	for {
		s.carryOut()
		if s.core.Over() {
			return
		}
		b, err := s.read()
		if err != nil {
			if late, ok := s.lastLook(err); ok {
				b, err = late, nil
			}
		}
		now := time.Now()
		var decode *wire.DecodeError
		switch {
		case err == nil:
			m, err := clc.Parse(b)
			if p, ok := m.(clc.Proposal); ok && err == nil && s.core.State() == core.HandshakeAwaitProposal {
				admitted := s.enterTurn()
				for _, w := range s.paths {
					w.Examine(&p, s.core, admitted)
				}
			}
			s.queue = s.core.HandleMessage(now, m, err, s.queue)
			s.noteTurn(now, m)
		case errors.As(err, &decode) && s.foreign != nil:
			s.notCLC()
			return
		case errors.As(err, &decode):
			s.queue = s.core.HandleMessage(now, nil, err, s.queue)
		case errors.Is(err, errNews) || s.ctx.Err() == nil && errors.Is(err, os.ErrDeadlineExceeded) && s.news.any():
			s.takeNews(now)
		case errors.Is(err, os.ErrDeadlineExceeded) && s.ctx.Err() == nil && s.waitsForTurn(now):
			s.end = now.Add(handshakeTimeout)
			s.queue = s.core.WaitOn(now, s.queue)
		case errors.Is(err, os.ErrDeadlineExceeded) && s.ctx.Err() == nil && s.peerMayBeSlow(now):
			s.queue = s.core.WaitOn(now, s.queue)
		case errors.Is(err, os.ErrDeadlineExceeded) && s.ctx.Err() == nil && !s.outOfTime(now):
			s.queue = s.core.Advance(now, s.queue)
		case s.outOfTime(now):
			s.queue = s.core.HandleTCPEnd(now, context.DeadlineExceeded, s.queue)
		case err == io.EOF && !s.ended && s.linking():
			s.ended = true // rule: TestLinkNewsEOF
			s.binding.Suspect()
		default:
			s.queue = s.core.HandleTCPEnd(now, err, s.queue)
		}
	}
}

// lastLook reads the Confirm of a connection of a link group if it is there, though the time for it is up or nobody wants the connection
// any more. For a client of Linux, which has sent it, that is established: it ignores a reset of TCP from then on, and would wait for ever. What is
// established after all is used, or ended by CDC. One that is on its way when TCP is reset stays: its client is told of its link group's end only.
func (s *handshake) lastLook(why error) (confirm []byte, ok bool) {
	if s.turn == nil || !s.turn.known || s.core.State() != core.HandshakeAwaitConfirm ||
		s.ctx.Err() == nil && !errors.Is(why, os.ErrDeadlineExceeded) {
		return nil, false
	}
	raw, err := s.conn.TCP().SyscallConn()
	if err != nil {
		return nil, false
	}
	if cerr := raw.Control(func(fd uintptr) { confirm, err = s.reader.read(conn.Descriptor(fd)) }); cerr != nil || err != nil {
		return nil, false
	}
	s.traceCLC(confirm, false)
	return confirm, true // rule: TestSMCRLastLook: true -> false
}

// patience is how long a silent peer is waited for in addition to the times of core. A process of this machine is known to live: silence
// means that the machine is busy, or the process stopped, and with TCP the connection would come about once it goes on.
func (s *handshake) patience() time.Duration {
	if !s.paths[0].Traits().Local {
		return 0
	}
	return s.host.localPatience
}

// peerMayBeSlow reports whether the CLC message for which there is no time left may still come from a process of this machine.
func (s *handshake) peerMayBeSlow(now time.Time) bool {
	w := s.paths[0]
	return w.Traits().Local && w.Alive() && now.Before(s.patient) && s.core.AwaitsCLC() // rule: TestSilence: now.Before(s.patient) -> false
}

// enterTurn counts a client whose connections take turns among those of its peer. It reports false if there are too many.
func (s *handshake) enterTurn() bool {
	if !s.paths[0].Traits().Turns {
		return true
	}
	s.turn = s.host.turns.enter(s.remote())
	return s.turn != nil
}

// waitsForTurn reports whether a client of SMC-R has not confirmed since its turn may not have come.
func (s *handshake) waitsForTurn(now time.Time) bool {
	if s.turn == nil || s.core.State() != core.HandshakeAwaitConfirm {
		return false
	}
	select {
	case <-s.binding.Association().Done():
		return false // rule: TestSMCRTurnEnds: false -> s.turn.mayWait(now)
	default:
		return s.turn.mayWait(now)
	}
}

// noteTurn takes note of a Confirm, with which the client's turn has come, and of the time that the rest may take.
func (s *handshake) noteTurn(now time.Time, m clc.Message) {
	if _, ok := m.(clc.Confirm); ok && s.turn != nil {
		s.turn.confirmed(now, s.core.State() == core.HandshakeLinkTurn)
		s.end = now.Add(handshakeTimeout)
	}
}

// leaveTurn lets the next client have its turn.
func (s *handshake) leaveTurn() {
	if s.turn != nil {
		s.turn.leave(time.Now())
	}
}

// linking reports whether the first contact has come so far that for the peer the connection may be established: then it
// may have closed already, and its FIN can overtake what makes us established, which comes over the link.
func (s *handshake) linking() bool {
	switch s.core.State() {
	case core.HandshakeLinkTurn, core.HandshakeLinkWait, core.HandshakeLinkReplied, core.HandshakeAddLink:
		return true
	}
	return false
}

// awaitNews is read once the peer has nothing more to say on TCP. When the link has nothing more to tell either the peer is gone.
func (s *handshake) awaitNews() error {
	ctx := s.untilDeadline()
	defer ctx.Cancel()
	gone := s.binding.Association().Done()
	if s.news.wait(ctx, gone) {
		return errNews
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	select {
	case <-gone:
		return io.EOF
	default:
		return os.ErrDeadlineExceeded
	}
}

// read reads one CLC message and not a byte more. It is interrupted by news of the link, and then goes on
// where it was. Errors are of type *wire.DecodeError, those of the TCP connection, or errNews.
func (s *handshake) read() ([]byte, error) {
	tcp := s.conn.TCP()
	if s.ended {
		return nil, s.awaitNews()
	}
	if err := s.setDeadline(tcp.SetReadDeadline); err != nil {
		return nil, err
	}
	if s.news.any() { // after the deadline was set: who has news moves it afterwards
		return nil, errNews
	}
	mayBeForeign := s.core.State() == core.HandshakeAwaitProposal && s.paths[0].Traits().Stranger
	if mayBeForeign && s.reader.have == 0 {
		// Looked at first: what is the application's stays where it can be got by any way.
		var start [clc.HeaderLen]byte
		if n, err := conn.Peek(tcp, start[:]); err == nil && !conn.EyecatcherStarts(start[:n]) {
			s.foreign = []byte{}
			return nil, &wire.DecodeError{Message: "clc.Header", Field: "eyecatcher", Err: wire.ErrEyecatcher}
		}
	}
	b, err := s.reader.read(tcp)
	var decode *wire.DecodeError
	switch {
	case err == nil:
		s.traceCLC(b, false)
	case errors.As(err, &decode):
		b := s.reader.take()
		s.traceCLC(b, false)
		// rule: TestNotCLC
		if decode.Field == "eyecatcher" && mayBeForeign {
			s.foreign = b
		}
	default:
		return nil, s.tcpError(err)
	}
	return b, err
}

// notCLC makes the connection plain TCP whose client began to speak without a word of CLC. Its address is one where we
// expect that, but other programs may connect from there; and something on the way may have taken the TCP option from
// our SYN-ACK, so that the client does not know of it.
func (s *handshake) notCLC() {
	s.news.stop()
	s.conn.TCP().SetDeadline(time.Time{})
	s.result, s.err = s.conn.FallBack(s.require, conn.Fallback{Reason: clc.Lookup(clc.DiagPeerNoSMC, clc.OSUnspecified), Held: s.foreign})
}

// takeNews tells core what has become of the link.
func (s *handshake) takeNews(now time.Time) {
	for _, step := range s.news.take() {
		s.queue = s.core.LinkStep(now, step, s.queue)
	}
}

// setDeadline sets the deadline of core, or one that has passed if the caller gave up.
func (s *handshake) setDeadline(set func(time.Time) error) error {
	if err := set(s.deadline()); err != nil {
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
func (s *handshake) carryOut() {
	for i := 0; i < len(s.queue); i++ { // which what is carried out may make longer
		if s.core.Over() {
			s.news.stop() // deadlines are the application's now
		}
		switch out := s.queue[i].(type) {
		case core.SendCLC:
			if out.Message.Type() == clc.TypeDecline {
				// Before it: a link that is being made must not come about while its Decline is on the way.
				s.release() // rule: TestLinkEndsBeforeDecline
			}
			s.send(out.Message)
			if a, ok := out.Message.(clc.Accept); ok && s.turn != nil {
				s.turn.accepted(time.Now(), !a.FirstContact)
			}
		case core.Prepare:
			s.prepare(out.Choice)
		case core.Established:
			s.established(out.Result)
		case core.FallBack:
			s.fellBack(out)
		case core.EndTCP:
			s.failed(out.Err)
		case core.SetTimer, core.ClearTimer:
			// The deadline is asked for before each wait.
		case core.StartLink:
			s.startLink(out.Result)
		default:
			panic(fmt.Sprintf("host: impossible output %T", out))
		}
	}
	clear(s.queue)
	s.queue = s.queue[:0]
}

func (s *handshake) send(m clc.Message) {
	err := s.setDeadline(s.conn.TCP().SetWriteDeadline)
	if err == nil {
		b := m.Append(s.sent[:0])
		s.traceCLC(b, true) // before the answer can be there
		_, err = s.conn.TCP().Write(b)
	}
	if err != nil {
		s.queue = s.core.HandleTCPEnd(time.Now(), s.tcpError(err), s.queue)
	}
}

// prepare makes our buffer ready, and on the client reaches the server's.
func (s *handshake) prepare(choice core.Choice) {
	r, err := s.resources(choice)
	if err != nil {
		s.release()
		s.host.cfg.Logger.Debug("no resources for a connection", "peer", s.conn.RemoteAddr(), "mode", choice.Mode, "err", err)
		s.queue = s.core.PrepareFailed(time.Now(), resourceReason(err), s.queue)
		return
	}
	s.queue = s.core.Prepared(time.Now(), r, s.queue)
}

func (s *handshake) resources(choice core.Choice) (r core.Resources, err error) {
	ctx := s.untilDeadline()
	defer ctx.Cancel()
	for _, w := range s.paths {
		if w.Mode() != choice.Mode {
			continue
		}
		s.chosen, s.smc = w, conn.NewSMC(s.conn)
		s.binding, r, err = w.Prepare(ctx, transport.Request{
			Role:     s.role,
			Choice:   choice,
			Optional: s.require == conn.AnyMode,
			Buffer:   s.buffer,
			Wake:     s.smc.Wake, // not more: it lives as long as the connection
			Left:     s.smc.PeerLeft,
			Lost:     s.smc.ElementLost,
		})
		return r, err
	}
	return r, transport.ErrUnreachable
}

// startLink begins the first contact of SMC-R.
func (s *handshake) startLink(r core.Result) {
	s.linkSince = time.Now()
	if err := s.binding.StartLink(r, s.news.tell); err != nil {
		s.host.cfg.Logger.Debug("no link", "peer", s.conn.RemoteAddr(), "err", err)
		s.queue = s.core.LinkFailed(time.Now(), resourceReason(err), s.queue)
	}
}

// deadline is that of core, or where it has none, that of a wait of its own.
func (s *handshake) deadline() time.Time {
	at := s.core.Deadline()
	if at.IsZero() {
		at = time.Now().Add(clcTimeout)
		if s.patient.After(at) {
			at = s.patient
		}
	}
	if !s.end.IsZero() && s.end.Before(at) {
		return s.end
	}
	return at
}

// outOfTime reports whether a client has taken longer than we have patience for.
func (s *handshake) outOfTime(now time.Time) bool { return !s.end.IsZero() && !now.Before(s.end) }

// untilDeadline bounds what waits for the peer. If that is stopped, it ends while a Decline still finds
// it listening, or for a server, which has got its Confirm, after some time.
func (s *handshake) untilDeadline() *late.Context {
	return late.WithDeadline(s.ctx, s.deadline())
}

// release gives back what was made ready.
func (s *handshake) release() {
	if s.binding != nil {
		s.binding.Detach(false)
		s.binding.Release(false)
		s.binding.Leave()
		s.binding = nil
	}
}

// established puts the connection onto shared memory.
func (s *handshake) established(r core.Result) {
	ctx := s.untilDeadline()
	missing := s.binding.Attach(ctx, r)
	ctx.Cancel()
	if !s.require.Met(conn.ModeOf(r.Mode)) {
		s.failed(&conn.FallbackError{Reason: clc.Lookup(clc.DiagPolicy, clc.OSUnspecified)})
		return
	}
	s.smc.Bind(s.binding)
	if missing != nil && !s.finished(missing) {
		s.failed(missing)
		return
	}
	m := s.binding.Confirm(r)
	s.err = s.smc.Establish(conn.Agreement{
		Mode: r.Mode, Group: m.Group, Watcher: s.chosen.Watcher(),
		Agreed: s.host.agreed(int(s.binding.Traits().PeerPID), r.EID, r.Version, m),
	})
	if s.err == nil {
		s.result = s.smc
		s.host.counters.handshakesOK.Add(1)
	}
}

// finished reports whether a client whose buffer we could not attach has no need of it: it is gone, or it
// will not read any more. Its Confirm was good, so the connection is established for it, and what it wrote
// is in our buffer.
func (s *handshake) finished(missing error) bool {
	if s.ctx.Err() != nil {
		return false // we are being closed
	}
	return errors.Is(missing, transport.ErrGone) || s.smc.PeerFinished()
}

// fellBack makes the connection plain TCP.
func (s *handshake) fellBack(out core.FallBack) {
	if out.OutOfSync && s.binding != nil { // rule: TestOutOfSync
		s.binding.OutOfSync()
	}
	if out.ByPeer && s.binding != nil && s.linkSince.IsZero() { // rule: TestSMCRRoom
		s.binding.Declined()
	}
	s.noteFiltered()
	s.release()
	reason := clc.Lookup(out.Diagnosis, clc.OSUnspecified)
	if out.ByPeer { // never to be taken for one of our own
		reason = clc.Decline{Diagnosis: out.Diagnosis, OS: out.OS}.Reason()
	}
	s.conn.TCP().SetDeadline(time.Time{})
	f := conn.Fallback{Reason: reason, ByPeer: out.ByPeer, Crossing: out.Crossing}
	if out.Crossing {
		f.Held = s.reader.take()
	}
	s.result, s.err = s.conn.FallBack(s.require, f)
}

// remote is the address by which filteredPeers know the peer.
func (s *handshake) remote() netip.Addr { return addrOf(s.conn.RemoteAddr()).Unmap() }

// noteFiltered is called when the handshake has come to nothing, before others learn of that who wait for its link. With a peer whose TCP has ended
// nothing gets through.
func (s *handshake) noteFiltered() {
	if !s.linkSince.IsZero() && !s.ended {
		s.chosen.LinkMissing(time.Since(s.linkSince))
	}
}

// failed ends the TCP connection: the two sides no longer agree on what its bytes mean.
func (s *handshake) failed(err error) {
	var late *core.TimeoutError
	if s.ctx.Err() != nil || errors.As(err, &late) {
		s.noteFiltered()
	}
	s.release()
	s.host.counters.handshakesFailed.Add(1)
	s.host.counters.ended(endOfHandshake, handshakeEndReason(err)) // rule: TestSMCRSilence
	s.conn.TCP().SetLinger(0)
	s.conn.TCP().Close()
	s.conn.TraceFailed(err)
	s.err = s.conn.SetupError(err)
}
