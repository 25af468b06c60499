package conn

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/clc"
)

// A Record is an event of a connection as a host's trace keeps it. It is a [control.TraceRecord].
// There are a dozen for each connection, so large or rare values share their place.
type Record struct {
	Kind   control.TraceKind
	Client bool
	Sent   bool
	Mode   Mode   // of the connection, if Agreed is not nil or it is over
	Group  uint32 // LLC: the link group
	Conn   uint64
	Local  netip.AddrPort
	Peer   netip.AddrPort
	Agreed *Agreed // never changed; nil: nothing, or not yet

	// By kind.
	ByPeer   bool               // fallback
	Abortive bool               // state
	From, To core.ConnState     // state
	Fail     core.FailKind      // state
	Cause    core.ConnEventKind // state
	// established: our buffer, the peer's; closed: bytes in, out; more of a host's own kinds
	Numbers [2]uint64
	Age     time.Duration // closed
	Reason  *clc.Reason   // fallback
	Text    string        // failed
}

// Event implements [control.TraceRecord].
func (r Record) Event() control.TraceEvent {
	e := control.TraceEvent{
		Kind: r.Kind, Conn: r.Conn, Group: r.Group, Client: r.Client, Sent: r.Sent,
		Local: r.Local, Peer: r.Peer, Text: r.Text,
	}
	switch {
	case r.Mode == ModeUnix:
		e.Mode = r.Mode.String()
	case r.Agreed != nil:
		e.Mode = ModeVersion(r.Mode, r.Agreed.Version)
	case r.Kind == control.TraceFallback || r.Kind == control.TraceClosed:
		e.Mode = r.Mode.String()
	}
	switch r.Kind {
	case control.TraceEstablished:
		if e.Text = "a pair of Unix sockets"; r.Mode != ModeUnix {
			e.Text = fmt.Sprintf("eid=%s buffers=%d,%d", r.Agreed.EID, r.Numbers[0], r.Numbers[1])
		}
		if r.Agreed.PeerPID != 0 {
			e.Text += fmt.Sprintf(" peer-pid=%d", r.Agreed.PeerPID)
		}
	case control.TraceFallback:
		e.Text = fmt.Sprintf("%v: %s", *r.Reason, r.Reason.Sentence)
		if r.ByPeer {
			e.Text += ", says the peer"
		}
	case control.TraceState:
		e.Text = fmt.Sprintf("%v > %v on %v", r.From, r.To, r.Cause)
		if r.Abortive {
			e.Text += ", abortive"
		}
		if r.Fail != core.FailNone {
			e.Text += ": " + r.Fail.String()
		}
	case control.TraceClosed:
		e.Text = fmt.Sprintf("%v in=%d out=%d after %v", r.Mode, r.Numbers[0], r.Numbers[1],
			r.Age.Round(time.Microsecond))
	case control.TraceCLC, control.TraceLLC, control.TraceCDC, control.TraceFailed, control.TraceCursors, control.TraceOmitted, control.TraceLost,
		control.TraceRendezvous, control.TracePeerGone:
	}
	return e
}

// ModeVersion is a mode with its version, as package dissect writes it.
func ModeVersion(m Mode, version string) string { return m.String() + "v" + version }
