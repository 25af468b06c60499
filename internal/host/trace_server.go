package host

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// The trace over the control socket. The request
//
//	-> {"version":1,"request":"trace","history":256,"cursors_ms":250}
//
// asks for the newest events, at most history of them, and for all that come; with cursors_ms also for the
// cursors of every SMC connection, so often. The answer is a line, and then a line for every event
// until one of both has enough. The client sends nothing more: a byte ends it as closing does.
//
//	<- {"version":1,"trace":{"history":12}}     so many of the events that follow are old
//	<- {"event":{...}}                          see [TraceEvent]
//	<- {"end":true}                             the host was closed
//
// A socket that ends without the last line belongs to a process that has died, or that was not read
// from for too long.

// Bounds of a trace. All are ours.
const (
	minTraceCursors = 10 * time.Millisecond
	maxTraceCursors = time.Hour
	// traceBatch is how many events are encoded before they are written.
	traceBatch = 64
	// traceStall is how long a listener may read nothing. A host does not wait for it: what it does not
	// read in time is lost to it.
	traceStall = time.Minute
	// traceFarewell bounds the wait for a listener to take the last events of a host that is closed.
	traceFarewell = 200 * time.Millisecond
)

// traceRequest is what a client that asks for the trace may say.
type traceRequest struct {
	History   int   `json:"history,omitempty"`
	CursorsMS int64 `json:"cursors_ms,omitempty"` // 0: none
}

// traceResponse is the first line of a trace.
type traceResponse struct {
	History int `json:"history"`
}

// traceLine is one of the others.
type traceLine struct {
	Event *TraceEvent `json:"event,omitempty"`
	End   bool        `json:"end,omitempty"`
}

// listenTrace checks the request and adds a listener.
func (s *controlServer) listenTrace(request traceRequest) (*traceListener, error) {
	ms := request.CursorsMS
	if ms != 0 && (ms < minTraceCursors.Milliseconds() || ms > maxTraceCursors.Milliseconds()) {
		return nil, fmt.Errorf("cursors every %d ms: want %v to %v, or 0 for none", ms, minTraceCursors, maxTraceCursors)
	}
	return s.host.trace.listen(request.History)
}

// A traceWriter writes lines to a client of the trace.
type traceWriter struct {
	server *controlServer
	conn   *net.UnixConn
	b      bytes.Buffer
	list   []TraceEvent // memory of batch
	err    error        // the first
}

// follow writes the trace to c until its end closes, stops reading or says anything, or the host is closed.
func (s *controlServer) follow(c *net.UnixConn, r *bufio.Reader, l *traceListener, request traceRequest) {
	defer l.leave()
	if !s.setFollows(c) {
		return
	}
	c.SetReadDeadline(time.Time{})
	gone := make(chan struct{})
	s.wg.Go(func() {
		r.ReadByte() // ends at the latest when c is closed
		close(gone)
	})
	w := traceWriter{server: s, conn: c}
	w.line(controlResponse{Version: ControlVersion, Trace: &traceResponse{History: l.pending()}})
	var sample <-chan time.Time
	if request.CursorsMS > 0 {
		ticker := time.NewTicker(time.Duration(request.CursorsMS) * time.Millisecond)
		defer ticker.Stop()
		sample = ticker.C
	}
	at := make(chan struct{})
	close(at)
	for {
		var again <-chan struct{} // there is more to write, but nobody else is to starve for it
		if w.batch(l) == traceBatch {
			again = at
		}
		if w.err != nil {
			return
		}
		select {
		case <-again:
		case <-l.more:
		case <-sample:
			w.sample()
		case <-gone:
			return
		case <-s.done:
			w.rest(l)
			return
		}
	}
}

// batch writes the next events and what the buffer has, and returns how many there were.
func (w *traceWriter) batch(l *traceListener) int {
	list, lost := l.read(w.list[:0], traceBatch)
	w.list = list
	if lost > 0 {
		w.line(traceLine{Event: &TraceEvent{Time: time.Now().Round(0), Kind: TraceLost, Count: lost}})
	}
	for i := range list {
		w.line(traceLine{Event: &list[i]})
	}
	w.flush()
	return len(list)
}

// rest writes what is left when the host is closed.
func (w *traceWriter) rest(l *traceListener) {
	for range traceQueue / traceBatch {
		if w.batch(l) < traceBatch || w.err != nil {
			break
		}
	}
	w.line(traceLine{End: true})
	w.flush()
}

// sample writes the cursors of all connections.
func (w *traceWriter) sample() {
	list, omitted := w.server.host.sample(nil)
	for i := range list {
		w.line(traceLine{Event: &list[i]})
	}
	if omitted > 0 {
		w.line(traceLine{Event: &TraceEvent{Time: time.Now().Round(0), Kind: TraceOmitted, Count: uint64(omitted)}})
	}
}

// line adds a line to what flush writes.
func (w *traceWriter) line(v any) {
	if w.err == nil {
		w.err = json.NewEncoder(&w.b).Encode(v)
	}
}

// flush writes what there is.
func (w *traceWriter) flush() {
	if w.err == nil && w.b.Len() > 0 {
		w.server.setWriteDeadline(w.conn)
		_, w.err = w.conn.Write(w.b.Bytes())
		w.b.Reset()
	}
}

// setFollows marks a client that Close is to give some time; it reports false when Close came first.
func (s *controlServer) setFollows(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[c] = true
	}
	return !s.closed
}

// setWriteDeadline sets the deadline for a write to one that follows. That of Close is not moved.
func (s *controlServer) setWriteDeadline(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		c.SetWriteDeadline(time.Now().Add(traceStall))
	}
}
