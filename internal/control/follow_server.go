package control

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// A traceRequest has the options of a client that asks for the trace.
type traceRequest struct {
	History   int   `json:"history,omitempty"`
	CursorsMS int64 `json:"cursors_ms,omitempty"` // 0: none
}

// A traceResponse is the first line of a trace.
type traceResponse struct {
	History int `json:"history"`
}

// A traceLine is one of the others.
type traceLine struct {
	Event *TraceEvent `json:"event,omitempty"`
	End   bool        `json:"end,omitempty"`
}

// listenTrace checks the request and adds a listener.
func listenTrace(trace Tracer, request traceRequest) (TraceListener, error) {
	ms := request.CursorsMS
	if ms != 0 && (ms < minTraceCursors.Milliseconds() || ms > maxTraceCursors.Milliseconds()) {
		return nil, fmt.Errorf("cursors every %d ms: want %v to %v, or 0 for none", ms, minTraceCursors,
			maxTraceCursors)
	}
	return trace.Listen(request.History)
}

// A traceWriter writes lines to a client of the trace.
type traceWriter struct {
	server *Server
	conn   *net.UnixConn
	b      bytes.Buffer
	list   []TraceEvent // memory of batch
	err    error        // the first
}

// follow writes the trace to c until its end closes, stops reading or says anything, or the host is closed.
func (s *Server) follow(c *net.UnixConn, r *bufio.Reader, l TraceListener, request traceRequest) {
	defer l.Leave()
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
	w.line(responseLine{Version: Version, Trace: &traceResponse{History: l.Pending()}})
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
		case <-l.More():
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

// batch writes the next events and the lines in the buffer, and returns how many events there were.
func (w *traceWriter) batch(l TraceListener) int {
	list, lost := l.Read(w.list[:0], traceBatch)
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

// rest writes the events that are left when the host is closed.
func (w *traceWriter) rest(l TraceListener) {
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
	list, omitted := w.server.host.SampleCursors(nil)
	for i := range list {
		w.line(traceLine{Event: &list[i]})
	}
	if omitted > 0 {
		w.line(traceLine{Event: &TraceEvent{Time: time.Now().Round(0), Kind: TraceOmitted, Count: uint64(omitted)}})
	}
}

// line adds a line to the buffer.
func (w *traceWriter) line(v any) {
	if w.err == nil {
		w.err = json.NewEncoder(&w.b).Encode(v)
	}
}

// flush writes the buffer.
func (w *traceWriter) flush() {
	if w.err == nil && w.b.Len() > 0 {
		w.server.setWriteDeadline(w.conn)
		_, w.err = w.conn.Write(w.b.Bytes())
		w.b.Reset()
	}
}

// setFollows marks a client that Close is to give some time; it reports false when Close came first.
func (s *Server) setFollows(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[c] = true
	}
	return !s.closed
}

// setWriteDeadline sets the deadline for a write to one that follows. The deadline of Close is not
// moved.
func (s *Server) setWriteDeadline(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		c.SetWriteDeadline(time.Now().Add(traceStall))
	}
}
