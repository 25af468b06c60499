package core

import (
	"fmt"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A Role tells which side opened the TCP connection.
type Role uint8

// The roles.
const (
	RoleClient Role = iota + 1
	RoleServer
)

// String returns "client" or "server".
func (r Role) String() string {
	switch r {
	case RoleClient:
		return "client"
	case RoleServer:
		return "server"
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}

// A HandshakeState says how far a handshake is.
type HandshakeState uint8

// The states of a handshake.
const (
	HandshakeInit          HandshakeState = iota // not started
	HandshakeAwaitProposal                       // server: awaited: Proposal
	HandshakeAwaitAccept                         // client: Proposal sent, awaited: Accept
	HandshakePreparing                           // our turn; awaited: the caller's buffers
	HandshakeAwaitConfirm                        // server: Accept sent, awaited: Confirm
	// SMC-R first contact, our turn: CONFIRM LINK or its reply has to be sent
	HandshakeLinkTurn
	HandshakeLinkWait // SMC-R first contact; awaited: CONFIRM LINK or its reply
	// SMC-R first contact, client: the reply is posted; awaited: its completion
	HandshakeLinkReplied
	// SMC-R first contact, link confirmed; awaited: the attempt at a second link
	HandshakeAddLink
	HandshakeEstablished // over: the connection uses SMC
	HandshakeFellBack    // over: the connection goes on over TCP
	HandshakeFailed      // over: the TCP connection has to end

	numHandshakeStates = iota
)

var handshakeStateNames = [numHandshakeStates]string{
	"Init", "AwaitProposal", "AwaitAccept", "Preparing", "AwaitConfirm",
	"LinkTurn", "LinkWait", "LinkReplied", "AddLink", "Established", "FellBack", "Failed",
}

// String returns the state's name.
func (s HandshakeState) String() string {
	if int(s) < len(handshakeStateNames) {
		return handshakeStateNames[s]
	}
	return fmt.Sprintf("HandshakeState(%d)", uint8(s))
}

// A Choice is one way to make the connection: an SMC type in a version, and the devices on both
// sides. A server tries its choices in order, a client has the one that the server made.
type Choice struct {
	Mode    Mode
	Version clc.Version
	Release clc.Release // of version 2; unknown, and 0, in a client's choice unless FirstContact
	EID     wire.EID    // version 2 only

	Local  clc.ISMDevice // SMC-D: our device
	Remote clc.ISMDevice // SMC-D: the peer's

	// SMC-R: the peer as it introduced itself. A server that chooses version 2 may find PeerID and
	// MAC zero: Linux net/smc does not fill them in (learn them from the Confirm).
	PeerID wire.PeerID
	GID    wire.GID
	MAC    wire.MAC

	// For a client: the content of the Accept. FirstContact: the server made a new link group, and
	// the client has to; otherwise the client must have one, see [Groups.Join]. D or R is the
	// server's buffer. A server decides on first contact itself, see [Resources].
	FirstContact bool
	PeerOS       clc.OS       // of the server; unspecified unless FirstContact in version 2
	Direct       bool         // SMC-Rv2 first contact: the server sees no router between the RNICs
	ReasonKept   bool         // SMC-Rv2: SMC-D was offered too, and the server knows why it did not take it
	D            *clc.ParamsD // SMC-D
	R            *clc.ParamsR // SMC-R
}

// Resources describe the resources that the caller made ready for a [Choice]: our receive buffer,
// in the words of the message that announces it.
type Resources struct {
	// FirstContact says that the server made a new link group. A client leaves it out: the
	// server has decided.
	FirstContact bool
	// D is our buffer for SMC-D. GID and CHID are filled in from the Choice.
	D *clc.ParamsD
	// R is our buffer and link end for SMC-R. PeerID is filled in.
	R *clc.ParamsR
	// Direct says that there is no router between the RNICs. For the server, SMC-Rv2 first
	// contact; a client repeats the server's value.
	Direct bool
	// ClientGIDs lists 1 to 8 addresses for links, the one in R first. For the client, SMC-Rv2
	// first contact.
	ClientGIDs []wire.GID
}

// A Result holds the values on which both sides have agreed.
type Result struct {
	Role         Role
	Mode         Mode
	Version      clc.Version
	FirstContact bool
	EID          wire.EID // version 2 only
	ReasonKept   bool     // SMC-Rv2: SMC-D was offered too, and the server knows why it was not taken

	Local clc.ISMDevice // SMC-D: our device
	D     *clc.ParamsD  // SMC-D: the peer's buffer
	R     *clc.ParamsR  // SMC-R: the peer's buffer and link end

	// The rest is exchanged on first contact, in version 2, and then holds for the link group.
	// For other connections it is zero, but for the limits in version 1.

	Release       clc.Release
	PeerOS        clc.OS
	PeerHostName  string       // "" if unknown; at most 32 printable ASCII characters
	MaxConns      uint8        // per link group of SMC-R: 16 to 255
	MaxLinks      uint8        // per link group of SMC-R: 1 or 2
	Features      clc.Features // features of both
	Direct        bool         // SMC-Rv2: the server sees no router between the RNICs
	PeerGIDs      []wire.GID   // SMC-Rv2, server: the client's addresses for links, 0 to 8
	VendorOffer   [5]byte      // server: the client's options, if its OUI is ours
	VendorOptions [4]byte      // the server's options, if our OUI was in the Proposal
}

// A LinkStepKind is one step of the first contact's LLC messages, as the handshake has to know it.
type LinkStepKind uint8

// The steps, in their order.
const (
	// StepRequested: the send of CONFIRM LINK is complete (server), or it has been received (client).
	StepRequested LinkStepKind = iota + 1
	// StepReplied: the reply to CONFIRM LINK is posted (client). Whether it has arrived is not known
	// before StepConfirmed.
	StepReplied
	// StepConfirmed: the reply has been received (server), or its send is complete (client).
	StepConfirmed
	// StepUp: a second link was attempted, or is not to be.
	StepUp
	// StepFailed: the link cannot be used. It may come in place of any other.
	StepFailed
)

// String returns the step in a word.
func (k LinkStepKind) String() string {
	switch k {
	case StepRequested:
		return "requested"
	case StepReplied:
		return "replied"
	case StepConfirmed:
		return "confirmed"
	case StepUp:
		return "up"
	case StepFailed:
		return "failed"
	}
	return fmt.Sprintf("LinkStepKind(%d)", uint8(k))
}

// A LinkStep is a step of the first contact's LLC messages, see [Handshake.LinkStep].
type LinkStep struct {
	Kind LinkStepKind
	Why  clc.Diagnosis // StepFailed
}

// A HandshakeOutput is something that the caller of a [Handshake] has to do.
type HandshakeOutput interface{ handshakeOutput() }

// The outputs, besides [SetTimer] and [ClearTimer].
type (
	// SendCLC asks for the message to be written to TCP. Nothing follows it until the peer has
	// answered, so it may be written with a deadline.
	SendCLC struct{ Message clc.Message }

	// Prepare asks for buffers, to be answered with [Handshake.Prepared] or
	// [Handshake.PrepareFailed]. If the handshake ends before the answer, by PrepareTimeout or
	// by the peer, the answer is ignored: its buffers are the caller's to release.
	Prepare struct{ Choice Choice }

	// StartLink asks for the first link of a new link group to be set up (SMC-R first contact):
	// a server then sends CONFIRM LINK, a client awaits it.
	StartLink struct{ Result Result }

	// Established ends the handshake: the connection uses SMC, and cannot fall back any more.
	Established struct{ Result Result }

	// FallBack ends the handshake: the TCP connection belongs to the application. No CLC
	// message may be sent or expected after it, and buffers made ready are to be released.
	FallBack struct {
		ByPeer    bool          // the peer sent the Decline; otherwise we did
		Diagnosis clc.Diagnosis // as the declining side has it; ours may be a local one
		OS        clc.OS        // ByPeer: the OS that has chosen the number, see clc.Lookup
		// ByPeer: the client lost the link group that our Accept named; it has to be dropped
		OutOfSync bool
		ByType    clc.DiagnosisByType // why each type that was offered was not used, as far as known
		// Crossing says that the peer may have sent a Decline at the same time as we did, when
		// the first link of SMC-R failed for both. If the first bytes that arrive from now on
		// are exactly a Decline, they are to be dropped and not given to the application.
		Crossing bool
	}

	// EndTCP ends the handshake: the TCP connection must be reset, and buffers released. Err is
	// a [*ProtocolError], a [*TimeoutError], or the error given to [Handshake.HandleTCPEnd].
	EndTCP struct{ Err error }
)

func (SendCLC) handshakeOutput()     {}
func (Prepare) handshakeOutput()     {}
func (StartLink) handshakeOutput()   {}
func (Established) handshakeOutput() {}
func (FallBack) handshakeOutput()    {}
func (EndTCP) handshakeOutput()      {}
func (SetTimer) handshakeOutput()    {}
func (ClearTimer) handshakeOutput()  {}
