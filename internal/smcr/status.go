package smcr

import (
	"cmp"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
)

// Status implements [transport.Fabric]: it appends the status of each link group.
func (f *Fabric) Status(list []control.StatusGroup) []control.StatusGroup {
	f.mu.Lock()
	all := f.groups.All()
	groups := make([]*group, len(all)) // nil for those that are not at work
	first := len(list)
	for i, lg := range all {
		s := transport.GroupStatus(lg)
		s.Peer, s.Type = cmp.Or(s.Peer, lg.Key.GID.String()), "NONE"
		list = append(list, s)
		groups[i] = f.running[lg]
	}
	f.mu.Unlock()
	for i, g := range groups { // without the lock: a group's lock comes before it
		if g != nil {
			g.status(&list[first+i])
		}
	}
	return list
}

// redundancyTypes are the words of smcr(8) for them.
var redundancyTypes = map[llcflow.Redundancy]string{
	llcflow.RedundancyNone: "NONE", llcflow.RedundancySingle: "SINGLE", llcflow.RedundancyAsymmetric: "ASYMMETRIC", llcflow.RedundancySymmetric: "SYMMETRIC",
}

// status adds the parts of a group: its links and its memory.
func (g *group) status(s *control.StatusGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var links []core.GroupLink
	if g.ctl != nil {
		links = g.ctl.Links()
		s.Type = redundancyTypes[g.ctl.Redundancy()]
	}
	for _, l := range g.links.all {
		s.Links = append(s.Links, l.status(links, s.Peer))
	}
	s.Failovers, s.Moved, s.Spread = g.links.failovers, g.links.moved, g.fabric.cfg.Spread
	g.rmbs.status(s)
}

// status describes a link. links are those that connections may use. g.mu is held.
func (l *groupLink) status(links []core.GroupLink, peer string) control.StatusLink {
	stats, queue := l.net.Stats(), l.net.QPStats()
	us := l.rnic.RNIC()
	x := control.StatusLink{
		State: "LINK_ACTIVATING", NetDev: l.rnic.Verbs().Interface(), Device: l.rnic.Addr().String(), Port: rnic.Port,
		LocalGID: us.GID.String(), LocalQPN: uint32(l.net.QPN()), PeerGID: peer,
		SentCDC: stats.SentCDC, RcvdCDC: stats.ReceivedCDC, SentLLC: stats.SentLLC, RcvdLLC: stats.ReceivedLLC, SentBytes: stats.SentBytes,
		SentPackets: queue.SentPackets, RcvdPackets: queue.RcvdPackets, Retransmitted: queue.Retransmitted, RoundTrip: queue.RoundTrip,
	}
	if l.peer.IsValid() {
		x.PeerGID = wire.GIDFromAddr(l.peer).String()
	}
	for _, first := range links {
		if l.up && (first.Num == l.num || l.num == 0) {
			x.State, x.Number, x.MTU = "LINK_ACTIVE", uint8(first.Num), min(first.Local.MTU,
				first.Peer.MTU).Bytes()
			if first.Leaving {
				x.State = "LINK_LEAVING" // rule: TestLeavingShown
			}
			x.PeerGID, x.PeerQPN = first.Peer.GID.String(), uint32(first.Peer.QPN)
			x.UID = uint32(l.group.lg.ID)<<8 | uint32(first.Num)
			x.Conns = l.group.conns.on(l)
			break
		}
	}
	if l.ended {
		x.State, x.Number = "LINK_LEAVING", uint8(l.num) // rule: TestLeavingShown
	}
	if err := l.net.Err(); err != nil {
		x.State, x.Why = "LINK_INACTIVE", err.Error()
	}
	return x
}

// status adds up the RMBs. The group's mu is held.
func (p *rmbPool) status(s *control.StatusGroup) {
	s.RMBs, s.RMBBytes = p.count, p.bytes
	for _, list := range p.free {
		s.IdleRMBs += len(list)
	}
	s.Quarantined = len(p.all) - s.IdleRMBs
}
