package core

import (
	"errors"
	"slices"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A Handshake is one side of the CLC handshake on one TCP connection.
//
// The caller makes one and calls Start. While State is one of the Await states, or from StartLink
// on any, it reads one CLC message at a time, and passes it to HandleMessage with the error of
// [clc.Parse]. It carries out the outputs: SendCLC writes to TCP, Prepare is answered with Prepared
// or PrepareFailed, and one of Established, FallBack and EndTCP is the last. Advance is called when
// the timer fires, HandleTCPEnd when TCP fails. Nothing has an effect once the handshake is over.
//
//	state          role    event                          next           output
//	Init           client  Start, something to offer      AwaitAccept    SendCLC Proposal, SetTimer
//	Init           client  Start, nothing, or Refuse      FellBack       SendCLC Decline, FallBack
//	Init           server  Start                          AwaitProposal  SetTimer
//	AwaitProposal  server  Proposal, a choice             Preparing      Prepare, SetTimer
//	AwaitProposal  server  Proposal, no choice, or Refuse FellBack       SendCLC Decline, FallBack
//	AwaitAccept    client  Accept                         Preparing      Prepare, SetTimer
//	AwaitAccept    client  Accept, not acceptable         FellBack       SendCLC Decline, FallBack
//	Preparing      server  Prepared                       AwaitConfirm   SendCLC Accept, SetTimer
//	Preparing      server  PrepareFailed                  Preparing      Prepare of the next choice
//	Preparing      server  PrepareFailed, last choice     FellBack       SendCLC Decline, FallBack
//	Preparing      client  Prepared                       Established    SendCLC Confirm, Established
//	Preparing      client  Prepared, SMC-R first contact  LinkWait       SendCLC Confirm, StartLink, SetTimer
//	Preparing      client  PrepareFailed                  FellBack       SendCLC Decline, FallBack
//	Preparing      both    Advance                        FellBack       SendCLC Decline, FallBack
//	AwaitConfirm   server  Confirm                        Established    Established
//	AwaitConfirm   server  Confirm, SMC-R first contact   LinkTurn       StartLink, SetTimer
//	AwaitConfirm   server  the same, not acceptable       FellBack       SendCLC Decline, FallBack
//	LinkTurn       server  LinkRequested                  LinkWait       SetTimer
//	LinkTurn       client  LinkReplied                    LinkReplied    SetTimer
//	LinkTurn       both    LinkFailed, Advance            FellBack       SendCLC Decline, FallBack
//	LinkTurn       server  Advance, one link              Failed         EndTCP
//	LinkTurn, LinkWait  server  LinkConfirmed             AddLink        SetTimer
//	LinkWait       server  LinkFailed                     same           SetTimer (the client's Decline may come)
//	LinkWait       client  LinkRequested                  LinkTurn       SetTimer
//	LinkWait       client  LinkFailed                     same           (declines when it is its turn)
//	LinkReplied    client  LinkConfirmed                  AddLink        SetTimer
//	LinkReplied    client  LinkFailed, Advance, one link  Failed         EndTCP
//	LinkReplied    client  LinkFailed, Advance            FellBack       SendCLC Decline, FallBack
//	AddLink        both    LinkUp                         Established    Established
//	AddLink        client  LinkFailed                     FellBack       SendCLC Decline, FallBack
//	AddLink        client  LinkFailed, one link           Failed         EndTCP
//	AddLink        server  LinkFailed                     Failed         EndTCP
//	AddLink        both    Advance                        Failed         EndTCP
//	Await, LinkWait  both  Advance                        Failed         EndTCP
//	any but Init   both    Decline                        FellBack       FallBack by peer
//	any            both    another message, or a broken one  Failed      EndTCP
//	any            both    HandleTCPEnd                   Failed         EndTCP
//	Established, FellBack  both  HandleTCPEnd, before it was carried out  Failed  EndTCP in its place
//
// Every end also clears the timer. An event that the table lacks changes nothing.
//
// A Decline is sent only in place of a message that the peer expects, and never after one of our
// own: "an SMC Decline cannot chase another CLC message" (RFC 7609 C.1). Hence the turns: the side
// that has spoken waits, and two Declines cannot cross and end up in an application's data. (While
// the first link of SMC-R is confirmed they still can, if each side takes its own send for failed;
// see FallBack.Crossing.) After an Accept or Confirm that is not for an SMC-R first contact no
// Decline is sent at all (RFC 7609 C.3). A message that is broken, or not expected, ends the TCP
// connection (C.6), as does silence (C.5); only a reserved enumeration value is answered with a
// Decline.
//
// A client that has posted its reply to CONFIRM LINK and then loses the link does not know whether
// the reply arrived. It may decline all the same where a second link is to be attempted: the
// server, which then awaits the client's word on that, still reads Declines and has not opened the
// connection. That is why the point of no return of a first contact is ADD LINK (RFC 7609 C.3). For
// the client it is its reply. For the server it is the request, because the server would not know
// the fate of its request either. Where there is to be one link only, there is no such second word,
// and the TCP connection ends. A link that failed must have failed for both before it is reported:
// the caller ends its queue pair, and reports the messages that had arrived on it, before it calls
// LinkFailed.
type Handshake struct {
	role     Role
	caps     Capabilities
	state    HandshakeState
	deadline time.Time // zero: no timer runs

	proposal clc.Proposal // sent or received
	accept   clc.Accept   // sent or received
	choice   Choice       // being prepared, or made
	result   Result       // from StartLink on

	// Server: choices not tried yet, and why others failed.
	steps     []step
	reachable []wire.ISMGID
	noRNIC    clc.Diagnosis // why there is none
	reason    clc.Diagnosis // the last that was noted
	byType    clc.DiagnosisByType

	linkFailed clc.Diagnosis // the link failed while it was not our turn
}

// NewHandshake returns the handshake of a client or a server, not yet started.
func NewHandshake(role Role, caps Capabilities) *Handshake {
	h := new(Handshake)
	h.Reset(role, &caps)
	return h
}

// Reset makes h a new handshake, which is not yet started.
func (h *Handshake) Reset(role Role, caps *Capabilities) {
	*h = Handshake{role: role, caps: caps.normalized()}
}

// State returns the current state.
func (h *Handshake) State() HandshakeState { return h.state }

// Deadline returns when Advance is due, zero if no timer runs.
func (h *Handshake) Deadline() time.Time { return h.deadline }

// Over reports whether the handshake has ended.
func (h *Handshake) Over() bool { return h.state >= HandshakeEstablished }

// SetReachable tells a server which GIDs of the client's ISM devices its fabrics reach. The caller
// looks at the Proposal ([clc.Proposal].Ext.D.Devices and ISMGID), asks the fabrics, and calls
// this before it passes the Proposal to HandleMessage. Without it nothing is reachable.
func (h *Handshake) SetReachable(gids ...wire.ISMGID) {
	h.reachable = slices.Clone(gids)
}

// Start begins the handshake: call it when TCP is connected and both sides know that the other
// can do SMC.
func (h *Handshake) Start(now time.Time, out []HandshakeOutput) []HandshakeOutput {
	if h.state != HandshakeInit {
		return out
	}
	if h.role == RoleServer {
		return h.setState(now, HandshakeAwaitProposal, out)
	}
	return h.startClient(now, out)
}

// HandleMessage takes the results of clc.Parse for the next message of the peer.
func (h *Handshake) HandleMessage(
	now time.Time, m clc.Message, err error, out []HandshakeOutput,
) []HandshakeOutput {
	if h.Over() {
		return out
	}
	if err != nil {
		return h.handleBroken(now, err, out)
	}
	if h.state == HandshakeInit {
		return h.unexpected(now, m, out)
	}
	switch m := m.(type) {
	case clc.Decline:
		return h.handleDecline(now, m, out)
	case clc.Proposal:
		if h.state == HandshakeAwaitProposal {
			return h.handleProposal(now, m, out)
		}
	case clc.Accept:
		if h.state == HandshakeAwaitAccept {
			return h.handleAccept(now, m, out)
		}
	case clc.Confirm:
		if h.state == HandshakeAwaitConfirm {
			return h.handleConfirm(now, m, out)
		}
	}
	return h.unexpected(now, m, out)
}

// handleBroken takes a message that could not be decoded.
func (h *Handshake) handleBroken(now time.Time, err error, out []HandshakeOutput) []HandshakeOutput {
	if errors.Is(err, wire.ErrReservedEnum) { // rule: TestHandshakeTable
		// A later version of the protocol, with which we cannot do SMC: RFC 7609 C.6.
		switch h.state {
		case HandshakeAwaitAccept:
			return h.decline(now, clc.DiagVersion, out)
		case HandshakeAwaitProposal:
			return h.decline(now, clc.DiagVersion, out)
		case HandshakeAwaitConfirm:
			if h.mayDeclineLate() {
				return h.decline(now, clc.DiagVersion, out)
			}
		case HandshakeInit, HandshakePreparing, HandshakeLinkTurn, HandshakeLinkWait,
			HandshakeLinkReplied, HandshakeAddLink:
			// No message with such a field is awaited.
		case HandshakeEstablished, HandshakeFellBack, HandshakeFailed:
			return out
		}
	}
	return h.protocolError(now, "CLC message", err, out)
}

// handleDecline takes the peer's Decline. It is never answered.
func (h *Handshake) handleDecline(now time.Time, m clc.Decline, out []HandshakeOutput) []HandshakeOutput {
	// The out-of-sync flag counts only where the client has seen us name a link group. In
	// other places a peer that sets it must not be able to end anything.
	// rule: TestHandshakeTable: && h.state == HandshakeAwaitConfirm -> && true
	outOfSync := m.OutOfSync && h.state == HandshakeAwaitConfirm && !h.accept.FirstContact
	return h.end(now, HandshakeFellBack, FallBack{
		ByPeer: true, Diagnosis: m.Diagnosis, OS: m.OS, OutOfSync: outOfSync, ByType: m.ByType,
	}, out)
}

// HandleTCPEnd takes the end of the TCP connection, or its failure: err is handed on. out has the
// outputs that are not carried out yet. If the message did not go out that an Established or
// FallBack there was to follow, the peer knows nothing of either.
func (h *Handshake) HandleTCPEnd(now time.Time, err error, out []HandshakeOutput) []HandshakeOutput {
	if h.Over() {
		for i := range out {
			switch out[i].(type) {
			case Established, FallBack:
				h.state, out[i] = HandshakeFailed, EndTCP{Err: err}
			}
		}
		return out
	}
	return h.end(now, HandshakeFailed, EndTCP{Err: err}, out)
}

// Prepared answers Prepare: the buffers are there. r is not kept. Resources that do not make a
// message count as PrepareFailed with clc.DiagInternal.
func (h *Handshake) Prepared(now time.Time, r Resources, out []HandshakeOutput) []HandshakeOutput {
	if h.state != HandshakePreparing {
		return out
	}
	if h.role == RoleServer {
		return h.sendAccept(now, r, out)
	}
	return h.sendConfirm(now, r, out)
}

// PrepareFailed answers Prepare: this choice cannot be used. A client that has no link group
// where the server named one says clc.DiagSync, which is sent with the out-of-sync flag.
func (h *Handshake) PrepareFailed(now time.Time, why clc.Diagnosis, out []HandshakeOutput) []HandshakeOutput {
	if h.state != HandshakePreparing {
		return out
	}
	if h.role == RoleServer {
		h.note(h.choice, why)
		return h.tryNext(now, out)
	}
	return h.decline(now, why, out)
}

// LinkRequested says that the send of CONFIRM LINK is complete (server), or that it has been
// received (client).
func (h *Handshake) LinkRequested(now time.Time, out []HandshakeOutput) []HandshakeOutput {
	switch {
	case h.role == RoleServer && h.state == HandshakeLinkTurn:
		return h.setState(now, HandshakeLinkWait, out)
	case h.role == RoleClient && h.state == HandshakeLinkWait:
		out = h.setState(now, HandshakeLinkTurn, out)
		if h.linkFailed != clc.DiagNone { // rule: TestHandshakeTable
			return h.decline(now, h.linkFailed, out)
		}
	}
	return out
}

// LinkReplied says that the client has posted its reply to CONFIRM LINK.
func (h *Handshake) LinkReplied(now time.Time, out []HandshakeOutput) []HandshakeOutput {
	if h.role == RoleClient && h.state == HandshakeLinkTurn {
		return h.setState(now, HandshakeLinkReplied, out)
	}
	return out
}

// LinkConfirmed says that the reply to CONFIRM LINK has been received (server), or that its send is
// complete (client). A server may learn of the reply before it learns that its request is sent.
func (h *Handshake) LinkConfirmed(now time.Time, out []HandshakeOutput) []HandshakeOutput {
	switch {
	case h.role == RoleServer && (h.state == HandshakeLinkTurn || h.state == HandshakeLinkWait),
		h.role == RoleClient && h.state == HandshakeLinkReplied:
		return h.setState(now, HandshakeAddLink, out)
	}
	return out
}

// LinkUp says that connections may use the group: a second link was attempted, or is not to be.
func (h *Handshake) LinkUp(now time.Time, out []HandshakeOutput) []HandshakeOutput {
	if h.state == HandshakeAddLink {
		return h.end(now, HandshakeEstablished, Established{h.result}, out)
	}
	return out
}

// LinkFailed says that the first link cannot be used. After StartLink only.
func (h *Handshake) LinkFailed(now time.Time, why clc.Diagnosis, out []HandshakeOutput) []HandshakeOutput {
	switch {
	case h.state == HandshakeLinkTurn:
		return h.decline(now, why, out)
	case h.state == HandshakeLinkReplied, h.state == HandshakeAddLink && h.role == RoleClient:
		return h.replyLost(now, why, out)
	case h.state == HandshakeAddLink:
		return h.linkLost(now, why, out) // we have sent ADD LINK, and may not decline
	case h.state == HandshakeLinkWait:
		// The server notices too, and declines; or its CONFIRM LINK comes, and then we do. Of a
		// server "the client should get a negative return code and initiate fallback" (RFC 7609
		// C.7): we have sent CONFIRM LINK, and may not. Its Decline may be behind the news of the
		// link, as with Linux net/smc: its queue pair fails together with the registration of
		// memory for which it declines.
		first := h.linkFailed == clc.DiagNone
		if h.linkFailed = why; first && h.role == RoleServer { // its time begins with this failure
			return h.setState(now, HandshakeLinkWait, out)
		}
	}
	return out
}

// replyLost ends the handshake when nobody knows whether the server has the reply to CONFIRM LINK.
func (h *Handshake) replyLost(now time.Time, why clc.Diagnosis, out []HandshakeOutput) []HandshakeOutput {
	if h.result.MaxLinks == 1 { // rule: TestHandshakeOneLink
		return h.linkLost(now, why, out)
	}
	return h.decline(now, why, out)
}

// linkLost ends TCP, because the peer may take the link for confirmed.
func (h *Handshake) linkLost(now time.Time, why clc.Diagnosis, out []HandshakeOutput) []HandshakeOutput {
	return h.end(now, HandshakeFailed, EndTCP{Err: &LinkLostError{why}}, out)
}

// LinkStep takes a step of the first contact from the LLC control of the new link group (internal/llcflow).
func (h *Handshake) LinkStep(now time.Time, s LinkStep, out []HandshakeOutput) []HandshakeOutput {
	switch s.Kind {
	case StepRequested:
		return h.LinkRequested(now, out)
	case StepReplied:
		return h.LinkReplied(now, out)
	case StepConfirmed:
		return h.LinkConfirmed(now, out)
	case StepUp:
		return h.LinkUp(now, out)
	case StepFailed:
		return h.LinkFailed(now, s.Why, out)
	}
	return out
}

// AwaitsCLC reports whether nothing can happen before the peer's next CLC message.
func (h *Handshake) AwaitsCLC() bool {
	switch h.state {
	case HandshakeAwaitProposal, HandshakeAwaitAccept, HandshakeAwaitConfirm:
		return true
	}
	return false
}

// WaitOn waits for the next CLC message for another [HandshakeTimeout] from now on, as the caller
// knows that the peer may only be slow: that the client's turn has not come, or that a process of
// this machine lives. In states that await none it changes nothing.
func (h *Handshake) WaitOn(now time.Time, out []HandshakeOutput) []HandshakeOutput {
	if h.AwaitsCLC() { // rule: TestHandshakeWaitOn
		return h.setState(now, h.state, out)
	}
	return out
}

// Advance ends waits when their time is up. A call that comes too early is harmless.
func (h *Handshake) Advance(now time.Time, out []HandshakeOutput) []HandshakeOutput {
	if h.deadline.IsZero() || now.Before(h.deadline) {
		return out
	}
	switch h.state {
	case HandshakeAwaitProposal:
		return h.timeout(now, "CLC Proposal", out)
	case HandshakeAwaitAccept:
		return h.timeout(now, "CLC Accept", out)
	case HandshakeAwaitConfirm:
		return h.timeout(now, "CLC Confirm", out)
	case HandshakeLinkWait:
		if h.role == RoleClient {
			return h.timeout(now, "CONFIRM LINK", out)
		}
		if h.linkFailed != clc.DiagNone {
			return h.linkLost(now, h.linkFailed, out)
		}
		return h.timeout(now, "CONFIRM LINK reply", out)
	case HandshakePreparing:
		return h.decline(now, clc.DiagInternal, out) // the peer is still waiting for our word
	case HandshakeLinkTurn:
		if h.role == RoleServer { // the request is posted, and the reply may be there
			return h.replyLost(now, clc.DiagTimeoutConfirmLink, out)
		}
		return h.decline(now, clc.DiagTimeoutConfirmLink, out)
	case HandshakeLinkReplied:
		return h.replyLost(now, clc.DiagTimeoutConfirmLink, out)
	case HandshakeAddLink:
		return h.timeout(now, "ADD LINK", out)
	case HandshakeInit, HandshakeEstablished, HandshakeFellBack, HandshakeFailed:
		// These have no timer.
	}
	panic("core: timer in handshake state " + h.state.String())
}

// setState is the only writer of h.state. It sets the timer of the new state.
func (h *Handshake) setState(now time.Time, s HandshakeState, out []HandshakeOutput) []HandshakeOutput {
	h.state = s
	var timeout time.Duration
	switch s {
	case HandshakeAwaitProposal, HandshakeAwaitAccept, HandshakeAwaitConfirm:
		timeout = HandshakeTimeout // rule: TestHandshakeTable: HandshakeTimeout -> PrepareTimeout
	case HandshakePreparing:
		timeout = PrepareTimeout // rule: TestPrepareTimer, TestHandshakeTable: PrepareTimeout -> HandshakeTimeout
	case HandshakeLinkTurn:
		timeout = LinkTurnTimeout
	case HandshakeLinkWait:
		timeout = LinkWaitTimeout // rule: TestHandshakeTable: LinkWaitTimeout -> LinkTurnTimeout
	case HandshakeLinkReplied:
		timeout = LinkTurnTimeout
	case HandshakeAddLink:
		timeout = AddLinkStateTimeout // rule: TestHandshakeTable: AddLinkStateTimeout -> LinkTurnTimeout
	case HandshakeInit, HandshakeEstablished, HandshakeFellBack, HandshakeFailed:
		if h.deadline.IsZero() {
			return out
		}
		h.deadline = time.Time{}
		return append(out, ClearTimer{})
	}
	h.deadline = now.Add(timeout)
	return append(out, SetTimer{h.deadline})
}

// end ends the handshake with the last output.
func (h *Handshake) end(
	now time.Time, s HandshakeState, last HandshakeOutput, out []HandshakeOutput,
) []HandshakeOutput {
	return append(h.setState(now, s, out), last)
}

func (h *Handshake) timeout(now time.Time, awaited string, out []HandshakeOutput) []HandshakeOutput {
	return h.end(now, HandshakeFailed, EndTCP{Err: &TimeoutError{Awaited: awaited}}, out)
}

func (h *Handshake) protocolError(
	now time.Time, message string, err error, out []HandshakeOutput,
) []HandshakeOutput {
	e := &ProtocolError{Message: message, State: h.state.String(), Err: err}
	return h.end(now, HandshakeFailed, EndTCP{Err: e}, out)
}

var errUnexpected = errors.New("not expected now")

func (h *Handshake) unexpected(now time.Time, m clc.Message, out []HandshakeOutput) []HandshakeOutput {
	name := "no message"
	if m != nil {
		name = "CLC " + m.Type().String()
	}
	return h.protocolError(now, name, errUnexpected, out)
}

// mayDeclineLate reports whether a Confirm may be answered with a Decline: only while the first
// link of a new SMC-R link group has not been confirmed. Other connections are in use from the
// Confirm on.
// rule: TestHandshakeTable: h.accept.FirstContact -> true
func (h *Handshake) mayDeclineLate() bool { return h.choice.Mode == SMCR && h.accept.FirstContact }

// decline ends the handshake with a Decline. The caller has made sure that it is our turn.
func (h *Handshake) decline(now time.Time, why clc.Diagnosis, out []HandshakeOutput) []HandshakeOutput {
	m := clc.Decline{
		Version: h.declineVersion(),
		// Only a client that has seen the Accept may say so: the kernel's net/smc fails
		// badly on it elsewhere.
		OutOfSync: why == clc.DiagSync && h.role == RoleClient &&
			h.state == HandshakePreparing && !h.accept.FirstContact, // rule: TestHandshakeTable: !h.accept.FirstContact -> true
		PeerID:    h.caps.PeerID,
		Diagnosis: why.WireCode(),
	}
	if m.Version > clc.V1 { // rule: TestDeclineForms
		m.OS = h.caps.OS // the byte is reserved in version 1: RFC 7609 p.105
	}
	crossing := h.state == HandshakeLinkTurn || h.state == HandshakeLinkReplied || h.state == HandshakeAddLink
	if h.state == HandshakeAwaitProposal || h.role == RoleServer && h.state == HandshakePreparing {
		h.fillByType(why) // rule: TestServerOrder
		if m.Version == clc.V2 {
			// rule: TestDeclineForms
			m.ByType = wireByType(h.byType) // Linux net/smc sends zeros
		}
	}
	out = append(out, SendCLC{m})
	return h.end(now, HandshakeFellBack, FallBack{Diagnosis: why, ByType: h.byType, Crossing: crossing}, out)
}

// declineVersion returns the version of a Decline, and with it its length. Linux 5.10 to 5.15 take
// 28 bytes only, in any version, and fail the connection for 44; later ones take 28 in version 1
// and 44 in version 2. So a client answers in the version of the Accept. A server answers in
// version 1 a Proposal that such a kernel may have sent. A client's first word is in version 1, as
// the server has said nothing yet.
func (h *Handshake) declineVersion() clc.Version {
	switch {
	case h.role == RoleServer && h.proposal.Version != 0 && !mayBeShort(&h.proposal): // rule: TestDeclineForms
		return h.proposal.Version
	case h.role == RoleClient && h.accept.Version != 0: // rule: TestDeclineForms
		return h.accept.Version
	}
	return clc.V1
}

// mayBeShort reports whether the sender of a Proposal may know the Decline of 28 bytes only: it
// offers version 1 alone, as any Linux without version 2 devices does in a Proposal of version 2,
// or SMC-Dv2 of release 0 without a UEID, as Linux 5.10 to 5.15.
func mayBeShort(p *clc.Proposal) bool {
	if p.V2 == clc.TypesNone { // rule: TestDeclineForms
		return true
	}
	// rule: TestDeclineForms: len(p.Ext.UEIDs) == 0 -> true
	return !p.V2.HasR() && p.Ext != nil && p.Ext.Release == clc.Release0 && len(p.Ext.UEIDs) == 0
}
