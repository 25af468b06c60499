package link

// The end of a link in order, in the simulation: side 0 has connections leave the link, and tells the other one when they have, or have had their time. That one does the
// same, answers and closes its end; and then side 0 does.

// A simEndOfLink is how far that is, for each side.
type simEndOfLink struct {
	leaving [2]bool // connections are to leave it
	left    [2]bool // they have
	down    [2]bool // none may use it
	shut    [2]bool // the end is closed
	spared  bool    // it stays for good, as all others were lost
}

// endAnother goes on with a link that is about to end, or begins with the given one.
func (w *world) endAnother(l *simLink) {
	for _, x := range w.links {
		if x.end.leaving[0] && !x.closed {
			l = x
		}
	}
	w.endInOrder(l)
}

// endInOrder takes the next step, and reports whether there was one.
func (w *world) endInOrder(l *simLink) bool {
	e := &l.end
	over := func(side int) bool { return e.left[side] || !w.quiet && w.rng.IntN(20) == 0 }
	switch {
	case !e.shut[0] && l.ends[0].Err() != nil, !e.shut[1] && l.ends[1].Err() != nil:
		return false // it is lost
	case e.spared:
		return false
	case !e.leaving[0]:
		if !l.up[0] || !l.up[1] || w.alive() < 2 || w.ended {
			return false
		}
		w.leave(0, l)
	case !e.down[0]:
		if to := w.good(0); to == l || to != nil && to.end.leaving[0] {
			w.say("0: %d stays", l.name)
			*e = simEndOfLink{spared: true}
			return true
		}
		if !over(0) {
			return false
		}
		w.takeDown(0, l)
	case !e.leaving[1]:
		w.leave(1, l)
	case !e.down[1]:
		if !over(1) {
			return false
		}
		w.takeDown(1, l)
		w.say("1: %d is closed in order", l.name)
		e.shut[1] = true
		l.ends[1].Close()
	case !e.shut[0]:
		w.say("0: %d is closed in order", l.name)
		w.total["left"]++
		e.shut[0], l.closed = true, true
		l.ends[0].Close()
	default:
		return false
	}
	return true
}

// leave has connections of a side leave a link.
func (w *world) leave(side int, l *simLink) {
	w.say("%d: %d is about to end", side, l.name)
	l.end.leaving[side] = true
	for _, sc := range w.conns {
		if to := w.good(side); sc.ends[side].carrier.Link() == l.ends[side] && to != nil && to != l {
			w.move(side, sc, to)
		}
	}
	l.ends[side].Leave()
}

// takeDown takes a link out of use.
func (w *world) takeDown(side int, l *simLink) {
	w.say("%d: %d is down in order", side, l.name)
	l.end.down[side] = true
	for _, sc := range w.conns {
		if sc.ends[side].carrier.Link() == l.ends[side] {
			w.moveAway(side, sc)
		}
	}
}

// haveLeft takes the news that connections have left a link.
func (w *world) haveLeft(side int, end *Link) {
	for _, l := range w.links {
		if l.ends[side] != end {
			continue
		}
		if l.end.spared {
			return
		}
		w.say("%d: connections have left %d", side, l.name)
		if !l.end.leaving[side] || l.end.left[side] {
			w.failf("link %d was left twice, or unasked", l.name)
		}
		l.end.left[side] = true
	}
	for _, sc := range w.conns {
		c := sc.ends[side].carrier
		c.mu.Lock()
		on := c.ring != nil && c.link == end && c.move == nil && end.Err() == nil
		c.mu.Unlock()
		if to := w.good(side); on && to != nil && to.ends[side] != end {
			w.failf("connection %d has not left the link", sc.ends[side].name)
		}
	}
}

// checkLeft looks for links that nobody was seen to leave.
func (w *world) checkLeft() {
	if w.ended { // bytes on their way to an end that is gone stay there
		return
	}
	for _, l := range w.links {
		if l.end.leaving[0] && !l.closed && l.ends[0].Err() == nil && l.ends[1].Err() == nil {
			w.failf("link %d does not end: %+v", l.name, l.end)
		}
	}
}
