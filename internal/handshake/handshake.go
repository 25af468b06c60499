package handshake

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/late"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A handshake carries out the decisions of core for one CLC handshake. It runs on one goroutine.
// Its waits are bounded by core's deadline and by ctx.
type handshake struct {
	Request
	messages
	driver *Driver

	engine  core.Handshake
	queue   []core.HandshakeOutput // yet to be carried out
	chosen  transport.Path         // nil before core has chosen
	binding transport.Binding      // likewise
	smc     *conn.SMC              // for the connection on shared memory; likewise

	outputs [6]core.HandshakeOutput // memory for queue
	caps    core.Capabilities
	ism     [1]clc.ISMDevice // memory for the devices of caps

	linkSince time.Time // when the first contact began, zero without one
	ended     bool      // the peer has closed TCP while its link was still to come
	turn      *turn     // of a server of SMC-R that has got a Proposal
	patient   time.Time // until when a silent peer is waited for again and again, see peerMayBeSlow
	end       time.Time // of all patience with a client, zero for none

	result conn.Conn // nil unless the connection can be used
	err    error     // of the end, nil if it can
}

// handshakes has memory for handshakes: most of the garbage that a connection would leave to the
// collector.
var handshakes = sync.Pool{New: func() any { return new(handshake) }}

// recycle gives the memory back, unless a link still knows it.
func (s *handshake) recycle() {
	if !s.linkSince.IsZero() { // rule: TestRecycle
		return // a link of SMC-R knows it
	}
	*s = handshake{} // it holds on to nothing meanwhile
	handshakes.Put(s)
}

// run drives the handshake to its end.
func (s *handshake) run() {
	s.queue = s.engine.Start(time.Now(), s.outputs[:0])
	for {
		s.carryOut()
		if s.engine.Over() {
			return
		}
		b, err := s.read()
		if err != nil {
			if confirm, ok := s.lastLook(err); ok {
				b, err = confirm, nil
			}
		}
		now := time.Now()
		switch {
		case err == nil:
			s.handleMessage(now, b)
		case s.foreign != nil:
			s.notCLC()
			return
		default:
			s.handleError(now, err)
		}
	}
}

// handleMessage hands a CLC message, as it is on the wire, to core.
func (s *handshake) handleMessage(now time.Time, b []byte) {
	m, err := clc.Parse(b)
	if p, ok := m.(clc.Proposal); ok && err == nil && s.engine.State() == core.HandshakeAwaitProposal {
		admitted := true
		if s.Paths[0].Traits().Turns {
			s.turn = s.driver.turns.enter(PeerAddr(s.Conn))
			admitted = s.turn != nil
		}
		for _, path := range s.Paths {
			path.Examine(&p, &s.engine, admitted)
		}
	}
	s.queue = s.engine.HandleMessage(now, m, err, s.queue)
	if _, ok := m.(clc.Confirm); ok && s.turn != nil { // the client's turn has come
		s.turn.confirmed(now, s.engine.State() == core.HandshakeLinkTurn)
		s.end = now.Add(ServerTimeout)
	}
}

// handleError handles the error that read returned in place of a message.
func (s *handshake) handleError(now time.Time, err error) {
	timedOut := s.ctx.Err() == nil && errors.Is(err, os.ErrDeadlineExceeded)
	var decode *wire.DecodeError
	switch {
	case errors.As(err, &decode):
		s.queue = s.engine.HandleMessage(now, nil, err, s.queue)
	case errors.Is(err, errEvents) || timedOut && s.events.any():
		for _, step := range s.events.take() {
			s.queue = s.engine.LinkStep(now, step, s.queue)
		}
	case timedOut && s.waitsForTurn(now):
		s.end = now.Add(ServerTimeout)
		s.queue = s.engine.WaitOn(now, s.queue)
	case timedOut && s.peerMayBeSlow(now):
		s.queue = s.engine.WaitOn(now, s.queue)
	case timedOut && !s.outOfTime(now):
		s.queue = s.engine.Advance(now, s.queue)
	case s.outOfTime(now):
		s.queue = s.engine.HandleTCPEnd(now, context.DeadlineExceeded, s.queue)
	case err == io.EOF && !s.ended && s.linking():
		s.ended = true // rule: TestLinkEventsEOF
		s.binding.Suspect()
	default:
		s.queue = s.engine.HandleTCPEnd(now, err, s.queue)
	}
}

