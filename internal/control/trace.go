package control

import (
	"fmt"
	"sync"
	"time"

	"github.com/gosmc/smc/wire/llc"
)

// A Tracer has the events of a host, for clients that follow it. A [Trace] is one.
type Tracer interface {
	// Listen adds a listener, which begins with the newest history events. It fails if there are too many.
	Listen(history int) (TraceListener, error)
}

// A TraceListener reads the events of a [Tracer]. One goroutine may use it.
type TraceListener interface {
	// Pending returns how many events there are to read.
	Pending() int

	// Read appends to list the events that are next, at most n, with memory of their own. lost is how many
	// before them are no longer there.
	Read(list []TraceEvent, n int) (_ []TraceEvent, lost uint64)

	// More returns a channel that has a value if there may be more to read.
	More() <-chan struct{}

	// Leave ends listening.
	Leave()
}

// A TraceRecord is an event as a host keeps it. Words are made of it only when somebody reads it.
type TraceRecord interface {
	// Event puts the record into words. Number, time and bytes are filled in, and the text is cut
	// to its maximum.
	Event() TraceEvent
}

// A Trace keeps the newest events of one host as records of type R. Its zero value is ready for use, by
// several goroutines. Its lock is a leaf: nothing else is locked, and nobody is waited for, while it is held.
type Trace[R TraceRecord] struct {
	mu        sync.Mutex
	ring      []traced[R] // nil until the first event
	next      uint64      // events so far; the newest is in ring[(next-1)%len]
	oldest    uint64      // number of the first that is kept, from 0
	listeners map[*traceListener[R]]struct{}
}

// traced is a record in its place.
type traced[R TraceRecord] struct {
	at     time.Time
	bytes  []byte // memory of the ring
	record R
}

// A traceListener reads the events of a Trace.
type traceListener[R TraceRecord] struct {
	trace *Trace[R]
	next  uint64 // number of the next event, from 0
	more  chan struct{}
}

var errTraceListeners = fmt.Errorf("%d programs follow this host already, which is the limit",
	maxTraceListeners)

// Add keeps an event and, of message, a copy of at most the length of the longest LLC message. It
// does not keep r, and fills in the time. If no memory is to be taken for a longer message than
// ever before, it does not allocate.
func (t *Trace[R]) Add(r *R, message []byte) {
	*t.Begin() = *r
	t.End(message)
}

// Begin is the first half of Add: it returns the place of the event, which is empty, for the caller
// to fill in. End follows at once, since other events wait for it. A record is large, and one that is
// handed on has a copy in the frame of each function on the way. For these the stack of a goroutine
// that serves a short connection would have to grow.
func (t *Trace[R]) Begin() *R {
	t.mu.Lock()
	if t.ring == nil {
		t.ring = make([]traced[R], traceHistory)
	}
	slot := &t.ring[t.next%uint64(len(t.ring))]
	slot.at = time.Now() // here, so that time has the order of the events
	slot.record = *new(R)
	return &slot.record
}

// End keeps the event that Begin has begun.
func (t *Trace[R]) End(message []byte) {
	defer t.mu.Unlock()
	slot := &t.ring[t.next%uint64(len(t.ring))]
	slot.bytes = append(slot.bytes[:0], message[:min(len(message), llc.MaxLen)]...)
	t.next++
	t.oldest = max(t.oldest, t.next-min(t.next, uint64(len(t.ring))))
	for l := range t.listeners {
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
}

// Listeners returns how many listen.
func (t *Trace[R]) Listeners() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.listeners)
}

// resize keeps n events from now on. t.mu is held.
func (t *Trace[R]) resize(n int) {
	if t.ring == nil && n == traceHistory {
		return
	}
	ring := make([]traced[R], n)
	t.oldest = max(t.oldest, t.next-min(t.next, uint64(n)))
	for i := t.oldest; i < t.next; i++ {
		ring[i%uint64(n)] = t.ring[i%uint64(len(t.ring))]
	}
	t.ring = ring
}

// Listen implements [Tracer].
func (t *Trace[R]) Listen(history int) (TraceListener, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.listeners) >= maxTraceListeners {
		return nil, errTraceListeners
	}
	if len(t.listeners) == 0 {
		t.resize(traceQueue)
		t.listeners = make(map[*traceListener[R]]struct{})
	}
	l := &traceListener[R]{trace: t, more: make(chan struct{}, 1)}
	// Not more than is kept when nobody listens: events that another listener has left over are
	// luck.
	kept := min(t.next-t.oldest, traceHistory)
	l.next = t.next - min(kept, uint64(max(history, 0)))
	t.listeners[l] = struct{}{}
	return l, nil
}

// Leave implements [TraceListener].
func (l *traceListener[R]) Leave() {
	t := l.trace
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.listeners, l)
	if len(t.listeners) == 0 {
		t.resize(traceHistory)
	}
}

// More implements [TraceListener].
func (l *traceListener[R]) More() <-chan struct{} { return l.more }

// Pending implements [TraceListener].
func (l *traceListener[R]) Pending() int {
	l.trace.mu.Lock()
	defer l.trace.mu.Unlock()
	return int(l.trace.next - max(l.next, l.trace.oldest))
}

// Read implements [TraceListener].
func (l *traceListener[R]) Read(list []TraceEvent, n int) (_ []TraceEvent, lost uint64) {
	t := l.trace
	t.mu.Lock()
	var records []traced[R]
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
		r := &records[i]
		e := r.record.Event()
		e.Seq, e.Time, e.Bytes = first+uint64(i)+1, r.at.Round(0), r.bytes
		e.Text = e.Text[:min(len(e.Text), maxTraceText)]
		list = append(list, e)
	}
	return list, lost
}
