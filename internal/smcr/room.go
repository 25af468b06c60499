package smcr

import "sync/atomic"

// A groupRoom tells the table whether a link group has room for another connection: an RMB of ours
// and an element of the peer's. The peer's may be of other sizes than it wants, and then it
// declines.
//
// The group's mu guards refused. It is not held while the table is told, which takes the fabric's lock.
type groupRoom struct {
	group   *group
	full    atomic.Bool // no RMB for another connection, as the table has it
	refused bool        // the peer has declined while there was no room for new RMBs
}

// note looks how many RMBs there are, new ones or some that were used before, and tells the table.
func (r *groupRoom) note() {
	g := r.group
	g.mu.Lock()
	g.conns.forgetFreed()
	room := g.ctl.Room()
	r.refused = r.refused && !room
	full := !g.ctl.Spare(g.rmbs.kept > 0) || r.refused
	r.full.Store(full)
	g.mu.Unlock()
	if full && g.conns.freed.any() { // a caller after our look did not know that it matters
		g.loop.wake()
	}
	g.fabric.mu.Lock()
	g.fabric.groups.SetFull(g.lg, full)
	g.fabric.mu.Unlock()
}

// check is note if the group was full before: something was given back.
func (r *groupRoom) check() {
	if r.full.Load() {
		r.note()
	}
}

// checkLater has the group's goroutine call check. It takes no locks, and does not block.
func (r *groupRoom) checkLater() {
	if r.full.Load() {
		r.group.loop.wake()
	}
}

// declined takes that the peer has declined a connection in place of its Confirm.
func (r *groupRoom) declined() {
	g := r.group
	g.mu.Lock()
	known := g.ctl != nil
	r.refused = known && !g.ctl.Room()
	g.mu.Unlock()
	if known {
		r.note()
	}
}
