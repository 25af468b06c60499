package host

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has which devices the links of a group may be on, and that groups learn when those change.

// watchDevice keeps a device for as long as the group lasts, so that it is known when it can be used again.
func (g *smcrGroup) watchDevice(n *rnic) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone || slices.Contains(g.devices, n) {
		return
	}
	n.retain()
	n.watchBy(g, true)
	g.devices = append(g.devices, n)
}

// rnicsChanged tells core which devices there are. It does not block.
func (g *smcrGroup) rnicsChanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctl == nil || g.gone {
		return
	}
	g.afterwards(func() { g.setRNICs(g.host.rnics.alternatives(g.rnic, g.lg.Key.Version)) })
}

func (g *smcrGroup) setRNICs(list []core.RNIC) {
	g.do(func(now time.Time, out []core.Output) []core.Output {
		if g.ctl == nil || g.gone {
			return out
		}
		return g.ctl.SetRNICs(now, list, out)
	})
}

// alternatives returns the RNICs of ours that may be ends of the links of a group whose first one is on n: that one first, and other addresses of the same
// family; in version 1 of the same VLAN too. Which, the configuration says; else they are those of other interfaces on the same LAN,
// as an IP network or a PNETID shows that they have in common with the first one (RFC 7609 §2.2.1; Linux net/smc goes by PNETIDs alone).
func (r *rnics) alternatives(n *rnic, version clc.Version) (list []core.RNIC) {
	if !n.isDown() {
		list = append(list, *n.ends())
	}
	if r.host.cfg.SMCRLinks == 1 { // rule: TestAlternatives
		return list
	}
	first := n.dev.Addr()
	linkLocal := first.Is6() && first.IsLinkLocalUnicast() // version 1
	r.host.cfg.Namespace(func() {
		ifaces, err := net.Interfaces()
		if err != nil {
			return
		}
		for _, iface := range ifaces {
			if iface.Flags&net.FlagUp == 0 || iface.Flags&net.FlagRunning == 0 {
				continue
			}
			addrs, _ := iface.Addrs()
			for _, a := range addrs {
				p, err := netip.ParsePrefix(a.String())
				if err != nil {
					continue
				}
				p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits())
				addr := p.Addr()
				if addr.IsLinkLocalUnicast() || !r.mayUse(&iface, p, n) || len(list) >= llc.MaxGIDs {
					continue
				}
				if linkLocal { // the interface is on the LAN of the first one, as this address shows
					addr = linkLocalOf(&iface)
				}
				if !addr.IsValid() || addr == first || addr.Is4() != first.Is4() {
					continue
				}
				if version == clc.V1 && r.vlan(addr) != r.vlan(first) {
					continue
				}
				us := core.RNIC{GID: wire.GIDFromAddr(addr)}
				if len(iface.HardwareAddr) == len(us.MAC) {
					copy(us.MAC[:], iface.HardwareAddr)
				}
				if linkLocal && slices.Contains(list, us) {
					continue // by another of its addresses
				}
				list = append(list, us)
			}
		}
	})
	return list
}

// mayUse reports whether a group with its first link on n may have another one on an address p of an interface.
func (r *rnics) mayUse(iface *net.Interface, p netip.Prefix, n *rnic) bool {
	first := n.dev.Interface()
	switch {
	case len(r.allowed) > 0:
		return r.allows(p.Addr()) && r.connected(p.Addr(), n.dev.Addr())
	case iface.Name == first || iface.Flags&(net.FlagLoopback|net.FlagPointToPoint) != 0: // rule: TestAlternatives
		return false
	}
	if a, b := r.pnetID(first), r.pnetID(iface.Name); a != "" || b != "" {
		return a == b // rule: TestAlternatives: a == b -> true
	}
	return slices.Contains(n.nets, p.Masked()) // rule: TestAlternatives: slices.Contains(n.nets, p.Masked()) -> true
}

// othersChanged has groups look at which devices there are, soon: interfaces often change several at a time.
func (r *rnics) othersChanged() {
	if r.host.cfg.SMCRLinks == 1 {
		return
	}
	l := &r.look // rule: TestRNICCloseDuringChange: l := &r.look -> r.mu.Lock(); defer r.mu.Unlock(); l := &r.look
	l.Lock()
	defer l.Unlock()
	if l.closed || l.armed {
		return
	}
	l.armed = true
	if l.timer == nil {
		l.timer = time.AfterFunc(othersDelay, r.lookAtOthers)
	} else {
		l.timer.Reset(othersDelay)
	}
}

// lookAtOthers tells all groups which devices there are now. Those with the same first one may use the same.
func (r *rnics) lookAtOthers() {
	r.look.Lock()
	r.look.armed = false
	r.look.Unlock()
	r.mu.Lock()
	var groups []*smcrGroup
	if !r.closed {
		for _, n := range r.open {
			n.mu.Lock()
			for g := range n.groups {
				if g.rnic == n {
					groups = append(groups, g)
				}
			}
			n.mu.Unlock()
		}
	}
	r.mu.Unlock()
	type key struct {
		first   *rnic
		version clc.Version
	}
	known := make(map[key][]core.RNIC)
	for _, g := range groups {
		k := key{g.rnic, g.lg.Key.Version}
		list, ok := known[k]
		if !ok {
			list = r.alternatives(k.first, k.version)
			known[k] = list
		}
		g.setRNICs(list)
	}
}

// watchBy says whether a group is to be told when the device can or cannot be used.
func (n *rnic) watchBy(g *smcrGroup, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if on {
		n.groups[g] = true
	} else {
		delete(n.groups, g)
	}
}

// tellGroups has groups look at which devices there are.
func (n *rnic) tellGroups() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for g := range n.groups {
		go g.rnicsChanged() // whose lock comes first
	}
}

// eligible returns the RNICs that a client may tell its server of: "eligible means ... the client has an available IP route to the server" (SMCv2
// p.77 note 2; ours is that to the server's RNIC). The first one is that of the link.
func (r *rnics) eligible(list []core.RNIC, server wire.GID) []core.RNIC {
	none := make(map[wire.GID]bool)
	for _, route := range r.routesOf(list[1:], []wire.GID{server}) {
		none[route.Local] = route.None
	}
	return slices.DeleteFunc(list, func(n core.RNIC) bool { return none[n.GID] }) // rule: TestSMCRUnreachableGID: none[n.GID] -> false
}

// gidsOf returns the addresses of RNICs.
func gidsOf(list []core.RNIC) []wire.GID {
	gids := make([]wire.GID, len(list))
	for i, r := range list {
		gids[i] = r.GID
	}
	return gids
}
