package host

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/wire/cdc"
)

// event reports something to the connection's life and carries out what follows.
func (c *Conn) event(ev core.ConnEvent) {
	c.mu.Lock()
	c.eventLocked(ev)
	c.mu.Unlock()
}

func (c *Conn) eventLocked(ev core.ConnEvent) {
	// The flags are sampled after the event was learned of, as core asks. They are in our
	// own buffer, so they can be read until it is released. But the connection is established
	// first: one that the peer has aborted already still has an application, and its buffers
	// are not to be released before that has closed it. What comes before that is looked for
	// afterwards.
	if ev.Kind != core.EventEstablished && c.life.State() == core.StateInit { // rule: TestEventBeforeEstablished
		return
	}
	if c.holds && ev.Kind != core.EventEstablished {
		ev.Peer = c.data.PeerFlags()
		ev.ReadAll = c.data.PeerReadAll()
		ev.Unsent = c.data.Unsent() // rule: TestServerClosedInWrite
	}
	before, flags := c.life.State(), c.life.PeerFlags()
	c.outputs = c.life.Handle(time.Now(), ev, c.outputs[:0])
	c.traceEvent(&ev, before, flags)
	if why := c.life.Failure(); why != core.FailNone && !c.counted {
		c.counted = true
		c.host.counters.ended(endOfConnection, connEndReason(why, ev.Kind, c.broken)) // rule: TestSMCRDataLies
	}
	for _, out := range c.outputs {
		c.carryOut(out)
	}
	if c.tcpEnded && c.holds && c.awaited() {
		// TCP will not tell any more when the peer has answered.
		if flags := c.data.AwaitFlags(); flags&^c.life.PeerFlags()&(cdc.DoneWriting|cdc.Closed|cdc.Abort) != 0 {
			c.eventLocked(core.ConnEvent{Kind: core.EventPeerFlags}) // each time with a flag more
		} else if c.left.Load() { // rule: TestServerLeaves
			c.eventLocked(core.ConnEvent{Kind: core.EventPeerDead})
		}
	}
}

// awaited reports whether the connection only waits for flags of the peer. c.mu is held.
func (c *Conn) awaited() bool {
	switch c.life.State() {
	case core.StatePeerCloseWait1, core.StatePeerCloseWait2, core.StatePeerFinCloseWait, core.StatePeerAbortWait:
		return true
	}
	return false
}

// wake runs when the peer has rung, or something else may have arrived. It does not block.
func (c *Conn) wake() {
	if c.ready.Load() && c.data.Wake() {
		go c.event(core.ConnEvent{Kind: core.EventPeerFlags})
	}
}

// peerLeft runs when the peer has no part in the connection any more, as a server that could not do its part after our
// Confirm: it resets the TCP connection, and has no other way to say so. Who has closed that waits for flags which do not
// come. It does not block.
func (c *Conn) peerLeft() {
	c.left.Store(true)
	if c.ready.Load() {
		go c.event(core.ConnEvent{Kind: core.EventPeerFlags}) // if there are any, they count
	}
}

// elementLost runs when the peer has given our element of its RMB to another connection.
func (c *Conn) elementLost() {
	c.lost.Store(true)
	if c.ready.Load() {
		c.event(core.ConnEvent{Kind: core.EventElementLost})
	}
}

// carryOut does one thing that core decided. c.mu is held.
func (c *Conn) carryOut(out core.Output) {
	switch out := out.(type) {
	case core.SendFlags:
		if !c.sends {
			return
		}
		c.traceFlags(out.Flags) // before: after the last ones the peer may use its element for something else
		if out.Flags&(cdc.Closed|cdc.Abort) == 0 {
			c.data.SendFlags(out.Flags)
			return
		}
		c.data.SendLast(out.Flags)
		c.sends = false
		c.binding.Detach(true)
	case core.ReadEOF, core.WriteClosed:
		// The data path has seen the flags by itself; those of ours came through it.
	case core.FailIO:
		if out.Kind == core.FailPeerEnded {
			c.data.End()
			return
		}
		c.data.Fail(failError(out.Kind))
	case core.ResetTCP:
		c.tcp.SetLinger(0)
		c.endTCP()
	case core.CloseTCP:
		c.endTCP()
	case core.SetTimer:
		wait := time.Until(out.At)
		if c.timer == nil {
			c.timer = time.AfterFunc(wait, func() { c.event(core.ConnEvent{Kind: core.EventTimer}) })
		} else {
			c.timer.Reset(wait)
		}
	case core.ClearTimer:
		if c.timer != nil {
			c.timer.Stop()
		}
	case core.ReleaseBuffers:
		if c.sends {
			c.sends = false
			c.data.Detach()
			c.binding.Detach(false)
		}
		if c.holds {
			c.holds = false
			c.data.Wake() // ends AwaitFlags
			c.binding.Release(out.Clean)
		}
	case core.ConnClosed:
		c.host.forget(c)
	default:
		panic("host: impossible output")
	}
}

// endTCP closes the TCP socket. c.mu is held.
func (c *Conn) endTCP() {
	c.tcpEnded = true
	if c.watcher != nil {
		c.watcher.Forget(c.watchKey)
		c.watcher = nil
	}
	c.tcp.Close()
}