// lastLook reads the Confirm of a connection of a link group if it is there, though the time for it
// is up or nobody wants the connection any more. For a client of Linux, which has sent it, the
// connection is established: the client ignores a reset of TCP from then on, and would wait for
// ever. A connection that is established after all is used, or ended by CDC. One that is on its way
// when TCP is reset stays: its client is told of its link group's end only.
func (s *handshake) lastLook(why error) (confirm []byte, ok bool) {
	if s.turn == nil || !s.turn.known || s.engine.State() != core.HandshakeAwaitConfirm ||
		s.ctx.Err() == nil && !errors.Is(why, os.ErrDeadlineExceeded) {
		return nil, false
	}
	return s.readAtOnce() // rule: internal/host TestSMCRLastLook: s.readAtOnce() -> nil, false
}

// peerMayBeSlow reports whether the CLC message for which there is no time left may still come from
// a process of this machine.
func (s *handshake) peerMayBeSlow(now time.Time) bool {
	p := s.Paths[0]
	return p.Traits().Local && p.Alive() && now.Before(s.patient) && s.engine.AwaitsCLC() // rule: internal/host TestSilence: now.Before(s.patient) -> false
}

// waitsForTurn reports whether a client of SMC-R has not confirmed since its turn may not have come.
func (s *handshake) waitsForTurn(now time.Time) bool {
	if s.turn == nil || s.engine.State() != core.HandshakeAwaitConfirm {
		return false
	}
	select {
	case <-s.binding.Association().Done():
		return false // rule: internal/host TestSMCRTurnEnds: false -> s.turn.mayWait(now)
	default:
		return s.turn.mayWait(now)
	}
}

// linking reports whether the first contact has come so far that for the peer the connection may be
// established. Then the peer may have closed already. Its FIN can overtake the LLC message that
// makes us established, which comes over the link.
func (s *handshake) linking() bool {
	switch s.engine.State() {
	case core.HandshakeLinkTurn, core.HandshakeLinkWait, core.HandshakeLinkReplied, core.HandshakeAddLink:
		return true
	}
	return false
}

// read returns the next CLC message. It returns the errors of messages.read.
func (s *handshake) read() ([]byte, error) {
	if s.ended {
		return nil, s.awaitEvents()
	}
	mayBeForeign := s.engine.State() == core.HandshakeAwaitProposal && s.Paths[0].Traits().Stranger
	return s.messages.read(s.deadline(), mayBeForeign)
}

