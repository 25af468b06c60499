package core

import (
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// A Conn is the life of one SMC connection, from the moment its buffers are announced to the
// moment they are released: the state machines of RFC 7609 §4.8, figures 22 and 23.
//
// The caller makes one when the CLC handshake has exchanged the buffers, reports EventEstablished
// when data may flow, then all other events, and carries out the outputs in order. If the handshake
// falls back to TCP after all, the Conn is dropped without an event. The caller reads the peer's
// flags and reports EventPeerFlags when they have changed; to report the same flags again is
// harmless. Data is not its business: the caller reports EventClose and EventShutdownWrite when
// everything that was written has been published (or, on close, given up).
//
// The transitions. "open" is a state while the application still holds the connection, "gone"
// after its close. D, C and A are the flags cdc.DoneWriting, cdc.Closed and cdc.Abort; a peer
// that sends several at once has the effect of the rightmost, after D's. "fail" is FailIO
// (if open) and ResetTCP; "done" is CloseTCP (unless TCP has ended), ReleaseBuffers and ConnClosed.
//
//	state                  event                     next               output
//	Init                   Established               Active
//	Init                   D or C                    AppCloseWait1      ReadEOF; C: WriteClosed by peer
//	Init                   A, Close, Abort,          Closed             fail, done
//	                       TCPFin without C, TCPReset without C,
//	                       PeerDead without C, LinkLost, ElementLost, ProtocolViolation
//	Active                 Close                     PeerCloseWait1     SendFlags C, CloseTCP, SetTimer
//	Active                 ShutdownWrite             PeerCloseWait1     SendFlags D, WriteClosed
//	Active                 D or C                    AppCloseWait1      ReadEOF; C: WriteClosed by peer
//	PeerCloseWait1 open    Close                     same, gone         SendFlags D+C, CloseTCP, SetTimer
//	PeerCloseWait2 open    Close                     same, gone         SendFlags D+C, CloseTCP, SetTimer
//	PeerCloseWait1         D                         PeerCloseWait2     ReadEOF if open
//	PeerCloseWait1/2 open  C                         AppFinCloseWait    ReadEOF if it was not yet
//	PeerCloseWait1/2 gone  C                         Closed             ClearTimer, done
//	AppCloseWait1          ShutdownWrite             AppCloseWait2      SendFlags D, WriteClosed
//	AppCloseWait1/2        Close, C not received     PeerFinCloseWait   SendFlags C, CloseTCP, SetTimer
//	AppCloseWait1/2        Close, C received         Closed             SendFlags C, done
//	AppCloseWait1          C                         same               WriteClosed by peer
//	AppCloseWait1          Unsent, C received        ProcessAbort       SendFlags A, fail
//	PeerFinCloseWait       C                         Closed             ClearTimer, done
//	AppFinCloseWait        Close                     Closed             SendFlags D+C, done
//
//	gone, not aborted      Timer                     Closed             ClearTimer, done
//	gone, not aborted      A, Abort, TCPFin or TCPReset or PeerDead without C,
//	                       LinkLost, ElementLost, ProtocolViolation  Closed  ClearTimer, done
//	any open               A                         ProcessAbort       SendFlags A, fail
//	any open               TCPFin, PeerDead, without C  ProcessAbort    fail
//	any open               Abort, ProtocolViolation  PeerAbortWait      SendFlags A, fail, SetTimer
//	any open               TCPReset without C        PeerAbortWait      SendFlags A, fail, SetTimer
//	any open               Close abortive            PeerAbortWait      SendFlags A, ResetTCP, SetTimer
//	PeerAbortWait          C, A, Timer, PeerDead     ProcessAbort if open, else Closed, done
//	any open               LinkLost, ElementLost, without C  ProcessAbort  fail
//	PeerAbortWait          LinkLost                  ProcessAbort if open, else Closed, done
//	PeerAbortWait          Close                     same, gone
//	ProcessAbort           Close                     Closed             done
//	Closed                 any                       same
//
// If the peer has already sent C, an abort has no peer to wait for: it passes through PeerAbortWait
// to the state after it at once. An event that the table lacks changes nothing.
//
// After LinkLost and ElementLost no flags are sent, no matter which events come.
//
// Three rules stand behind it:
//
//   - After we have sent C or A we send nothing more: the peer may already use its buffer for
//     another connection. For the same reason C ends PeerAbortWait as A does, where RFC 7609
//     p.87 mentions A only.
//   - A peer that has sent C is finished with us. Later events of its TCP connection or its process
//     take nothing away: reads end with EOF, not with an error.
//   - In SMC-D flags are published before the FIN is sent, so a FIN without C or A comes from a
//     kernel that cleaned up after a dead process. In SMC-R flags and FIN travel by different
//     ways and a FIN alone says nothing; Linux net/smc ignores it too, and finds a dead
//     peer through the link.
//
// Where a state awaits the peer and the application is gone, a timer runs (RFC 7609 p.85 and p.87).
type Conn struct {
	mode     Mode
	state    ConnState
	appGone  bool          // the application has closed
	mute     bool          // flags do not reach the peer, or another connection of its
	eof      bool          // ReadEOF has been sent
	sent     cdc.ConnFlags // by us
	peer     cdc.ConnFlags // by the peer
	tcpGone  bool          // ResetTCP or CloseTCP has been sent
	why      FailKind      // the first failure
	deadline time.Time     // zero: no timer runs
}

// NewConn returns a connection in StateInit.
func NewConn(mode Mode) *Conn { return &Conn{mode: mode} }

// State returns the current state.
func (c *Conn) State() ConnState { return c.state }

// SentFlags returns the flags that we have set, PeerFlags those that the peer has.
func (c *Conn) SentFlags() cdc.ConnFlags { return c.sent }

// PeerFlags returns the flags that the peer has set, as far as they were reported.
func (c *Conn) PeerFlags() cdc.ConnFlags { return c.peer }

// Failure returns why the connection failed, FailNone as long as it has not.
func (c *Conn) Failure() FailKind { return c.why }

// Deadline returns when EventTimer is due, zero if no timer runs.
func (c *Conn) Deadline() time.Time { return c.deadline }

// Handle takes one event and appends the outputs for it to out. Every event is harmless in every
// state; after StateClosed none has an effect. Neither the event nor the peer's flags can make it
// fail: unknown flag bits are ignored.
func (c *Conn) Handle(now time.Time, ev ConnEvent, out []ConnOutput) []ConnOutput {
	out = c.handlePeerFlags(now, ev.Peer, out)
	if ev.Unsent {
		out = c.onUnsent(now, out)
	}
	switch ev.Kind {
	case EventEstablished:
		return c.onEstablished(now, out)
	case EventClose:
		return c.onClose(now, ev.Abortive, out)
	case EventShutdownWrite:
		return c.onShutdownWrite(now, out)
	case EventAbort:
		return c.onFatal(now, FailAborted, out)
	case EventPeerFlags:
		return out // done above
	case EventTCPFin:
		return c.onTCPFin(now, ev.ReadAll, out)
	case EventTCPReset:
		return c.onTCPReset(now, out)
	case EventPeerDead:
		return c.onPeerDead(now, ev.ReadAll, out)
	case EventLinkLost:
		return c.onLost(now, FailLinkLost, out)
	case EventElementLost:
		return c.onLost(now, FailReset, out)
	case EventProtocolViolation:
		return c.onFatal(now, FailProtocol, out)
	case EventTimer:
		return c.onTimer(now, out)
	}
	return out // an event kind that does not exist
}

// peerFinished reports whether the peer has promised to write no more into our buffer.
func (c *Conn) peerFinished() bool { return c.peer&(cdc.Closed|cdc.Abort) != 0 }

// setState is the only writer of c.state. It runs the timer in the states that await the peer:
// passing from one to the next does not prolong the wait.
func (c *Conn) setState(now time.Time, s ConnState, out []ConnOutput) []ConnOutput {
	c.state = s
	var timeout time.Duration
	switch s {
	case StatePeerCloseWait1, StatePeerCloseWait2:
		if c.appGone {
			timeout = PeerCloseWaitTimeout // rule: TestConnTable: PeerCloseWaitTimeout -> 0
		}
	case StatePeerFinCloseWait:
		timeout = PeerFinCloseWaitTimeout // rule: TestConnTable: PeerFinCloseWaitTimeout -> 0
	case StatePeerAbortWait:
		timeout = PeerAbortWaitTimeout // rule: TestConnTable: PeerAbortWaitTimeout -> 0
	case StateInit, StateActive, StateAppCloseWait1, StateAppCloseWait2,
		StateAppFinCloseWait, StateProcessAbort, StateClosed:
		// These await our own side, or nothing.
	}
	switch {
	case timeout > 0 && c.deadline.IsZero():
		c.deadline = now.Add(timeout)
		return append(out, SetTimer{c.deadline})
	case timeout == 0 && !c.deadline.IsZero():
		c.deadline = time.Time{}
		return append(out, ClearTimer{})
	}
	return out
}

// enterClosed ends the connection's life.
func (c *Conn) enterClosed(now time.Time, out []ConnOutput) []ConnOutput {
	out = c.setState(now, StateClosed, out)
	out = c.closeTCP(out)
	// The promise of a peer that broke the protocol is worth nothing.
	clean := c.peerFinished() && c.why != FailProtocol // rule: TestConnTable: c.why != FailProtocol -> true
	return append(out, ReleaseBuffers{Clean: clean}, ConnClosed{Why: c.why})
}

// closeTCP ends TCP in order. After C it has nothing more to tell either side: the peer has seen C
// before the FIN, and its own end is learned from its flags, or from the fabric when it dies.
func (c *Conn) closeTCP(out []ConnOutput) []ConnOutput {
	if c.tcpGone {
		return out
	}
	c.tcpGone = true
	return append(out, CloseTCP{})
}

// sendFlags sets flags of ours. After C or A nothing is sent any more.
func (c *Conn) sendFlags(f cdc.ConnFlags, out []ConnOutput) []ConnOutput {
	if c.mute || c.sent&(cdc.Closed|cdc.Abort) != 0 { // rule: TestConnTable
		return out
	}
	c.sent |= f
	return append(out, SendFlags{c.sent})
}

// sendEOF tells the application, if there is one, that the peer is done writing.
func (c *Conn) sendEOF(out []ConnOutput) []ConnOutput {
	if c.appGone || c.eof {
		return out
	}
	c.eof = true
	return append(out, ReadEOF{})
}

// fail records the failure, tells the application if there is one, and ends TCP.
func (c *Conn) fail(why FailKind, out []ConnOutput) []ConnOutput {
	if c.why == FailNone {
		c.why = why
		if !c.appGone {
			out = append(out, FailIO{why})
		}
	}
	if !c.tcpGone {
		c.tcpGone = true
		out = append(out, ResetTCP{})
	}
	return out
}

// enterAborted leaves the peer behind: only the application remains, if it is still there.
func (c *Conn) enterAborted(now time.Time, out []ConnOutput) []ConnOutput {
	if c.appGone {
		return c.enterClosed(now, out)
	}
	return c.setState(now, StateProcessAbort, out)
}

// enterPeerAbortWait aborts the connection from our side (RFC 7609 p.87, 1A).
func (c *Conn) enterPeerAbortWait(now time.Time, why FailKind, out []ConnOutput) []ConnOutput {
	out = c.sendFlags(cdc.Abort, out)
	out = c.fail(why, out)
	if c.peerFinished() {
		return c.enterAborted(now, out)
	}
	return c.setState(now, StatePeerAbortWait, out)
}

// handlePeerFlags takes the peer's flags; only flags that were not set before have an effect.
func (c *Conn) handlePeerFlags(now time.Time, flags cdc.ConnFlags, out []ConnOutput) []ConnOutput {
	fresh := flags & allConnFlags &^ c.peer
	if fresh == 0 {
		return out
	}
	c.peer |= fresh
	if fresh&(cdc.DoneWriting|cdc.Closed) != 0 {
		out = c.handleClosing(now, fresh, out)
	}
	if fresh&cdc.Abort != 0 {
		out = c.handleAbort(now, out)
	}
	return out
}

// handleClosing takes D or C or both. A D that comes after C says nothing new.
func (c *Conn) handleClosing(now time.Time, fresh cdc.ConnFlags, out []ConnOutput) []ConnOutput {
	closed := fresh&cdc.Closed != 0
	switch c.state {
	case StateInit, StateActive:
		out = c.sendEOF(out)
		if closed {
			out = append(out, WriteClosed{ByPeer: true})
		}
		return c.setState(now, StateAppCloseWait1, out)
	case StatePeerCloseWait1, StatePeerCloseWait2:
		out = c.sendEOF(out)
		switch {
		case closed && c.appGone: // rule: TestConnTable
			return c.enterClosed(now, out)
		case closed:
			return c.setState(now, StateAppFinCloseWait, out)
		}
		return c.setState(now, StatePeerCloseWait2, out)
	case StateAppCloseWait1:
		if closed {
			out = append(out, WriteClosed{ByPeer: true})
		}
		return out
	case StateAppCloseWait2, StateAppFinCloseWait:
		return out // writes fail already, and only our application is awaited
	case StatePeerFinCloseWait:
		if closed {
			return c.enterClosed(now, out)
		}
		return out
	case StatePeerAbortWait:
		if closed {
			return c.enterAborted(now, out)
		}
		return out // data is no longer of interest
	case StateProcessAbort, StateClosed:
		return out // nothing is awaited from the peer; the flags count when buffers are released
	}
	panic("core: impossible connection state " + c.state.String())
}

// onUnsent takes the news that bytes which the application has written are still ours: "if there is
// any pending data to be written and PeerConnectionClosed is on, then an SMC-R connection reset must
// be performed" (RFC 7609 p.84, 4A). The peer learns that it has not got all there was.
func (c *Conn) onUnsent(now time.Time, out []ConnOutput) []ConnOutput {
	switch c.state {
	case StateAppCloseWait1:
		if c.peer&cdc.Closed == 0 {
			return out // it may still read
		}
		return c.enterPeerAbortWait(now, FailReset, out) // rule: TestConnTable: c.enterPeerAbortWait(now, FailReset, out) -> out
	case StateInit, StateActive: // the peer has not closed
	case StatePeerCloseWait1, StatePeerCloseWait2, StateAppCloseWait2,
		StatePeerFinCloseWait, StateAppFinCloseWait: // we are done writing ourselves
	case StatePeerAbortWait, StateProcessAbort, StateClosed: // it is reset, or over
	}
	return out
}

// handleAbort takes A for the first time (RFC 7609 p.88, 2A and 2B).
func (c *Conn) handleAbort(now time.Time, out []ConnOutput) []ConnOutput {
	switch c.state {
	case StateInit:
		return c.enterClosed(now, c.fail(FailReset, out))
	case StateActive, StatePeerCloseWait1, StatePeerCloseWait2, StateAppCloseWait1,
		StateAppCloseWait2, StatePeerFinCloseWait, StateAppFinCloseWait:
		// rule: TestConnTable
		out = c.sendFlags(cdc.Abort, out) // not after C
		return c.enterAborted(now, c.fail(FailReset, out))
	case StatePeerAbortWait:
		return c.enterAborted(now, out)
	case StateProcessAbort, StateClosed:
		return out // both sides have aborted, or the peer is late
	}
	panic("core: impossible connection state " + c.state.String())
}

// onEstablished starts the flow of data.
func (c *Conn) onEstablished(now time.Time, out []ConnOutput) []ConnOutput {
	switch c.state {
	case StateInit:
		return c.setState(now, StateActive, out)
	case StateActive, StatePeerCloseWait1, StatePeerCloseWait2, StateAppCloseWait1,
		StateAppCloseWait2, StatePeerFinCloseWait, StateAppFinCloseWait,
		StatePeerAbortWait, StateProcessAbort, StateClosed:
		return out // a peer that was established first may already have closed
	}
	panic("core: impossible connection state " + c.state.String())
}

// onClose takes the application's close. A second one changes nothing.
func (c *Conn) onClose(now time.Time, abortive bool, out []ConnOutput) []ConnOutput {
	if c.appGone {
		return out
	}
	switch c.state {
	case StateInit:
		// The way to the peer is not known to work. TCP tells it.
		c.appGone = true
		return c.enterClosed(now, c.fail(FailAborted, out))
	case StateActive, StatePeerCloseWait1, StatePeerCloseWait2, StateAppCloseWait1,
		StateAppCloseWait2, StateAppFinCloseWait:
		c.appGone = true
		if abortive { // rule: TestConnTable
			return c.enterPeerAbortWait(now, FailAborted, out)
		}
		out = c.closeTCP(c.sendFlags(cdc.Closed, out))
		switch {
		case c.peer&cdc.Closed != 0: // rule: TestConnTable
			return c.enterClosed(now, out)
		case c.state == StateActive:
			return c.setState(now, StatePeerCloseWait1, out)
		case c.state == StateAppCloseWait1 || c.state == StateAppCloseWait2:
			return c.setState(now, StatePeerFinCloseWait, out)
		}
		return c.setState(now, c.state, out) // PeerCloseWait1 or 2, from now on with a timer
	case StatePeerAbortWait:
		c.appGone = true
		return out // the wait goes on, and its timer runs
	case StateProcessAbort:
		c.appGone = true
		return c.enterClosed(now, out)
	case StatePeerFinCloseWait:
		// Entered by close only.
	case StateClosed:
		return out // closed by a failure in StateInit
	}
	panic("core: impossible connection state " + c.state.String())
}

// onShutdownWrite takes the application's shutdown for writing.
func (c *Conn) onShutdownWrite(now time.Time, out []ConnOutput) []ConnOutput {
	switch c.state {
	case StateActive, StateAppCloseWait1:
		out = append(c.sendFlags(cdc.DoneWriting, out), WriteClosed{})
		if c.state == StateActive {
			return c.setState(now, StatePeerCloseWait1, out)
		}
		return c.setState(now, StateAppCloseWait2, out)
	case StateInit:
		return out // the application does not have the connection yet
	case StatePeerCloseWait1, StatePeerCloseWait2, StateAppCloseWait2,
		StatePeerFinCloseWait, StateAppFinCloseWait:
		return out // done before
	case StatePeerAbortWait, StateProcessAbort, StateClosed:
		return out // writes fail anyway
	}
	panic("core: impossible connection state " + c.state.String())
}

// onFatal ends the connection for a reason of ours: we want to, or the peer broke the protocol.
func (c *Conn) onFatal(now time.Time, why FailKind, out []ConnOutput) []ConnOutput {
	switch c.state {
	case StateInit:
		return c.enterClosed(now, c.fail(why, out))
	case StateActive, StatePeerCloseWait1, StatePeerCloseWait2, StateAppCloseWait1,
		StateAppCloseWait2, StatePeerFinCloseWait, StateAppFinCloseWait:
		if c.appGone { // C is sent: A may not follow, so that no answer would come
			return c.enterClosed(now, c.fail(why, out))
		}
		return c.enterPeerAbortWait(now, why, out)
	case StatePeerAbortWait, StateProcessAbort, StateClosed:
		return out // it has ended already
	}
	panic("core: impossible connection state " + c.state.String())
}

// onTCPFin takes the end of the peer's direction of TCP.
func (c *Conn) onTCPFin(now time.Time, readAll bool, out []ConnOutput) []ConnOutput {
	if c.mode == SMCR || c.state == StatePeerAbortWait { // rule: TestConnTable
		// SMC-R: the flags may still be on their way. PeerAbortWait: we have reset TCP
		// ourselves, and this is older than that.
		return out
	}
	return c.onPeerDead(now, readAll, out)
}

// onTCPReset takes a reset. The peer, if it lives, is told by A that we have seen it and awaited:
// "if an SMC-R peer receives a TCP RST for a given SMC-R connection, it also initiates SMC-R
// abnormal connection termination processing" (RFC 7609 p.88).
func (c *Conn) onTCPReset(now time.Time, out []ConnOutput) []ConnOutput {
	if c.peerFinished() {
		return out
	}
	return c.onFatal(now, FailReset, out) // rule: TestConnTable: c.onFatal(now, FailReset, out) -> out
}

// onPeerDead takes the news that nobody is left on the other side. The application gets the same
// result as from TCP when a process ends without closing: the end of the stream if it had read
// everything, else a reset.
func (c *Conn) onPeerDead(now time.Time, readAll bool, out []ConnOutput) []ConnOutput {
	if c.peerFinished() {
		return out
	}
	why := FailPeerDied
	if readAll {
		why = FailPeerEnded
	}
	return c.leave(now, why, out)
}

// onLost takes the loss of the way to the peer, or of the place that we write. "It must not attempt
// to perform any RDMA writes to this RMBE" (RFC 7609 p.62). Unlike there, data that had arrived
// before stays readable, as after any other failure.
func (c *Conn) onLost(now time.Time, why FailKind, out []ConnOutput) []ConnOutput {
	c.mute = true // rule: TestConnTable
	if c.peerFinished() {
		return out
	}
	return c.leave(now, why, out)
}

// leave ends the connection without the peer, which cannot be told.
func (c *Conn) leave(now time.Time, why FailKind, out []ConnOutput) []ConnOutput {
	switch c.state {
	case StateInit:
		return c.enterClosed(now, c.fail(why, out))
	case StateActive, StatePeerCloseWait1, StatePeerCloseWait2, StateAppCloseWait1,
		StateAppCloseWait2, StatePeerFinCloseWait, StateAppFinCloseWait:
		return c.enterAborted(now, c.fail(why, out))
	case StatePeerAbortWait:
		return c.enterAborted(now, out)
	case StateProcessAbort, StateClosed:
		return out // we have left the peer behind already
	}
	panic("core: impossible connection state " + c.state.String())
}

// onTimer ends a wait when its time is up. "When this timeout occurs, the local SMC-R peer performs
// TCP reset processing" (RFC 7609 p.85).
func (c *Conn) onTimer(now time.Time, out []ConnOutput) []ConnOutput {
	if c.deadline.IsZero() || now.Before(c.deadline) {
		return out
	}
	switch c.state {
	case StatePeerCloseWait1, StatePeerCloseWait2, StatePeerFinCloseWait:
		return c.enterClosed(now, c.fail(FailTimeout, out))
	case StatePeerAbortWait:
		return c.enterAborted(now, out)
	case StateInit, StateActive, StateAppCloseWait1, StateAppCloseWait2,
		StateAppFinCloseWait, StateProcessAbort, StateClosed:
		// These have no timer.
	}
	panic("core: timer in connection state " + c.state.String())
}
