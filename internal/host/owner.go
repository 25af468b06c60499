package host

import (
	"net/netip"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
)

// A connOwner is a host as its connections know it.
type connOwner Host

// Add implements [Owner].
func (o *connOwner) Add(c conn.Conn) error { return (*Host)(o).add(c) }

// Forget implements [Owner].
func (o *connOwner) Forget(c conn.Conn) { (*Host)(o).forget(c) }

// Closed implements [Owner].
func (o *connOwner) Closed(c conn.Conn) { (*Host)(o).unused(c) }

// FellBack implements [Owner].
func (o *connOwner) FellBack(r clc.Reason, client bool) { o.counters.FellBack(r, client) }

// Failed implements [Owner].
func (o *connOwner) Failed(reason string) { o.counters.ConnectionFailed(reason) }

// BeginTrace implements [Owner].
func (o *connOwner) BeginTrace() *conn.Record { return &o.trace.Begin().Record }

// EndTrace implements [Owner].
func (o *connOwner) EndTrace(message []byte) { o.trace.End(message) }

// A handshakeOwner is a host as its handshakes know it.
type handshakeOwner Host

// Message implements [handshake.Owner].
func (o *handshakeOwner) Message(b []byte, sent bool) { o.counters.CLC(b, sent) }

// Established implements [handshake.Owner].
func (o *handshakeOwner) Established(took time.Duration) { o.counters.HandshakeDone(took) }

// Failed implements [handshake.Owner].
func (o *handshakeOwner) Failed(reason string) { o.counters.HandshakeFailed(reason) }

// A groupOwner is a host as the link groups of a network know it.
type groupOwner Host

// GroupMade implements [smcr.Owner].
func (h *groupOwner) GroupMade(a transport.Association) { (*Host)(h).addEnd(a) }

// GroupEnded implements [smcr.Owner].
func (h *groupOwner) GroupEnded(a transport.Association, tell func(count int)) (lost func()) {
	conns := (*Host)(h).endGone(a, tell)
	return func() {
		for _, c := range conns {
			c.LinkLost()
		}
	}
}

// FailedOver implements [smcr.Owner].
func (h *groupOwner) FailedOver() { h.counters.FailedOver() }

// Ended implements [smcr.Owner].
func (h *groupOwner) Ended(what, reason string) { h.counters.Ended(what, reason) }

// TraceLLC implements [smcr.Owner].
func (h *groupOwner) TraceLLC(lg *core.LinkGroup, local, peer netip.Addr, message []byte, sent bool) {
	h.counters.LLC(message, sent)
	r := traceRecord{Record: conn.Record{Kind: control.TraceLLC, Group: uint32(lg.ID), Client: lg.Key.Role == core.RoleClient, Sent: sent}}
	r.Local, r.Peer = netip.AddrPortFrom(local, 0), netip.AddrPortFrom(peer, 0)
	h.trace.Add(&r, message)
}
