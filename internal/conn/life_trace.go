package conn

import (
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/cdc"
)

// The methods here tell the tracer of the host the fate of a connection.

// traceEstablished traces that the connection uses shared memory.
func (l *life) traceEstablished() {
	local, remote := l.Buffers()
	l.Trace(Record{Kind: control.TraceEstablished, Numbers: [2]uint64{uint64(local), uint64(remote)}}, nil)
}

// traceEvent traces the changes that an event has made: flags of the peer, and the state. l.mu is
// held.
func (l *life) traceEvent(ev *core.ConnEvent, before core.ConnState, flags cdc.ConnFlags) {
	if l.state.PeerFlags() != flags && l.holds {
		l.traceHeader(l.data.PeerHeader(), false)
	}
	if to := l.state.State(); to != before {
		l.Trace(Record{Kind: control.TraceState, From: before, To: to, Fail: l.state.Failure(),
			Cause: ev.Kind, Abortive: ev.Abortive}, nil)
	}
}

// traceFlags traces flags that are about to be sent. l.mu is held, and the way to the peer is open.
func (l *life) traceFlags(flags cdc.ConnFlags) {
	h := l.data.OwnHeader()
	h.ConnFlags |= flags
	l.traceHeader(h, true)
}

// traceUrgent traces the header with which urgent data was sent, or learned of, unless there is an error.
func (l *life) traceUrgent(sent bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil || !l.holds:
	case !sent:
		l.traceHeader(l.data.PeerHeader(), false)
	case l.sends:
		l.traceHeader(l.data.OwnHeader(), true)
	}
}

// traceHeader traces the CDC header of one side, as its fabric carries it.
func (l *life) traceHeader(h cdc.Header, sent bool) {
	var b [cdc.MessageLen]byte // the longer one
	l.Trace(Record{Kind: control.TraceCDC, Sent: sent}, l.binding.AppendHeader(b[:0], h, sent))
}

// AppendCursors implements [Conn].
func (l *life) AppendCursors(list []control.TraceEvent) []control.TraceEvent {
	l.mu.Lock() // keeps the buffers where they are
	if !l.holds || !l.sends {
		l.mu.Unlock()
		return list
	}
	in, out := l.data.PeerHeader(), l.data.OwnHeader()
	read, written := l.data.Totals()
	unread, _ := l.data.Queues()
	l.mu.Unlock()
	local, remote := l.data.Buffers()
	e := control.TraceEvent{
		Time: time.Now().Round(0), Kind: control.TraceCursors, Conn: l.id, Client: l.client, Mode: ModeVersion(l.mode, l.Agreed().Version),
		Local: l.local, Peer: l.remote,
	}
	e.Sent, e.Bytes, e.Moved = true, l.binding.AppendHeader(nil, out, true), written
	e.Window = window(in.Consumer, out.Producer, remote)
	list = append(list, e)
	e.Sent, e.Bytes, e.Moved = false, l.binding.AppendHeader(nil, in, false), read+uint64(unread)
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
