package host

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/wire/clc"
)

// The messages that a host sends and receives on the way to shared memory and back, for observers
// outside. A [control.Trace] keeps the newest events. A client that follows it over the control
// socket gets them, and then the new ones. Payload is never in it, and the data path knows nothing
// of it.

// A traceRecord is an event of a host or of a connection as it is kept. It is a [control.TraceRecord].
type traceRecord struct {
	conn.Record
	message rendezvous.Kind // rendezvous; Numbers has the attempt and the socket
	refusal clc.Diagnosis   // rendezvous: Refused
	pid     int             // of the peer: rendezvous, peer gone
	count   int             // peer gone: connections
}

// Event implements [control.TraceRecord].
func (r traceRecord) Event() control.TraceEvent {
	e := r.Record.Event()
	switch r.Kind {
	case control.TraceRendezvous:
		e.Name, e.Text = r.words()
	case control.TracePeerGone:
		e.Text = fmt.Sprintf("process %d, %d connections", r.pid, r.count)
	}
	return e
}

// words returns the name of a message of the rendezvous and its content.
func (r *traceRecord) words() (name, text string) {
	text = fmt.Sprintf("attempt=%d peer-pid=%d", r.Numbers[0], r.pid)
	switch r.message {
	case rendezvous.Expect:
		return "Expect", text + fmt.Sprintf(" socket=%#x", r.Numbers[1])
	case rendezvous.Accepted:
		return "Accepted", text
	case rendezvous.Refused:
		return "Refused", text + " " + clc.Lookup(r.refusal, clc.OSUnspecified).String()
	case rendezvous.Cancel:
		return "Cancel", text
	}
	return fmt.Sprintf("type %d", r.message), text
}

// sampleCursors appends both directions of every SMC connection to list, and returns how many connections
// there are more than [maxTraceSample].
func (h *Host) sampleCursors(list []control.TraceEvent) (_ []control.TraceEvent, omitted int) {
	conns := h.smcConns()
	slices.SortFunc(conns, func(a, b conn.Conn) int { return cmp.Compare(a.ID(), b.ID()) })
	if len(conns) > maxTraceSample {
		omitted = len(conns) - maxTraceSample
		conns = conns[:maxTraceSample]
	}
	for _, c := range conns {
		list = c.AppendCursors(list)
	}
	return list, omitted
}
