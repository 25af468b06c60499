package host

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/cdc"
)

// What the parts of a host say to its tracer.

// trace traces an event of the connection.
func (c *Conn) trace(r *traceRecord, message []byte) {
	r.conn, r.client, r.mode, r.version = c.id, c.client, c.mode, c.agreed.Version
	r.local, r.peer = addrPort(c.tcp.LocalAddr()), addrPort(c.tcp.RemoteAddr())
	c.host.trace.Add(r, message)
}

// traceCLC traces a CLC message, or what came in place of one.
func (c *Conn) traceCLC(b []byte, sent bool) {
	c.host.counters.messages.countCLC(b, sent)
	c.trace(&traceRecord{kind: control.TraceCLC, sent: sent}, b)
}

// traceLLC traces an LLC message, or what came in place of one. It belongs to a link, and to no connection.
func (g *smcrGroup) traceLLC(b []byte, sent bool) {
	g.host.counters.messages.countLLC(b, sent)
	r := traceRecord{kind: control.TraceLLC, group: uint32(g.lg.ID), client: g.lg.Key.Role == core.RoleClient, sent: sent}
	r.local = netip.AddrPortFrom(g.rnic.dev.Addr(), 0)
	r.peer = netip.AddrPortFrom(g.peer, 0)
	g.host.trace.Add(&r, b)
}

// traceEstablished traces that the connection uses shared memory.
func (c *Conn) traceEstablished() {
	r := traceRecord{kind: control.TraceEstablished, agreed: c.agreed}
	r.buffers[0], r.buffers[1] = c.Buffers()
	c.trace(&r, nil)
}

// traceEvent traces what an event has changed: flags of the peer, and the state. c.mu is held.
func (c *Conn) traceEvent(ev *core.ConnEvent, before core.ConnState, flags cdc.ConnFlags) {
	if c.life.PeerFlags() != flags && c.holds {
		c.traceHeader(c.data.PeerHeader(), false)
	}
	if to := c.life.State(); to != before {
		c.trace(&traceRecord{kind: control.TraceState, from: before, to: to, fail: c.life.Failure(), cause: ev.Kind, abortive: ev.Abortive}, nil)
	}
}

// traceFlags traces flags that are about to be sent. c.mu is held, and the way to the peer is open.
func (c *Conn) traceFlags(flags cdc.ConnFlags) {
	h := c.data.OwnHeader()
	h.ConnFlags |= flags
	c.traceHeader(h, true)
}

// traceHeader traces the CDC header of one side.
func (c *Conn) traceHeader(h cdc.Header, sent bool) {
	var b [cdc.HeaderLen]byte
	c.trace(&traceRecord{kind: control.TraceCDC, sent: sent}, h.Append(b[:0]))
}

// traceFailed traces the end of a connection that did not come about.
func (c *Conn) traceFailed(err error) {
	text := "no reason"
	if err != nil {
		text = err.Error()
	}
	c.trace(&traceRecord{kind: control.TraceFailed, text: text}, nil)
}

// traceClosed traces the end of a connection.
func (c *Conn) traceClosed(in, out uint64) {
	c.trace(&traceRecord{kind: control.TraceClosed, in: in, out: out, age: time.Since(c.since)}, nil)
}

// sampleCursors appends both directions of every SMC connection to list, and returns how many connections
// there are more than [maxTraceSample].
func (h *Host) sampleCursors(list []control.TraceEvent) (_ []control.TraceEvent, omitted int) {
	h.mu.Lock()
	conns := make([]*Conn, 0, min(len(h.conns), maxTraceSample))
	for c := range h.conns {
		switch {
		case c.data == nil:
		case len(conns) == maxTraceSample:
			omitted++
		default:
			conns = append(conns, c)
		}
	}
	h.mu.Unlock()
	slices.SortFunc(conns, func(a, b *Conn) int { return cmp.Compare(a.id, b.id) })
	for _, c := range conns {
		list = c.sampleCursors(list)
	}
	return list, omitted
}

// sampleCursors appends both directions of a connection, unless its buffers are gone.
func (c *Conn) sampleCursors(list []control.TraceEvent) []control.TraceEvent {
	c.mu.Lock() // keeps the buffers where they are
	if !c.holds || !c.sends {
		c.mu.Unlock()
		return list
	}
	in, out := c.data.PeerHeader(), c.data.OwnHeader()
	read, written := c.data.Totals()
	unread, _ := c.data.Queues()
	c.mu.Unlock()
	local, remote := c.data.Buffers()
	e := control.TraceEvent{
		Time: time.Now().Round(0), Kind: control.TraceCursors, Conn: c.id, Client: c.client, Mode: modeVersion(c.mode, c.agreed.Version),
		Local: addrPort(c.tcp.LocalAddr()), Peer: addrPort(c.tcp.RemoteAddr()),
	}
	e.Sent, e.Bytes, e.Moved = true, out.Append(nil), written
	e.Window = window(in.Consumer, out.Producer, remote)
	list = append(list, e)
	e.Sent, e.Bytes, e.Moved = false, in.Append(nil), read+uint64(unread)
	e.Window = window(out.Consumer, in.Producer, local)
	return append(list, e)
}

// window returns how many bytes more may be written, -1 if the cursors make no sense.
func window(consumer, producer cdc.Cursor, capacity int) int {
	if consumer.Count >= uint32(capacity) || producer.Count >= uint32(capacity) {
		return -1
	}
	used := cdc.Diff(consumer, producer, uint32(capacity))
	return capacity - int(min(used, uint32(capacity)))
}
