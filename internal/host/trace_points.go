package host

import (
	"cmp"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// What the parts of a host say to its tracer.

// trace traces an event of the connection.
func (c *Conn) trace(r *traceRecord, message []byte) {
	r.conn, r.client, r.mode, r.agreed = c.id, c.client, c.mode, c.agreed
	r.local, r.peer = c.local, c.remote
	c.host.trace.Add(r, message)
}

// traceCLC traces a CLC message, or what came in place of one.
func (c *Conn) traceCLC(b []byte, sent bool) {
	c.host.counters.messages.countCLC(b, sent)
	c.trace(&traceRecord{kind: control.TraceCLC, sent: sent}, b)
}

// traceEstablished traces that the connection uses shared memory.
func (c *Conn) traceEstablished() {
	local, remote := c.Buffers()
	c.trace(&traceRecord{kind: control.TraceEstablished, numbers: [2]uint64{uint64(local), uint64(remote)}}, nil)
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

// traceUrgent traces the header with which urgent data was sent, or learned of, unless there is an error.
func (c *Conn) traceUrgent(sent bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil || !c.holds:
	case !sent:
		c.traceHeader(c.data.PeerHeader(), false)
	case c.sends:
		c.traceHeader(c.data.OwnHeader(), true)
	}
}

// traceHeader traces the CDC header of one side, as its fabric carries it.
func (c *Conn) traceHeader(h cdc.Header, sent bool) {
	var b [cdc.MessageLen]byte // the longer one
	c.trace(&traceRecord{kind: control.TraceCDC, sent: sent}, c.binding.AppendHeader(b[:0], h, sent))
}

// tracedReason is a reason of its own: a record of it must not hold on to the connection.
func tracedReason(r clc.Reason) *clc.Reason { return &r }

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
	c.trace(&traceRecord{kind: control.TraceClosed, numbers: [2]uint64{in, out}, age: time.Since(c.since)}, nil)
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
		Time: time.Now().Round(0), Kind: control.TraceCursors, Conn: c.id, Client: c.client, Mode: modeVersion(c.mode, c.Agreed().Version),
		Local: c.local, Peer: c.remote,
	}
	e.Sent, e.Bytes, e.Moved = true, c.binding.AppendHeader(nil, out, true), written
	e.Window = window(in.Consumer, out.Producer, remote)
	list = append(list, e)
	e.Sent, e.Bytes, e.Moved = false, c.binding.AppendHeader(nil, in, false), read+uint64(unread)
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
