package control

import (
	"net/netip"
	"time"
)

// A TraceKind is the subject of a [TraceEvent]. A program may meet kinds that are newer than it.
type TraceKind string

// All kinds.
const (
	TraceRendezvous  TraceKind = "rendezvous"  // a message to or from another host about a connection to come
	TraceCLC         TraceKind = "clc"         // a CLC message
	TraceLLC         TraceKind = "llc"         // an LLC message of SMC-R: of a link, and of no connection
	TraceCDC         TraceKind = "cdc"         // one side has set flags: done writing, closed, abort
	TraceEstablished TraceKind = "established" // the connection uses shared memory
	TraceFallback    TraceKind = "fallback"    // the connection is plain TCP
	TraceFailed      TraceKind = "failed"      // the connection did not come about
	TraceState       TraceKind = "state"       // the connection has another state
	TraceClosed      TraceKind = "closed"      // the connection is over
	TracePeerGone    TraceKind = "peer gone"   // the other process has died, or closed its host
	TraceCursors     TraceKind = "cursors"     // a sample of one direction of a connection
	TraceOmitted     TraceKind = "omitted"     // Count connections are not in a sample: there are too many
	TraceLost        TraceKind = "lost"        // Count events are not here: they were not read in time
)

// A TraceEvent is something that happened in a host.
type TraceEvent struct {
	Seq  uint64    `json:"seq,omitempty"` // from 1, in the order of events; 0: of a sample, or lost
	Time time.Time `json:"time"`
	Kind TraceKind `json:"event"`
	// number of the connection in its host, from 1; 0: of none
	Conn  uint64 `json:"conn,omitempty"`
	Group uint32 `json:"lg_id,omitempty"` // of TraceLLC: number of the link group in its host
	// the host is the client of the connection, or of the link group
	Client bool `json:"client,omitempty"`
	// by the host; else it has received it, if it is a message
	Sent bool `json:"sent,omitempty"`
	// TCP addresses of the connection; of TraceLLC the link's, without a port
	Local netip.AddrPort `json:"local,omitzero"`
	Peer  netip.AddrPort `json:"peer,omitzero"`
	Name  string         `json:"name,omitempty"` // of a rendezvous message
	Text  string         `json:"text,omitempty"` // in words, all that the other fields do not say
	// of the connection: "SMC-Dv2.1", "TCP"; empty until it is known
	Mode string `json:"mode,omitempty"`
	// the CLC or LLC message; of SMC-D the CDC header of the sender, 32 bytes, of SMC-R its CDC
	// message, 44 bytes
	Bytes  []byte `json:"bytes,omitempty"`
	Moved  uint64 `json:"moved,omitempty"` // of TraceCursors: bytes in this direction, from the start
	Window int    `json:"window,omitempty"`
	Count  uint64 `json:"count,omitempty"`
}
