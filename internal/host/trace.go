package host

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/clc"
)

// The trace: what a host says and hears on the way to shared memory and back, for those who look
// at it from outside. Every host keeps the newest events; whoever follows it over the control socket
// gets them, and then what comes. Payload is never in it, and the data path knows nothing of it.

// Bounds of the trace of one host.
const (
	// traceHistory is how many events are kept while nobody listens: those of some twenty connections.
	traceHistory = 256
	// traceQueue is how many are kept as long as somebody does. Who falls further behind loses events.
	traceQueue = 4096
	// maxTraceListeners bounds those who listen at a time.
	maxTraceListeners = 8
	// maxTraceSample bounds the connections in one sample of cursors.
	maxTraceSample = 1024
	// maxTraceText bounds the text of an event, in bytes.
	maxTraceText = 1024
)

// A TraceKind says what a [TraceEvent] is about. A program may meet kinds that are newer than it.
type TraceKind string

// All kinds.
const (
	TraceRendezvous  TraceKind = "rendezvous"  // a message to or from another host about a connection to come
	TraceCLC         TraceKind = "clc"         // a CLC message
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
	Seq    uint64         `json:"seq,omitempty"` // from 1, in the order of events; 0: of a sample, or lost
	Time   time.Time      `json:"time"`
	Kind   TraceKind      `json:"event"`
	Conn   uint64         `json:"conn,omitempty"`   // number of the connection in its host, from 1; 0: of none
	Client bool           `json:"client,omitempty"` // the host is the client of the connection
	Sent   bool           `json:"sent,omitempty"`   // by the host; else it has received it, if it is a message
	Local  netip.AddrPort `json:"local,omitzero"`   // TCP addresses of the connection
	Peer   netip.AddrPort `json:"peer,omitzero"`
	Name   string         `json:"name,omitempty"`  // of a rendezvous message
	Text   string         `json:"text,omitempty"`  // in words, all that the other fields do not say
	Mode   string         `json:"mode,omitempty"`  // of the connection: "SMC-Dv2.1", "TCP"; empty until it is known
	Bytes  []byte         `json:"bytes,omitempty"` // the CLC message; the CDC header of the sender, 32 bytes
	Moved  uint64         `json:"moved,omitempty"` // of TraceCursors: bytes in this direction, from the start
	Window int            `json:"window,omitempty"`
	Count  uint64         `json:"count,omitempty"`
}

// A traceRecord is an event as it is kept. Words are made of it only when somebody reads it.
type traceRecord struct {
	at     time.Time
	kind   TraceKind
	conn   uint64
	client bool
	sent   bool
	local  netip.AddrPort
	peer   netip.AddrPort
	bytes  []byte // memory of the ring

	mode    Mode   // of the connection, if version is known or it is over
	version string // empty: not known, or none

	// By kind:
	message  rendezvous         // rendezvous
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

// A tracer keeps the events of one host. Its zero value is ready for use. mu is a leaf: nothing else is
// locked, and nobody is waited for, while it is held.
type tracer struct {
	mu        sync.Mutex
	ring      []traceRecord // nil until the first event
	next      uint64        // events so far; the newest is in ring[(next-1)%len]
	oldest    uint64        // number of the first that is kept, from 0
	listeners map[*traceListener]struct{}
}

// A traceListener reads the events of a tracer.
type traceListener struct {
	tracer *tracer
	next   uint64        // number of the next event, from 0
	more   chan struct{} // has a value if there may be more to read
}

var errTraceListeners = fmt.Errorf("%d programs follow this host already, which is the limit", maxTraceListeners)

// add keeps an event and, of message, a copy. The time is filled in. If no memory is to be taken for a longer
// message than ever before, it does not allocate.
func (t *tracer) add(r *traceRecord, message []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ring == nil {
		t.ring = make([]traceRecord, traceHistory)
	}
	r.at = time.Now() // here, so that time has the order of the events
	slot := &t.ring[t.next%uint64(len(t.ring))]
	room := slot.bytes[:0]
	*slot = *r
	slot.bytes = append(room, message[:min(len(message), clc.MaxLen)]...)
	t.next++
	t.oldest = max(t.oldest, t.next-min(t.next, uint64(len(t.ring))))
	for l := range t.listeners {
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
}

// resize keeps n events from now on. t.mu is held.
func (t *tracer) resize(n int) {
	if t.ring == nil && n == traceHistory {
		return
	}
	ring := make([]traceRecord, n)
	t.oldest = max(t.oldest, t.next-min(t.next, uint64(n)))
	for i := t.oldest; i < t.next; i++ {
		ring[i%uint64(n)] = t.ring[i%uint64(len(t.ring))]
	}
	t.ring = ring
}

// listen adds a listener, which begins with the newest history events. It fails if there are too many.
func (t *tracer) listen(history int) (*traceListener, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.listeners) >= maxTraceListeners {
		return nil, errTraceListeners
	}
	if len(t.listeners) == 0 {
		t.resize(traceQueue)
		t.listeners = make(map[*traceListener]struct{})
	}
	l := &traceListener{tracer: t, more: make(chan struct{}, 1)}
	// Not more than is kept when nobody listens: what somebody else's listening has left over is luck.
	kept := min(t.next-t.oldest, traceHistory)
	l.next = t.next - min(kept, uint64(max(history, 0)))
	t.listeners[l] = struct{}{}
	return l, nil
}

// leave ends listening.
func (l *traceListener) leave() {
	t := l.tracer
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.listeners, l)
	if len(t.listeners) == 0 {
		t.resize(traceHistory)
	}
}

