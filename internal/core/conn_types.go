package core

import (
	"fmt"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// A Mode is one of the two kinds of shared memory a connection can live on.
type Mode uint8

// The modes.
const (
	SMCD Mode = iota + 1 // memory of the same machine, through an ISM device
	SMCR                 // RDMA between machines
)

// String returns the specification's spelling.
func (m Mode) String() string {
	switch m {
	case SMCD:
		return "SMC-D"
	case SMCR:
		return "SMC-R"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// A ConnState is a state of figure 22 or figure 23 of RFC 7609 §4.8. Figure 22's CLOSED is two
// states here, because a connection is used once: StateInit before it and StateClosed after it.
type ConnState uint8

// The states of a connection.
const (
	StateInit   ConnState = iota // buffers are announced; awaited: the end of the handshake
	StateActive                  // data flows both ways
	// we closed, or shut down writing, first; awaited: the peer's first flag
	StatePeerCloseWait1
	StatePeerCloseWait2 // the peer is done writing too; awaited: its PeerConnectionClosed
	StateAppCloseWait1  // the peer closed, or is done writing; awaited: our application
	StateAppCloseWait2  // and our application has shut down writing; awaited: its close
	// we closed after the peer was done writing; awaited: its PeerConnectionClosed
	StatePeerFinCloseWait
	// we shut down writing, the peer closed; awaited: our application's close
	StateAppFinCloseWait
	StatePeerAbortWait // we aborted; awaited: the peer's answer
	StateProcessAbort  // the connection has failed; awaited: our application's close
	StateClosed        // buffers are released; nothing is awaited
)

var connStateNames = [...]string{
	"Init", "Active", "PeerCloseWait1", "PeerCloseWait2", "AppCloseWait1", "AppCloseWait2",
	"PeerFinCloseWait", "AppFinCloseWait", "PeerAbortWait", "ProcessAbort", "Closed",
}

// String returns the specification's spelling.
func (s ConnState) String() string {
	if int(s) < len(connStateNames) {
		return connStateNames[s]
	}
	return fmt.Sprintf("ConnState(%d)", uint8(s))
}

// allConnFlags are the flags that count in a cdc.ConnFlags; the other bits are reserved.
const allConnFlags = cdc.DoneWriting | cdc.Closed | cdc.Abort

// A ConnEventKind is the kind of an event of a connection.
type ConnEventKind uint8

// The events, local ones first.
const (
	// EventEstablished: the handshake is over on both sides, data may flow.
	EventEstablished ConnEventKind = iota
	// EventClose: the application closed, and all data it had written is published, or given
	// up. Event.Abortive says that the close is an abort.
	EventClose
	// EventShutdownWrite: the application shut down writing, and all data is published.
	EventShutdownWrite
	// EventAbort: we end the connection while the application still holds it, because its
	// link group or the whole host ends.
	EventAbort
	// EventPeerFlags: the peer's flags were looked at.
	EventPeerFlags
	// EventTCPFin: the peer ended its direction of the TCP connection.
	EventTCPFin
	// EventTCPReset: the TCP connection was reset, or failed in another way; or the peer ended it,
	// and its earlier messages by RDMA are lost.
	EventTCPReset
	// EventPeerDead: the fabric reports that the peer's process or instance is gone.
	EventPeerDead
	// EventLinkLost: the last link to the peer is gone, and its link group ends. Nothing gets through to
	// the peer any more, and nothing is awaited from it. SMC-R.
	EventLinkLost
	// EventElementLost: the peer has given the place in its RMB that this connection writes to
	// another one, so for the peer it has ended: [ElementLost]. SMC-R.
	EventElementLost
	// EventProtocolViolation: the peer published something impossible, such as a cursor
	// that passed the end of the buffer.
	EventProtocolViolation
	// EventTimer: the deadline last set by [SetTimer] may have come. Too early is harmless.
	EventTimer

	numConnEvents = iota
)

var connEventNames = [numConnEvents]string{
	"Established", "Close", "ShutdownWrite", "Abort", "PeerFlags",
	"TCPFin", "TCPReset", "PeerDead", "LinkLost", "ElementLost", "ProtocolViolation", "Timer",
}

// String returns the event's name.
func (k ConnEventKind) String() string {
	if int(k) < len(connEventNames) {
		return connEventNames[k]
	}
	return fmt.Sprintf("ConnEventKind(%d)", uint8(k))
}

// A ConnEvent is one thing that happened to a connection.
type ConnEvent struct {
	Kind ConnEventKind
	// Abortive, with EventClose, says that the receive buffer holds bytes the application has
	// not read ("if unread data is detected, the SMC-R connection must be abnormally reset",
	// RFC 7609 p.83), or that it asked for a reset (SO_LINGER with zero seconds).
	Abortive bool
	// Peer holds the peer's flags. It belongs to every event that comes from outside
	// (PeerFlags, TCPFin, TCPReset, PeerDead, LinkLost, ElementLost, ProtocolViolation): the caller
	// reads the flags after it learned of the event and before it reports it, so that a peer which
	// published a flag and then ended TCP is not taken for dead. Other events may leave it zero.
	Peer cdc.ConnFlags
	// ReadAll, with TCPFin and PeerDead, says that the peer is known to have read everything that was
	// written. The kernel would have ended the TCP connection of such a process with a FIN, not a RST.
	ReadAll bool
	// Unsent, with the peer's flags, says that the peer was found to have closed in the middle of a
	// write: it was not given some of the bytes. To report it again is harmless.
	Unsent bool
}

// A FailKind says why a connection failed.
type FailKind uint8

// The kinds of failure and the error that the application gets for each.
const (
	FailNone    FailKind = iota // it did not
	FailReset                   // the peer aborted, or TCP was reset: ECONNRESET
	FailAborted                 // we aborted it: ECONNABORTED
	// the peer vanished without closing, and had not read everything: ECONNRESET
	FailPeerDied
	// the peer vanished without closing, and had read everything: EOF, EPIPE after one more write
	FailPeerEnded
	FailTimeout  // the peer did not answer a close in time; no application is left to tell
	FailProtocol // the peer broke the protocol: ECONNABORTED
	FailLinkLost // the last link to the peer is gone: ECONNABORTED, as Linux net/smc
)

var failKindNames = [...]string{
	"none", "reset by peer", "aborted", "peer died", "peer ended", "timeout",
	"protocol violation", "link lost",
}

// String returns the kind in words.
func (k FailKind) String() string {
	if int(k) < len(failKindNames) {
		return failKindNames[k]
	}
	return fmt.Sprintf("FailKind(%d)", uint8(k))
}

// A ConnOutput is something that the caller of [Conn.Handle] has to do.
type ConnOutput interface{ connOutput() }

// The outputs. [SetTimer] and [ClearTimer] are of a [Handshake], too.
type (
	// SendFlags asks for the flags to be published to the peer, at once and together with the
	// final cursors. Flags holds all flags set so far, as they are sticky. After Closed or
	// Abort nothing more may be written into the peer's buffer: not payload, not cursors.
	SendFlags struct{ Flags cdc.ConnFlags }

	// ReadEOF lets reads end with EOF after the bytes already received.
	ReadEOF struct{}

	// WriteClosed lets writes fail from now on, with EPIPE. ByPeer says that the peer closed and
	// will not read. A write that this cuts short fails with ECONNRESET, and is reported as
	// [ConnEvent].Unsent.
	WriteClosed struct{ ByPeer bool }

	// FailIO lets writes fail, and lets reads fail after the bytes already received. A
	// ReadEOF that came before keeps its effect on reads: the peer had sent all it wanted to.
	// It comes at most once.
	FailIO struct{ Kind FailKind }

	// ResetTCP asks for the TCP socket to be closed with a RST. It replaces CloseTCP.
	ResetTCP struct{}

	// CloseTCP asks for the TCP socket to be closed.
	CloseTCP struct{}

	// SetTimer asks for an EventTimer at the given time. It replaces an earlier one.
	SetTimer struct{ At time.Time }

	// ClearTimer cancels the timer.
	ClearTimer struct{}

	// ReleaseBuffers returns both ends of the connection's memory: our receive buffer, and our
	// claim on the peer's. It comes exactly once. Clean says that the peer has promised not to
	// write into our buffer any more, so that it may serve another connection to the same
	// peer; otherwise it must not be used again before the peer's access has been revoked.
	ReleaseBuffers struct{ Clean bool }

	// ConnClosed is the last output: the Conn may be forgotten. Why is FailNone if both sides
	// closed in good order.
	ConnClosed struct{ Why FailKind }
)

func (SendFlags) connOutput()      {}
func (ReadEOF) connOutput()        {}
func (WriteClosed) connOutput()    {}
func (FailIO) connOutput()         {}
func (ResetTCP) connOutput()       {}
func (CloseTCP) connOutput()       {}
func (SetTimer) connOutput()       {}
func (ClearTimer) connOutput()     {}
func (ReleaseBuffers) connOutput() {}
func (ConnClosed) connOutput()     {}
