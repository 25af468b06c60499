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
	client bool
	sent   bool
	mode   Mode   // of the connection, if agreed is not nil or it is over
	group  uint32 // LLC, established: the link group
	conn   uint64
	local  netip.AddrPort
	peer   netip.AddrPort
	agreed *Agreed // never changed; nil: nothing, or not yet

	// By kind. There are a dozen for each connection, so what is large or rare shares its place.
	message  rendezvous.Kind    // rendezvous
	byPeer   bool               // fallback
	abortive bool               // state
	from, to core.ConnState     // state
	fail     core.FailKind      // state
	cause    core.ConnEventKind // state
	refusal  clc.Diagnosis      // rendezvous: Refused
	pid      int                // of the peer: rendezvous, peer gone
	count    int                // peer gone: connections
	numbers  [2]uint64          // rendezvous: attempt, socket; established: our buffer, the peer's; closed: bytes in, out
	age      time.Duration      // closed
	reason   *clc.Reason        // fallback
	text     string             // failed
}

// Event implements [control.TraceRecord].
func (r traceRecord) Event() control.TraceEvent {
	e := control.TraceEvent{
		Kind: r.kind, Conn: r.conn, Group: r.group, Client: r.client, Sent: r.sent,
		Local: r.local, Peer: r.peer, Text: r.text,
	}
	switch {
	case r.mode == ModeUnix:
		e.Mode = r.mode.String()
	case r.agreed != nil:
		e.Mode = modeVersion(r.mode, r.agreed.Version)
	case r.kind == control.TraceFallback || r.kind == control.TraceClosed:
		e.Mode = r.mode.String()
	}
	switch r.kind {
	case control.TraceRendezvous:
		e.Name, e.Text = r.words()
	case control.TraceEstablished:
		if e.Text = "a pair of Unix sockets"; r.mode != ModeUnix {
			e.Text = fmt.Sprintf("eid=%s buffers=%d,%d", r.agreed.EID, r.numbers[0], r.numbers[1])
		}
		if r.agreed.PeerPID != 0 {
			e.Text += fmt.Sprintf(" peer-pid=%d", r.agreed.PeerPID)
		}
	case control.TraceFallback:
		e.Text = fmt.Sprintf("%v: %s", *r.reason, r.reason.Sentence)
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
		e.Text = fmt.Sprintf("%v in=%d out=%d after %v", r.mode, r.numbers[0], r.numbers[1], r.age.Round(time.Microsecond))
	case control.TracePeerGone:
		e.Text = fmt.Sprintf("process %d, %d connections", r.pid, r.count)
	case control.TraceCLC, control.TraceLLC, control.TraceCDC, control.TraceFailed, control.TraceCursors, control.TraceOmitted, control.TraceLost:
	}
	return e
}

// modeVersion is a mode with its version, as package dissect writes it.
func modeVersion(m Mode, version string) string { return m.String() + "v" + version }

// words returns the name of a message of the rendezvous and what it says.
func (r *traceRecord) words() (name, text string) {
	text = fmt.Sprintf("attempt=%d peer-pid=%d", r.numbers[0], r.pid)
	switch r.message {
	case rendezvous.Expect:
		return "Expect", text + fmt.Sprintf(" socket=%#x", r.numbers[1])
	case rendezvous.Accepted:
		return "Accepted", text
	case rendezvous.Refused:
		return "Refused", text + " " + clc.Lookup(r.refusal, clc.OSUnspecified).String()
	case rendezvous.Cancel:
		return "Cancel", text
	}
	return fmt.Sprintf("type %d", r.message), text
}
