package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/pnet"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// shakeNetworks does the handshake with a peer that expects CLC and shares no memory with us. The
// result may be of any mode that meets the requirement. After an error the TCP connection is
// closed.
func (h *Host) shakeNetworks(ctx context.Context, role core.Role, c *conn.Pending, buffer int,
	require conn.Requirement) (conn.Conn, error) {
	paths := make([]transport.Path, len(h.networks))
	for i, n := range h.networks {
		w := n.NewPath(role, addrOf(c.LocalAddr()), addrOf(c.RemoteAddr()))
		defer w.Close()
		switch {
		case role == core.RoleServer && h.rules.refusesServer(c.Local()): // rule: TestPolicySMCR
			w.Refuse(clc.DiagNotAllowed) // it has begun with CLC, which needs an answer
		case !require.Met(conn.ModeOf(w.Mode())):
			w.Refuse(clc.DiagPolicy) // it awaits our word, and would be reset if it got this mode
		}
		paths[i] = w
	}
	return h.shake.Run(ctx, handshake.Request{Role: role, Conn: c, Paths: paths, Buffer: buffer,
		Require: require})
}

// shakePeer is shakeNetworks with the host behind a peering.
func (h *Host) shakePeer(ctx context.Context, role core.Role, c *conn.Pending, peer *ism.Peer, buffer int,
	require conn.Requirement) (conn.Conn, error) {
	f, reason, err := h.open()
	if err != nil {
		c.TCP().Close()
		c.TraceFailed(err)
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("%v: %w", reason, err)}
	}
	return h.shake.Run(ctx, handshake.Request{
		Role: role, Conn: c, Paths: []transport.Path{f.device.NewPath(peer, h.seidOf(peer))}, Buffer: buffer, Require: require, Patience: h.localPatience,
	})
}

// seidOf returns the system EID for a handshake with a peer if the host knows none itself. The agent that has
// introduced the peer knows it.
func (h *Host) seidOf(peer *ism.Peer) (seid wire.EID) {
	if _, introduced := peer.Secret(); !introduced || h.cfg.NoSEID || !h.seid.IsZero() {
		return seid
	}
	if boot, ok := h.pairing.BootID(); ok {
		return pnet.SEID(pnet.BootID(boot))
	}
	return seid
}

// addrPort converts an address of package net; the result is unmapped, without zone.
func addrPort(a net.Addr) netip.AddrPort { return rendezvous.AddrPort(a) }

// addrOf returns the IP address of one end of a TCP connection, zero if that is closed.
func addrOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	return netip.Addr{}
}
