package smcr

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
)

// A Path reaches a peer on another machine by RDMA.
type Path struct {
	fabric *Fabric
	local  netip.Addr // our end of the TCP connection
	remote netip.Addr // the other one

	nets []netip.Prefix // of the TCP connection's interface, for version 1; nil if that is off
	vlan uint16         // of that interface, likewise; 0 if it is in none
	rnic *rnic.Device   // of ours; a server's is nil before it has the Proposal
	// the one of version 1: with a link-local address of the same interface, or rnic; nil if there
	// is none
	v1  *rnic.Device
	why clc.Diagnosis // there is none
	w   *tcpwatch.Watcher
}

// NewPath implements [transport.Network].
func (f *Fabric) NewPath(role core.Role, local, remote netip.Addr) transport.NetworkPath {
	w := &Path{fabric: f, local: local, remote: remote.Unmap()}
	var err error
	if w.w, err = f.watch.get(); err != nil {
		w.why = Reason(err)
		return w
	}
	if f.cfg.V1 {
		f.cfg.Namespace(func() { w.nets = rnic.NetworksOf(local.Unmap()) })
		w.vlan = f.rnics.VLAN(local)
	}
	if !f.cfg.HaveUEID && !f.cfg.V1 {
		w.why = clc.DiagNoUEID
	} else if role == core.RoleClient {
		w.open(netip.Addr{})
		w.openV1(netip.IPv6LinkLocalAllNodes())
	}
	return w
}

// open opens the device for a peer's RNIC, or finds out why there is none.
func (w *Path) open(remote netip.Addr) {
	addr, err := w.fabric.rnics.Choose(w.local, remote)
	if err == nil {
		w.rnic, err = w.fabric.rnics.Acquire(addr)
	}
	if err != nil {
		w.why = Reason(err)
	}
}

// openV1 opens the device for version 1 that reaches a peer's, of which the family of the address
// is all that matters. RNICs of version 1 are addressed by the GID at index 0 of their port, which
// is link-local, with soft-RoCE and with adapters alike (Linux net/smc takes the first one). So
// that is ours, too, where the interface has such an address; a peer with an IP address in its
// place gets one of the same family.
//
// The RNIC has to be in the network that the peers have in common, the one of the TCP connection
// (RFC 7609 p.31), and in its VLAN: RoCE "cannot traverse multiple VLANs" (RFC 7609 p.89).
func (w *Path) openV1(remote netip.Addr) {
	if w.rnic == nil || !w.fabric.cfg.V1 || w.v1 != nil {
		return
	}
	addr := w.rnic.Addr().WithZone("")
	inNetwork := slices.ContainsFunc(w.nets, func(p netip.Prefix) bool { return p.Contains(addr) }) // rule: TestV1Network: p.Contains(addr) -> true
	inVLAN := addr == w.local.Unmap() || w.fabric.rnics.VLAN(addr) == w.vlan                        // rule: TestVLANDevice: w.fabric.rnics.VLAN(addr) == w.vlan -> true
	if !inNetwork || !inVLAN {
		return
	}
	if remote.IsLinkLocalUnicast() || remote.IsLinkLocalMulticast() { // rule: internal/host TestSMCRv1LinkLocal
		if local := w.fabric.rnics.LinkLocal(w.rnic.Verbs().Interface()); local.IsValid() {
			var err error
			if w.v1, err = w.fabric.rnics.Acquire(local); err == nil {
				return
			}
			w.v1 = nil
		}
		if remote.IsLinkLocalUnicast() && addr.Is4() {
			return // packets between the two families there are none
		}
	} else if remote.Is4() != addr.Is4() {
		return
	}
	w.rnic.Retain()
	w.v1 = w.rnic
}

// device returns the one of a version.
func (w *Path) device(v clc.Version) *rnic.Device {
	if v == clc.V1 {
		return w.v1
	}
	return w.rnic
}

// Refuse implements [transport.NetworkPath].
func (w *Path) Refuse(why clc.Diagnosis) { w.why = why }

// Close implements [transport.NetworkPath]: it ends the use of the device by the handshake. Link
// groups have their own.
func (w *Path) Close() {
	for _, n := range [...]*rnic.Device{w.rnic, w.v1} {
		if n != nil {
			n.Release()
		}
	}
	w.rnic, w.v1 = nil, nil
}

// Mode implements [transport.Path].
func (w *Path) Mode() core.Mode { return core.SMCR }

// Watcher implements [transport.Path].
func (w *Path) Watcher() *tcpwatch.Watcher { return w.w }

// Offer implements [transport.Path].
func (w *Path) Offer(caps *core.Capabilities) {
	caps.PeerID = w.fabric.cfg.PeerID
	caps.Refuse = w.why
	caps.Networks = w.nets
	if w.rnic != nil {
		caps.RoCEv1, caps.RoCEv2 = w.ends()
	}
}

// ends is our device as each version knows it. Version 1 runs over RoCEv2 here.
func (w *Path) ends() (v1, v2 *core.RNIC) {
	if w.v1 != nil {
		v1 = w.v1.RNIC()
	}
	return v1, w.rnic.RNIC()
}

// Traits implements [transport.Path].
func (w *Path) Traits() transport.PathTraits {
	return transport.PathTraits{Stranger: true, Turns: true}
}

// Alive implements [transport.Path].
func (w *Path) Alive() bool { return true } // as far as anybody knows

// Examine implements [transport.Path]: it opens the device that reaches the client's.
func (w *Path) Examine(p *clc.Proposal, h *core.Handshake, admitted bool) {
	if w.why == clc.DiagNone && !admitted {
		w.why = clc.DiagBusy
	}
	if w.rnic == nil && w.why == clc.DiagNone {
		switch {
		case p.Ext != nil && p.V2.HasR():
			w.open(p.Ext.GID.Addr())
		case p.V1.HasR() && w.fabric.cfg.V1:
			w.open(p.GID.Addr())
		}
	}
	if w.rnic == nil {
		h.SetRNIC(nil, nil, w.why)
		return
	}
	if p.V1.HasR() {
		w.openV1(p.GID.Addr())
	}
	v1, v2 := w.ends()
	h.SetRNIC(v1, v2, clc.DiagNone)
}

// LinkMissing implements [transport.Path]. It takes no note of a link that failed at once: that was
// not for want of packets.
func (w *Path) LinkMissing(waited time.Duration) {
	if waited >= filteredAfter {
		w.fabric.filtered.note(w.remote, time.Now()) // rule: internal/host TestSMCRFiltered
	}
}

// Prepare implements [transport.Path].
func (w *Path) Prepare(ctx context.Context, q transport.Request) (transport.Binding, core.Resources, error) {
	if w.device(q.Choice.Version) == nil {
		return nil, core.Resources{}, rnic.ErrNone
	}
	for {
		c := &binding{fabric: w.fabric, remote: w.remote, lost: q.Lost}
		var err error
		if c.lg, c.first, err = w.join(ctx, q); err != nil {
			return nil, core.Resources{}, err
		}
		r, err := c.prepare(ctx, w, q)
		if err == nil {
			return c, r, nil
		}
		c.Detach(false)
		c.Release(false)
		c.Leave()
		// A server that finds the group dead, or the peer silent, makes another one. The server has
		// said which group its client joins.
		if q.Choice.R != nil || c.first || ctx.Err() != nil || c.group != nil && !c.group.end.isOver() &&
			!c.group.peer.late() {
			return nil, r, err
		}
	}
}
