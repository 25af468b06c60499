package smcr

import (
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/wire"
)

// A groupEnd is the end of a link group. It has three steps: its connections are told to end, llcflow
// has done with the peer, and the goroutine gives links and memory back. The group's mu guards
// over, gone, fate and inUse.
type groupEnd struct {
	group *group
	done  chan struct{} // closed when the connections of the group must end

	inUse bool               // the first contact was confirmed
	over  bool               // llcflow.GroupEnding has come
	gone  bool               // llcflow.GroupEnded has come: links and memory are given back
	fate  core.ConnEventKind // the event that connections are told; 0 before the group is over

	cut bool // it may have had connections when it ended in order

	linksLost func() // tells the connections that the group had when it ended; nil before; of the goroutine
}

// finish ends the group, in order if it can.
func (e *groupEnd) finish(why llcflow.EndKind) {
	g := e.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctl == nil || e.gone {
		return
	}
	g.doLocked(func(now time.Time, out []llcflow.Output) []llcflow.Output { return g.ctl.End(now, why, out) })
}

// confirmed says that the first contact is over, and connections have the group.
func (e *groupEnd) confirmed() {
	e.group.mu.Lock()
	e.inUse = true
	e.group.mu.Unlock()
}

// abandon ends a group whose first contact came to nothing.
func (e *groupEnd) abandon() {
	g := e.group
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case e.inUse || e.gone:
	case g.ctl != nil:
		g.doLocked(g.ctl.Drop)
	default: // it has no goroutine yet
		e.over, e.gone = true, true
		g.fabric.drop(g)
		close(e.done)
		g.loop.afterwards(func() { g.fabric.cfg.Owner.GroupEnded(g, func(int) {}) })
		go g.loop.run()
	}
}

// begin makes the connections of the group end. g.mu is held.
func (e *groupEnd) begin(out llcflow.GroupEnding) {
	g := e.group
	e.over = true
	g.fabric.cfg.Owner.Ended(endOfGroup, groupEndReason(out.Why)) // rule: internal/host TestSMCRCrossed
	e.fate = core.EventLinkLost
	if out.LinkAlive {
		e.fate = core.EventAbort
	}
	g.fabric.drop(g)
	g.rmbs.end()
	close(e.done)
	why := out.Why
	e.cut = out.LinkAlive && why.Kind != llcflow.EndIdle
	g.loop.afterwards(func() {
		e.linksLost = g.fabric.cfg.Owner.GroupEnded(g, func(count int) {
			g.fabric.cfg.Logger.Debug("link group ended", "peer", g.lg.Key.GID, "connections", count, "why",
				why.String())
		})
	})
}

// complete stops all that the group does by itself, and has the goroutine give links and memory
// back. g.mu is held.
func (e *groupEnd) complete() {
	g := e.group
	e.gone = true
	g.stalls.stop()
	g.peer.stop()
	g.opener.dropSpare()
	g.timer.stop()
	g.loop.wake()
}

// tearDown gives everything back but the RMBs that connections have, and tells the connections then.
func (e *groupEnd) tearDown() {
	g := e.group
	g.opener.opening.Wait()
	g.mu.Lock()
	links, devices := g.links.all, g.devices.take()
	g.mu.Unlock()
	for _, n := range devices {
		n.TellGroup(&g.devices, false)
	}
	patience := lastAckTime
	for _, l := range links {
		patience = max(patience, e.patience(l.peerQPN))
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	expired := false
	for _, l := range links {
		l.rnic.RemoveUser(l)
		if l.net.Err() == nil && !expired { // the peer waits for the acknowledgement of its DELETE LINK
			select {
			case <-late.C:
				expired = true
			case <-l.net.Failed():
			}
		}
	}
	g.net.Close()
	g.mu.Lock()
	g.opener.dropSpare()
	g.rmbs.freeUnused()
	g.mu.Unlock()
	for _, l := range links {
		l.rnic.Release()
	}
	for _, n := range devices {
		n.Release()
	}
	if e.linksLost != nil {
		e.linksLost() // rule: internal/host TestSMCRCloseInHandshake
		e.linksLost = nil
	}
}

// patience is how long the peer's queue pair may have something to say, once the group has ended.
func (e *groupEnd) patience(peer wire.QPN) time.Duration {
	if e.cut && peer != 0 && peer < softRoCEQPNs { // 0: a link that came to nothing
		return lastWordTime
	}
	return lastAckTime
}

// cause returns the event that connections are told.
func (e *groupEnd) cause() core.ConnEventKind {
	e.group.mu.Lock()
	defer e.group.mu.Unlock()
	return e.fate
}

// isOver reports whether the connections of the group must end.
func (e *groupEnd) isOver() bool {
	e.group.mu.Lock()
	defer e.group.mu.Unlock()
	return e.over
}