// awaitEvents replaces reading after the peer has closed TCP. If the link group ends as well, the
// peer is gone.
func (s *handshake) awaitEvents() error {
	ctx := s.untilDeadline()
	defer ctx.Cancel()
	gone := s.binding.Association().Done()
	if s.events.wait(ctx, gone) {
		return errEvents
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

// notCLC makes the connection plain TCP after the client began to speak without a word of CLC. The
// client's address is one where we expect CLC, but other programs may connect from there. A device
// on the way may also have taken the TCP option from our SYN-ACK, so that the client does not know
// of it.
func (s *handshake) notCLC() {
	s.stop()
	reason := clc.Lookup(clc.DiagPeerNoSMC, clc.OSUnspecified)
	s.result, s.err = s.Conn.FallBack(s.Require, conn.Fallback{Reason: reason, Held: s.foreign})
}

// carryOut carries out the outputs of core, and the outputs that result from them. TestOutputs checks that
// there is a case for each.
func (s *handshake) carryOut() {
	for i := 0; i < len(s.queue); i++ { // carrying out an output may add others
		if s.engine.Over() {
			s.events.stop() // deadlines are the application's now
		}
		switch out := s.queue[i].(type) {
		case core.SendCLC:
			s.send(out.Message)
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
		}
	}
	clear(s.queue)
	s.queue = s.queue[:0]
}

// send sends a CLC message.
func (s *handshake) send(m clc.Message) {
	if m.Type() == clc.TypeDecline {
		// Before it: a link that is being made must not come about while its Decline is on the way.
		s.release() // rule: TestLinkEndsBeforeDecline
	}
	if err := s.messages.send(m, s.deadline()); err != nil {
		s.queue = s.engine.HandleTCPEnd(time.Now(), err, s.queue)
	}
	if a, ok := m.(clc.Accept); ok && s.turn != nil {
		s.turn.accepted(time.Now(), !a.FirstContact)
	}
}

// prepare makes our buffer ready, and on the client reaches the server's.
func (s *handshake) prepare(choice core.Choice) {
	r, err := s.resources(choice)
	if err != nil {
		s.release()
		s.driver.cfg.Logger.Debug("no resources for a connection",
			"peer", s.Conn.RemoteAddr(), "mode", choice.Mode, "err", err)
		s.queue = s.engine.PrepareFailed(time.Now(), transport.Reason(err), s.queue)
		return
	}
	s.queue = s.engine.Prepared(time.Now(), r, s.queue)
}

// resources makes the binding by the path of the mode that core has chosen.
func (s *handshake) resources(choice core.Choice) (r core.Resources, err error) {
	ctx := s.untilDeadline()
	defer ctx.Cancel()
	for _, path := range s.Paths {
		if path.Mode() != choice.Mode {
			continue
		}
		s.chosen, s.smc = path, conn.NewSMC(s.Conn)
		s.binding, r, err = path.Prepare(ctx, transport.Request{
			Role:     s.Role,
			Choice:   choice,
			Optional: s.Require == conn.AnyMode,
			Buffer:   s.Buffer,
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
	if err := s.binding.StartLink(r, s.events.tell); err != nil {
		s.driver.cfg.Logger.Debug("no link", "peer", s.Conn.RemoteAddr(), "err", err)
		s.queue = s.engine.LinkFailed(time.Now(), transport.Reason(err), s.queue)
	}
}

// deadline returns the deadline of core. If core has none, it returns the end of a wait of its own.
func (s *handshake) deadline() time.Time {
	at := s.engine.Deadline()
	if at.IsZero() {
		at = time.Now().Add(CLCTimeout)
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

// untilDeadline bounds a call that waits for the peer. If the peer is stopped, the call ends while
// a Decline still finds it listening, or for a server, which has got its Confirm, after some time.
func (s *handshake) untilDeadline() *late.Context {
	return late.WithDeadline(s.ctx, s.deadline())
}

// release gives back the binding that was made ready.
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
	if !s.Require.Met(conn.ModeOf(r.Mode)) {
		s.failed(&conn.FallbackError{Reason: clc.Lookup(clc.DiagPolicy, clc.OSUnspecified)})
		return
	}
	s.smc.Bind(s.binding)
	if missing != nil && !s.finished(missing) {
		s.failed(missing)
		return
	}
	m := s.binding.Confirm(r)
	agreed := s.driver.agreed.about(agreement{
		r.Version, m.Release, r.EID, m.PeerHost, m.PeerOS, int(s.binding.Traits().PeerPID),
	})
	s.err = s.smc.Establish(conn.Agreement{
		Mode: r.Mode, Group: m.Group, Watcher: s.chosen.Watcher(), Agreed: agreed,
	})
	if s.err == nil {
		s.result = s.smc
		s.driver.cfg.Owner.Established(time.Since(s.smc.Since()))
	}
}

// finished reports whether a client has no need of its buffer, which we could not attach: the
// client is gone, or it will not read any more. Its Confirm was good, so the connection is
// established for it, and the bytes that it wrote are in our buffer.
func (s *handshake) finished(missing error) bool {
	if s.ctx.Err() != nil {
		return false // we are being closed
	}
	return errors.Is(missing, transport.ErrGone) || s.smc.PeerFinished()
}

// fellBack makes the connection plain TCP.
func (s *handshake) fellBack(out core.FallBack) {
	if out.OutOfSync && s.binding != nil { // rule: internal/host TestOutOfSync
		s.binding.OutOfSync()
	}
	if out.ByPeer && s.binding != nil && s.linkSince.IsZero() { // rule: internal/host TestSMCRRoom
		s.binding.Declined()
	}
	s.noteMissingLink()
	s.release()
	reason := clc.Lookup(out.Diagnosis, clc.OSUnspecified)
	if out.ByPeer { // never to be taken for one of our own
		reason = clc.Decline{Diagnosis: out.Diagnosis, OS: out.OS}.Reason()
	}
	s.stop()
	f := conn.Fallback{Reason: reason, ByPeer: out.ByPeer, Crossing: out.Crossing}
	if out.Crossing {
		f.Held = s.reader.take()
	}
	s.result, s.err = s.Conn.FallBack(s.Require, f)
}

// noteMissingLink is called when the handshake has come to nothing, before the other handshakes
// that wait for its link learn of that. If the peer has ended its TCP connection, nothing gets
// through to it.
func (s *handshake) noteMissingLink() {
	if !s.linkSince.IsZero() && !s.ended {
		s.chosen.LinkMissing(time.Since(s.linkSince))
	}
}

// failed ends the TCP connection: the two sides no longer agree on the meaning of its bytes.
func (s *handshake) failed(err error) {
	var late *core.TimeoutError
	if s.ctx.Err() != nil || errors.As(err, &late) {
		s.noteMissingLink()
	}
	s.release()
	s.driver.cfg.Owner.Failed(endReason(err))
	s.Conn.TCP().SetLinger(0)
	s.Conn.TCP().Close()
	s.Conn.TraceFailed(err)
	s.err = s.Conn.SetupError(err)
}
