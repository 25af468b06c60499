package smcr

import (
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
)

// This file has links over which nothing arrives any more, and nobody is told.

// checkStalls ends links on which packets vanish, while there are others. A queue pair alone waits for four seconds, since a peer that is stopped for
// a while looks the same. But such a peer is silent on all links: where it answers on another one the path has failed.
func (g *group) checkStalls() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone || g.over || g.upLinks.Load() < 2 {
		return // linkUp begins again
	}
	g.looks++
	var stalled []*groupLink
	for _, l := range g.links {
		if l.up && l.look(g.looks) {
			stalled = append(stalled, l)
		}
	}
	if len(stalled) == 0 {
		g.stallTimer.Reset(stallCheck)
		return
	}
	g.stallTimer.Reset(stallWatch)
	for _, l := range stalled {
		alive := slices.ContainsFunc(g.links, func(x *groupLink) bool { return x.up && x.seen.heard > l.seen.since })
		switch {
		case !alive: // is the peer there?
			g.doLocked(func(now time.Time, out []core.Output) []core.Output {
				g.hear(now) // rule: TestStallHears
				for _, x := range g.links {
					if x.up && x.seen.stalls == 0 {
						out = g.ctl.Suspect(now, x.num, out)
					}
				}
				return out
			})
			return
		case l.seen.stalls >= maxStalls:
			l.net.Fail(errStalled) // rule: internal/host TestSMCRFailover
		}
	}
}

// look compares what has come with what had when it was called last, and reports whether an acknowledgement is overdue and nothing
// has come since. looks counts the calls. g.mu is held.
func (l *groupLink) look(looks uint64) bool {
	st, seen := l.net.QPStats(), &l.seen
	switch {
	case st.RcvdPackets != seen.received:
		seen.heard, seen.stalls = looks, 0
	case st.Timeouts != seen.timeouts:
		if seen.stalls++; seen.stalls == 1 {
			seen.since = looks
		}
	}
	seen.received, seen.timeouts = st.RcvdPackets, st.Timeouts
	return seen.stalls > 0
}
