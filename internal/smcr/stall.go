package smcr

import (
	"slices"
	"time"

	"github.com/gosmc/smc/internal/llcflow"
)

// A stallDetector ends links of a group on which packets vanish and nobody is told, while other
// links work. The group's mu guards it.
//
// A queue pair alone waits for four seconds, since a peer that is stopped for a while looks the
// same. But such a peer is silent on all links: if the peer answers on another link, the path of
// the silent one has failed.
type stallDetector struct {
	group *group
	timer *time.Timer // runs check while there are several links; nil before it was needed
	looks uint64      // counts the calls of check
}

// start begins to look at the links: another one is up. g.mu is held.
func (d *stallDetector) start() {
	if d.timer == nil {
		d.timer = time.AfterFunc(stallCheck, d.check)
	} else {
		d.timer.Reset(stallCheck)
	}
}

// stop ends the looks. The timer holds the group, and the memory of its links. g.mu is held.
func (d *stallDetector) stop() {
	if d.timer != nil {
		d.timer.Stop() // rule: TestEndedHoldsNothing
	}
}

// check looks at all links once.
func (d *stallDetector) check() {
	g := d.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.end.gone || g.end.over || g.links.upCount.Load() < 2 {
		return // start begins again
	}
	d.looks++
	var stalled []*groupLink
	for _, l := range g.links.all {
		if l.up && l.look(d.looks) {
			stalled = append(stalled, l)
		}
	}
	if len(stalled) == 0 {
		d.timer.Reset(stallCheck)
		return
	}
	d.timer.Reset(stallWatch)
	for _, l := range stalled {
		alive := slices.ContainsFunc(g.links.all,
			func(x *groupLink) bool { return x.up && x.seen.heard > l.seen.since })
		switch {
		case !alive:
			d.askPeer()
			return
		case l.seen.stalls >= maxStalls:
			l.net.Fail(errStalled) // rule: internal/host TestSMCRFailover
		}
	}
}

// askPeer has the peer asked whether it is there, on all links on which nothing is overdue. g.mu is held.
func (d *stallDetector) askPeer() {
	g := d.group
	g.doLocked(func(now time.Time, out []llcflow.Output) []llcflow.Output {
		g.links.hear(now) // rule: TestStallHears
		for _, x := range g.links.all {
			if x.up && x.seen.stalls == 0 {
				out = g.ctl.Suspect(now, x.num, out)
			}
		}
		return out
	})
}

// look compares the packets of a link with those at the last call, and reports whether an
// acknowledgement is overdue and nothing has come since. looks counts the calls. g.mu is held.
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
