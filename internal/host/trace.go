package host

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/wire/clc"
)

// What a host says and hears on the way to shared memory and back, for those who look at it from outside. A
// [control.Trace] keeps the newest events; whoever follows it over the control socket gets them, and
// then what comes. Payload is never in it, and the data path knows nothing of it.

// A traceRecord is an event as it is kept. It is a [control.TraceRecord].
type traceRecord struct {
	kind   control.TraceKind
	conn   uint64
	group  uint32 // LLC, established: the link group
	client bool
	sent   bool
	local  netip.AddrPort
	peer   netip.AddrPort

	mode    Mode   // of the connection, if version is known or it is over
	version string // empty: not known, or none

	// By kind:
	message  rendezvous.Message // rendezvous
	pid      int                // of the peer: rendezvous, peer gone
	agreed   Agreed             // established
	buffers  [2]int             // established: ours, the peer's
	reason   clc.Reason         // fallback
	byPeer   bool               // fallback
	from, to core.ConnState     // state
	fail     core.FailKind      // state
	cause    core.ConnEventKind // state
	abortive bool               // state
	in, out  uint64             // closed: bytes
	age      time.Duration      // closed
	count    int                // peer gone: connections
	text     string             // failed
}

// Event implements [control.TraceRecord].
func (r traceRecord) Event() control.TraceEvent {
	e := control.TraceEvent{
		Kind: r.kind, Conn: r.conn, Group: r.group, Client: r.client, Sent: r.sent,
		Local: r.local, Peer: r.peer, Text: r.text,
	}
	switch {
	case r.version != "":
		e.Mode = modeVersion(r.mode, r.version)
	case r.kind == control.TraceFallback || r.kind == control.TraceClosed:
		e.Mode = r.mode.String()
	}
	switch r.kind {
	case control.TraceRendezvous:
		e.Name, e.Text = words(&r.message, r.pid)
	case control.TraceEstablished:
		e.Text = fmt.Sprintf("eid=%s buffers=%d,%d", r.agreed.EID, r.buffers[0], r.buffers[1])
		if r.agreed.PeerPID != 0 {
			e.Text += fmt.Sprintf(" peer-pid=%d", r.agreed.PeerPID)
		}
	case control.TraceFallback:
		e.Text = fmt.Sprintf("%v: %s", r.reason, r.reason.Sentence)
		if r.byPeer {
			e.Text += ", says the peer"
		}
	case control.TraceState:
		e.Text = fmt.Sprintf("%v > %v on %v", r.from, r.to, r.cause)
		if r.abortive {
			e.Text += ", abortive"
		}
		if r.fail != core.FailNone {
			e.Text += ": " + r.fail.String()
		}
	case control.TraceClosed:
		e.Text = fmt.Sprintf("%v in=%d out=%d after %v", r.mode, r.in, r.out, r.age.Round(time.Microsecond))
	case control.TracePeerGone:
		e.Text = fmt.Sprintf("process %d, %d connections", r.pid, r.count)
	case control.TraceCLC, control.TraceLLC, control.TraceCDC, control.TraceFailed, control.TraceCursors, control.TraceOmitted, control.TraceLost:
	}
	return e
}

// modeVersion is a mode with its version, as package dissect writes it.
func modeVersion(m Mode, version string) string { return m.String() + "v" + version }

// words returns the name of a message and what it says.
func words(m *rendezvous.Message, pid int) (name, text string) {
	text = fmt.Sprintf("attempt=%d peer-pid=%d", m.ID, pid)
	switch m.Kind {
	case rendezvous.Expect:
		return "Expect", text + fmt.Sprintf(" socket=%#x", m.Socket)
	case rendezvous.Accepted:
		return "Accepted", text
	case rendezvous.Refused:
		return "Refused", text + " " + clc.Lookup(clc.Diagnosis(m.Reason), clc.OSUnspecified).String()
	case rendezvous.Cancel:
		return "Cancel", text
	}
	return fmt.Sprintf("type %d", m.Kind), text
}