// pending returns how many events there are to read.
func (l *traceListener) pending() int {
	l.tracer.mu.Lock()
	defer l.tracer.mu.Unlock()
	return int(l.tracer.next - max(l.next, l.tracer.oldest))
}

// read appends to list the events that are next, at most n, with memory of their own. lost is how many
// before them are no longer there.
func (l *traceListener) read(list []TraceEvent, n int) (_ []TraceEvent, lost uint64) {
	t := l.tracer
	t.mu.Lock()
	var records []traceRecord
	if l.next < t.oldest {
		lost, l.next = t.oldest-l.next, t.oldest
	}
	first := l.next
	for ; l.next < t.next && len(records) < n; l.next++ {
		r := t.ring[l.next%uint64(len(t.ring))]
		r.bytes = append([]byte(nil), r.bytes...)
		records = append(records, r)
	}
	t.mu.Unlock()
	for i := range records {
		e := records[i].event()
		e.Seq = first + uint64(i) + 1
		list = append(list, e)
	}
	return list, lost
}

// event puts a record into words.
func (r *traceRecord) event() TraceEvent {
	e := TraceEvent{
		Time: r.at.Round(0), Kind: r.kind, Conn: r.conn, Client: r.client, Sent: r.sent,
		Local: r.local, Peer: r.peer, Bytes: r.bytes, Text: r.text,
	}
	switch {
	case r.version != "":
		e.Mode = modeVersion(r.mode, r.version)
	case r.kind == TraceFallback || r.kind == TraceClosed:
		e.Mode = r.mode.String()
	}
	switch r.kind {
	case TraceRendezvous:
		e.Name, e.Text = r.message.words(r.pid)
	case TraceEstablished:
		e.Text = fmt.Sprintf("eid=%s buffers=%d,%d", r.agreed.EID, r.buffers[0], r.buffers[1])
		if r.agreed.PeerPID != 0 {
			e.Text += fmt.Sprintf(" peer-pid=%d", r.agreed.PeerPID)
		}
	case TraceFallback:
		e.Text = fmt.Sprintf("%v: %s", r.reason, r.reason.Sentence)
		if r.byPeer {
			e.Text += ", says the peer"
		}
	case TraceState:
		e.Text = fmt.Sprintf("%v > %v on %v", r.from, r.to, r.cause)
		if r.abortive {
			e.Text += ", abortive"
		}
		if r.fail != core.FailNone {
			e.Text += ": " + r.fail.String()
		}
	case TraceClosed:
		e.Text = fmt.Sprintf("%v in=%d out=%d after %v", r.mode, r.in, r.out, r.age.Round(time.Microsecond))
	case TracePeerGone:
		e.Text = fmt.Sprintf("process %d, %d connections", r.pid, r.count)
	case TraceCLC, TraceCDC, TraceFailed, TraceCursors, TraceOmitted, TraceLost:
	}
	e.Text = e.Text[:min(len(e.Text), maxTraceText)]
	return e
}

// modeVersion is a mode with its version, as package dissect writes it.
func modeVersion(m Mode, version string) string { return m.String() + "v" + version }

// words returns the name of a message and what it says.
func (m *rendezvous) words(pid int) (name, text string) {
	text = fmt.Sprintf("attempt=%d peer-pid=%d", m.id, pid)
	switch m.kind {
	case rvExpect:
		return "Expect", text + fmt.Sprintf(" socket=%#x", m.socket)
	case rvAccepted:
		return "Accepted", text
	case rvRefused:
		return "Refused", text + " " + clc.Lookup(clc.Diagnosis(m.reason), clc.OSUnspecified).String()
	case rvCancel:
		return "Cancel", text
	}
	return fmt.Sprintf("type %d", m.kind), text
}
