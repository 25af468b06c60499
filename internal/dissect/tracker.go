package dissect

import (
	"net/netip"
	"time"

	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/roce"
)

// Options are the settings of a tracker. The zero value is useful.
type Options struct {
	// NoICRC leaves the ICRCs unchecked, as if the capture did not have the whole packets.
	NoICRC bool
}

// A Tracker turns packets into events. Make it with [New]; it is not safe for use by several
// goroutines. Packets come in the order of the capture; times may jump.
type Tracker struct {
	opts  Options
	count counters
	emit  func(*Event) // of the call that is going on

	now    time.Time // the latest time of a packet
	packet Packet    // the current one

	seen     sightings
	first    int // number of the packet of which the current one is another view, else 0
	conns    connTable
	links    linkTable
	buffered int        // bytes that streams of connections remember
	waits    list[Conn] // that await a message, in the order in which they become overdue
	lastID   struct{ conn, link, group int }

	// Memory to which events point, used again for each of them.
	event     Event
	problems  [maxProblems]Problem
	transport Transport
	rocePkt   roce.Packet
	cdcMsg    cdc.Message
	write     Write
	progress  Progress
	layers    layers
}

// New returns a tracker that has seen nothing.
func New(opts Options) *Tracker {
	t := &Tracker{opts: opts, now: time.Unix(0, 0)} // as early as a time of a capture can be
	t.count.init()
	t.conns.init()
	t.links.init()
	return t
}

// Packet takes the next packet and calls emit for everything that it completes, most often once or not
// at all. A packet that was captured at several places, see [frame.Packet.Point], counts once. Data
// is not kept. The event belongs to the tracker, see [Event]. emit must not call the tracker.
func (t *Tracker) Packet(p Packet, emit func(*Event)) {
	t.emit = emit
	t.count.Packets++
	t.count.Bytes += uint64(len(p.Data))
	if !p.Time.IsZero() {
		if t.count.First.IsZero() {
			t.count.First, t.count.Last = p.Time, p.Time
		}
		if p.Time.After(t.count.Last) {
			t.count.Last = p.Time
		}
	}
	if p.Time.IsZero() { // the file has none: the packet gets the time of the packet before
		p.Time = t.now
	}
	t.packet = p
	if p.Time.After(t.now) {
		t.now = p.Time
		t.expire()
	}
	l := &t.layers
	l.decode(&t.packet)
	t.first = 0
	if t.seen.needs(&t.packet) {
		if t.first = t.seen.also(&t.packet, l); t.first != 0 {
			t.count.AlsoSeen++
			t.emit = nil
			return
		}
	}
	switch l.outcome {
	case outcomeOther:
		if !p.Link.Known() {
			t.count.otherLink(t.packet.Link)
		}
	case outcomeTCP:
		t.count.TCPSegments++
		t.tcp(l)
	case outcomeUDP:
		t.udp(l)
	case outcomeFragmentIP:
		t.count.Fragments++
		t.fragment(l)
	case outcomeShort, outcomeBad:
		t.count.Undecodable++
		t.undecodable(l)
	}
	t.emit = nil
}

// FirstSeen returns the number of the packet of which the one that the tracker took last is another
// view, as one that both hosts have captured; 0 if it is no such view. Of a view there are no
// events.
func (t *Tracker) FirstSeen() int { return t.first }

// Close says that the input has ended: emit is called for every handshake and every request that is
// left without an answer, as a timeout where the capture has gone on for long enough. The tracker
// must not be used after that but for its Summary.
func (t *Tracker) Close(emit func(*Event)) {
	t.emit = emit
	t.packet.Data = nil
	t.closeConns()
	t.emit = nil
}

// begin prepares the event of the current packet.
func (t *Tracker) begin(f Family, name string, src, dst netip.AddrPort) *Event {
	e := &t.event
	*e = Event{Packet: t.packet, Family: f, Name: name, Src: src, Dst: dst, Problems: t.problems[:0]}
	return e
}

// problem adds a problem to an event that begin has prepared.
func (e *Event) problem(kind ProblemKind, text, rule string) {
	if len(e.Problems) < maxProblems {
		e.Problems = append(e.Problems, Problem{kind, text, rule})
	}
}

// send counts the event and hands it out.
func (t *Tracker) send(e *Event) {
	t.count.message(e.Family, e.Name)
	for i := range e.Problems {
		t.count.problems[e.Problems[i].Kind]++
	}
	t.emit(e)
}
