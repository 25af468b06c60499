package conn

import (
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/wire/cdc"
)

// A life is the state of an SMC connection: core decides, and it carries out. It watches the idle TCP socket.
type life struct {
	dataPath
	conn *SMC // whose life it is

	ready atomic.Bool // data is there for Wake
	left  atomic.Bool // PeerLeft has run
	lost  atomic.Bool // ElementLost has run

	// mu guards the following fields. It is held while outputs of state are carried out.
	state    *core.Conn
	sends    bool              // the way to the peer is open
	holds    bool              // our buffer is there
	watcher  *tcpwatch.Watcher // nil if the TCP socket is not watched
	watchKey int64
	tcpEnded bool // the TCP socket is closed
	tcpReset bool // it was reset, which counts a moment later
	timer    *time.Timer
	broken   error // the rule that the peer broke; nil if it has not
	counted  bool  // that it failed
	outputs  []core.ConnOutput

	awaitsWord bool // awaitWord was called

	unreadSweeps int // sweeps in which the connection was quiet, but not all was known to be read
}

// event reports something to core and carries out the outputs.
func (l *life) event(ev core.ConnEvent) {
	l.mu.Lock()
	l.eventLocked(ev)
	l.mu.Unlock()
}

func (l *life) eventLocked(ev core.ConnEvent) {
	// The flags are sampled after the event was learned of, as core asks. They are in our own
	// buffer, so they can be read until it is released. But the connection is established first:
	// one that the peer has aborted already still has an application, and its buffers are not to be
	// released before that has closed it. Flags that come before that are looked for afterwards.
	if ev.Kind != core.EventEstablished && l.state.State() == core.StateInit { // rule: TestEventBeforeEstablished
		return
	}
	if l.holds && ev.Kind != core.EventEstablished {
		ev.Peer = l.data.PeerFlags()
		ev.ReadAll = l.data.PeerReadAll()
		ev.Unsent = l.data.Unsent() // rule: internal/host TestServerClosedInWrite
	}
	before, flags := l.state.State(), l.state.PeerFlags()
	l.outputs = l.state.Handle(time.Now(), ev, l.outputs[:0])
	l.traceEvent(&ev, before, flags)
	if why := l.state.Failure(); why != core.FailNone && !l.counted {
		l.counted = true
		l.env.Owner.Failed(failReason(why, ev.Kind, l.broken)) // rule: internal/host TestSMCRDataLies
	}
	for _, out := range l.outputs {
		l.carryOut(out)
	}
	if l.tcpEnded && l.holds && l.awaited() {
		// TCP will not tell any more when the peer has answered.
		if flags := l.data.AwaitFlags(); flags&^l.state.PeerFlags()&(cdc.DoneWriting|cdc.Closed|cdc.Abort) != 0 {
			l.eventLocked(core.ConnEvent{Kind: core.EventPeerFlags}) // each time with a flag more
		} else if l.left.Load() { // rule: TestPeerLeft, internal/host TestServerLeaves
			l.eventLocked(core.ConnEvent{Kind: core.EventPeerDead})
		}
	}
}

// AssociationEnded implements [Conn].
func (l *life) AssociationEnded() {
	l.event(core.ConnEvent{Kind: l.Association().Cause()})
	l.Wake() // the peer may have died after it published its last bytes and its close, and before it rang
}

// LinkLost implements [Conn].
func (l *life) LinkLost() { l.event(core.ConnEvent{Kind: core.EventLinkLost}) }

// awaited reports whether the connection only waits for flags of the peer. l.mu is held.
func (l *life) awaited() bool {
	switch l.state.State() {
	case core.StatePeerCloseWait1, core.StatePeerCloseWait2, core.StatePeerFinCloseWait, core.StatePeerAbortWait:
		return true
	}
	return false
}

// Wake runs when the peer has rung, or something else may have arrived. It does not block.
func (l *life) Wake() {
	if l.ready.Load() && l.data.Wake() {
		go l.event(core.ConnEvent{Kind: core.EventPeerFlags})
	}
}

// PeerLeft runs when the peer has no part in the connection any more, as a server that could not do
// its part after our Confirm: it resets the TCP connection, and has no other way to say so. A side
// that has closed then waits for flags which do not come. PeerLeft does not block.
func (l *life) PeerLeft() {
	l.left.Store(true)
	if l.ready.Load() {
		go l.event(core.ConnEvent{Kind: core.EventPeerFlags}) // if there are any, they count
	}
}

// ElementLost runs when the peer has given our element of its RMB to another connection.
func (l *life) ElementLost() {
	l.lost.Store(true)
	if l.ready.Load() {
		l.event(core.ConnEvent{Kind: core.EventElementLost})
	}
}

// carryOut does one thing that core decided. TestOutputs checks that there is a case for each. l.mu is held.
func (l *life) carryOut(out core.ConnOutput) {
	switch out := out.(type) {
	case core.SendFlags:
		if !l.sends {
			return
		}
		l.traceFlags(out.Flags) // before: after the last ones the peer may use its element for something else
		if out.Flags&(cdc.Closed|cdc.Abort) == 0 {
			l.data.SendFlags(out.Flags)
			return
		}
		l.data.SendLast(out.Flags)
		l.sends = false
		l.binding.Detach(true)
	case core.ReadEOF, core.WriteClosed:
		// The data path has seen the flags by itself; our flags came through it.
	case core.FailIO:
		if out.Kind == core.FailPeerEnded {
			l.data.End()
			return
		}
		l.data.Fail(failError(out.Kind))
	case core.ResetTCP:
		l.tcp.SetLinger(0)
		l.endTCP()
	case core.CloseTCP:
		l.endTCP()
	case core.SetTimer:
		wait := time.Until(out.At)
		if l.timer == nil {
			l.timer = time.AfterFunc(wait, func() { l.event(core.ConnEvent{Kind: core.EventTimer}) })
		} else {
			l.timer.Reset(wait)
		}
	case core.ClearTimer:
		if l.timer != nil {
			l.timer.Stop()
		}
	case core.ReleaseBuffers:
		if l.sends {
			l.sends = false
			l.data.Detach()
			l.binding.Detach(false)
		}
		if l.holds {
			l.holds = false
			l.data.Wake() // ends AwaitFlags
			l.binding.Release(out.Clean)
		}
	case core.ConnClosed:
		l.binding.Leave()
		l.env.Owner.Forget(l.conn)
	}
}

// endTCP closes the TCP socket. l.mu is held.
func (l *life) endTCP() {
	l.tcpEnded = true
	if l.watcher != nil {
		l.watcher.Forget(l.watchKey)
		l.watcher = nil
	}
	l.tcp.Close()
}

// onNotice is told by the data path of flags of the peer, and of a broken rule.
func (l *life) onNotice(_ cdc.ConnFlags, broken error) {
	if broken != nil {
		l.env.Logger.Warn("peer broke the protocol", "peer", l.RemoteAddr(), "err", broken)
		l.mu.Lock()
		l.broken = broken
		l.mu.Unlock()
		l.event(core.ConnEvent{Kind: core.EventProtocolViolation})
		return
	}
	l.event(core.ConnEvent{Kind: core.EventPeerFlags}) // samples the flags again
}