// onNotice is told by the data path of flags of the peer, and of a broken rule.
func (c *Conn) onNotice(_ cdc.ConnFlags, broken error) {
	if broken != nil {
		c.host.cfg.Logger.Warn("peer broke the protocol", "peer", c.RemoteAddr(), "err", broken)
		c.mu.Lock()
		c.broken = broken
		c.mu.Unlock()
		c.event(core.ConnEvent{Kind: core.EventProtocolViolation})
		return
	}
	c.event(core.ConnEvent{Kind: core.EventPeerFlags}) // samples the flags again
}

// StartWatch implements [tcpwatch.Starter]: w reports what happens on the TCP socket of c.
func (c *Conn) StartWatch(w *tcpwatch.Watcher) {
	if err := c.watch(w); err != nil {
		c.host.cfg.Logger.Warn("the TCP connection is not watched", "peer", c.RemoteAddr(), "err", err)
	}
}

func (c *Conn) watch(w *tcpwatch.Watcher) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tcpEnded {
		return nil // the peer has died already
	}
	key, err := w.Watch(c.tcp, c.onTCP)
	if err == nil {
		c.watcher, c.watchKey = w, key
	}
	return err
}

// peerFinished reports whether the peer has said that nothing more will come. c.mu is held.
func (c *Conn) peerFinished() bool {
	return c.holds && c.data.PeerFlags()&(cdc.Closed|cdc.Abort) != 0
}

// doubt has the peer asked whether it is there, unless its flags come soon: TCP's FIN overtakes them. What was on its way
// counts for a sign of life, and so the peer is asked again, in longer and longer intervals, but not for ever: one that keeps
// its half of the connection may have ended that of TCP in good order, as Linux net/smc does. c.mu is held.
func (c *Conn) doubt(after time.Duration) {
	if after > suspectUntil {
		c.awaitWord()
		return
	}
	time.AfterFunc(after, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.holds || c.peerFinished() {
			return
		}
		c.binding.Suspect()
		c.doubt(2 * after)
	})
}

// awaitWord looks now and then for the last word of a peer that has ended TCP, and lives. Such a peer has said before that it writes no
// more, or has closed. Linux net/smc says so once: what was on its way over a link that failed is lost, no message makes it say that
// again, and both ends would wait for ever. So where a link has failed the connection is reset. c.mu is held.
func (c *Conn) awaitWord() {
	if !c.traits.Overtaken || c.awaitsWord {
		return
	}
	c.awaitsWord = true
	lost := false
	var look func()
	look = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case !c.holds || c.tcpEnded || c.data.PeerFlags()&(cdc.DoneWriting|cdc.Closed|cdc.Abort) != 0:
			return
		case lost:
			c.host.cfg.Logger.Warn("connection is reset", "peer", c.RemoteAddr(), "err", errWordLost)
			c.broken = errWordLost
			c.eventLocked(core.ConnEvent{Kind: core.EventTCPReset}) // rule: TestSMCRWordLost
			return
		}
		lost = c.binding.MayMiss() // rule: TestSMCRWordLost: c.binding.MayMiss() -> true
		time.AfterFunc(c.host.wordTime, look)
	}
	time.AfterFunc(c.host.wordTime, look)
}

var errWordLost = errors.New("the peer has ended TCP, and what it said before was lost with a link")

// onTCP runs when something happened on the TCP socket of an SMC connection.
func (c *Conn) onTCP(events uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tcpEnded {
		return
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP) != 0 && !c.peerFinished() {
		if events&unix.EPOLLERR != 0 {
			c.binding.Suspect() // before what releases it
		}
		c.doubt(suspectAfter)
	}
	switch {
	case events&unix.EPOLLERR != 0 && socketError(c.tcp) != nil: // rule: TestTCPReset
		c.reset()
	case events&unix.EPOLLIN != 0 && !c.peerFinished() && hasBytes(c.tcp):
		c.host.cfg.Logger.Warn("bytes on the idle TCP connection", "peer", c.RemoteAddr())
		c.broken = errTCPBytes
		c.eventLocked(core.ConnEvent{Kind: core.EventProtocolViolation})
	case events&(unix.EPOLLRDHUP|unix.EPOLLHUP) != 0:
		c.eventLocked(core.ConnEvent{Kind: core.EventTCPFin})
	}
}

// reset takes a reset of TCP. One may have overtaken what the peer wrote before, and its Abort, which
// have a moment to come. c.mu is held.
func (c *Conn) reset() {
	if c.traits.Overtaken && !c.peerFinished() && !c.tcpReset { // rule: TestSMCRResetOvertakes: c.traits.Overtaken -> false
		c.tcpReset = true
		time.AfterFunc(c.host.resetPatience, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !c.tcpEnded {
				c.eventLocked(core.ConnEvent{Kind: core.EventTCPReset})
			}
		})
		return
	}
	c.eventLocked(core.ConnEvent{Kind: core.EventTCPReset})
}

var errTCPBytes = errors.New("bytes on the idle TCP connection")
