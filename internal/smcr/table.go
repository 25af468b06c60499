package smcr

import (
	"context"
	"errors"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
)

// This file has how connections find their link group of SMC-R, and leave it.

// join finds or makes the link group of a connection. It may wait until ctx ends for the first
// contact of another connection, so that many to one peer make one group.
func (w *Path) join(ctx context.Context,
	q transport.Request) (lg *core.LinkGroup, firstContact bool, err error) {
	f := w.fabric
	var late <-chan time.Time
	waited := false
	network := f.rnics.PNETIDOf(w.local.Unmap())
	var vlan uint16
	if q.Choice.Version == clc.V1 {
		// Packets of version 2 are routed, so that the ends may well be in different ones. Linux
		// net/smc looks no further either.
		vlan = w.vlan // rule: internal/host TestSMCRVLAN: w.vlan -> 0*w.vlan
	}
	for {
		id := f.cfg.NewID()
		f.mu.Lock()
		j := f.groups.JoinLinks(core.JoinRequest{
			Role: q.Role, Choice: q.Choice, ID: id, MaxConns: f.cfg.MaxConns, Waited: waited, PNETID: network, VLAN: vlan,
		})
		if j.Wait && f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		ended := f.runningLocked(j.Ended...)
		f.mu.Unlock()
		for _, g := range ended {
			g.end.finish(llcflow.EndIdle)
		}
		switch {
		case j.Wait:
		case j.Group == nil:
			return nil, false, &transport.DeclinedError{Why: j.Why}
		case j.FirstContact && q.Optional && f.filtered.is(w.remote, time.Now()):
			f.leave(j.Group)
			return nil, false, &transport.DeclinedError{Why: clc.DiagFiltered}
		default:
			return j.Group, j.FirstContact, nil
		}
		if late == nil {
			t := time.NewTimer(core.FirstContactWait)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-changed:
		case <-late:
			waited = true
		case <-ctx.Done():
			return nil, false, &transport.DeclinedError{Why: clc.DiagBusy}
		}
	}
}

// leave takes a connection out of its link group.
func (f *Fabric) leave(lg *core.LinkGroup) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups.Leave(time.Now(), lg)
	f.changedLocked() // a first contact may have come to nothing, or there is room
	f.armLocked()
}

// runningLocked returns the link groups at work behind some of the table. f.mu is held.
func (f *Fabric) runningLocked(list ...*core.LinkGroup) (running []*group) {
	for _, lg := range list {
		if g := f.running[lg]; g != nil {
			running = append(running, g)
		}
	}
	return running
}

// group returns the one that a connection has joined.
func (f *Fabric) group(lg *core.LinkGroup) (*group, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g := f.running[lg]; g != nil {
		return g, nil
	}
	return nil, errNoGroup
}

// drop takes a group out of the tables: no connection joins it any more.
func (f *Fabric) drop(g *group) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups.Drop(g.lg)
	delete(f.running, g.lg)
	f.changedLocked()
}

// changedLocked wakes the goroutines that wait for a first contact to be over. f.mu is held.
func (f *Fabric) changedLocked() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// confirm takes the result of a first contact, which describes the peer.
func (f *Fabric) confirm(g *group, r core.Result) {
	var links []core.GroupLink
	if _, err := f.group(g.lg); err == nil {
		links = g.usable()
	}
	f.mu.Lock()
	// with groups that may be of an instance of the peer that is no more
	suspects := f.runningLocked(f.groups.Confirm(g.lg, r)...)
	if links != nil {
		f.groups.SetLinks(g.lg, links)
		f.changedLocked()
	}
	f.mu.Unlock()
	for _, g := range suspects {
		g.peer.suspect()
	}
}

// doubt takes that a client does not have a group that was named to it. The peer on its links may
// be another one, so it is asked whether it is there.
func (f *Fabric) doubt(lg *core.LinkGroup) {
	f.mu.Lock()
	f.groups.Doubt(lg)
	suspects := f.runningLocked(lg)
	f.mu.Unlock()
	for _, g := range suspects {
		g.peer.suspect()
	}
}

// armLocked makes sure that idle link groups are ended in time: a peer is told, and holds memory
// for us. f.mu is held.
func (f *Fabric) armLocked() {
	at := f.groups.Deadline()
	switch {
	case at.IsZero() || f.closed:
	case f.timer == nil:
		f.timer = time.AfterFunc(time.Until(at), func() { f.sweep(time.Now()) })
	default:
		f.timer.Reset(time.Until(at))
	}
}

// sweep ends the link groups that have been idle for too long.
func (f *Fabric) sweep(now time.Time) {
	f.mu.Lock()
	ended := f.runningLocked(f.groups.Advance(now)...)
	f.armLocked()
	f.mu.Unlock()
	for _, g := range ended {
		g.end.finish(llcflow.EndIdle)
	}
}

// shed ends the link group that has been idle for longest, whose RMBs are kept for connections to
// come, since there is no memory for one that is here. It waits until that is given back, but not
// for a peer that does not answer. It reports false if there is none.
func (f *Fabric) shed(ctx context.Context) bool {
	f.mu.Lock()
	var idle []*group
	lg := f.groups.EvictIdle()
	if lg != nil {
		idle = f.runningLocked(lg)
	}
	f.mu.Unlock()
	for _, g := range idle {
		g.end.finish(llcflow.EndIdle)
		late := time.NewTimer(shedTime)
		select {
		case <-g.loop.stopped:
		case <-late.C:
		case <-ctx.Done():
		}
		late.Stop()
	}
	return lg != nil && ctx.Err() == nil
}

var errNoGroup = errors.New("the link group has just ended")
