package netcat

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/text"
)

// A ListenEvent is the line of listen -v --json before the first connection, by which a program
// learns the port.
type ListenEvent struct {
	Schema int       `json:"schema"`
	Event  string    `json:"event"` // "listening"
	Time   time.Time `json:"time"`
	Verb   string    `json:"verb"`
	Local  string    `json:"local"`
}

// A WarningEvent is the line of listen --json when something is not as it should be, such as a run
// directory that cannot be used.
type WarningEvent struct {
	Schema  int       `json:"schema"`
	Event   string    `json:"event"` // "warning"
	Time    time.Time `json:"time"`
	Verb    string    `json:"verb"`
	Warning string    `json:"warning"`
	Error   string    `json:"error"` // its cause
}

// A ClosedEvent is the line of connect and listen about a connection that has ended.
type ClosedEvent struct {
	Schema int       `json:"schema"`
	Event  string    `json:"event"` // "closed"
	Time   time.Time `json:"time"`
	Verb   string    `json:"verb"` // "connect" or "listen"
	Report
}

// A Reporter prints reports and events for people or for programs, one at a time. Its methods may be
// called by several goroutines. Fields do not change after the first call.
type Reporter struct {
	W       io.Writer // standard error of the verb
	Verb    string
	JSON    bool
	Verbose bool

	mu sync.Mutex
}

// Report prints a connection that has ended, if it is asked for.
func (p *Reporter) Report(r *Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.JSON:
		text.JSONLine(p.W, ClosedEvent{text.Schema, "closed", r.Start, p.Verb, *r})
	case p.Verbose:
		fmt.Fprintln(p.W, r.line())
	}
}

// line is the report for people.
func (r *Report) line() string {
	line := fmt.Sprintf("%s -> %s  %s", text.OrNA(r.Local), text.OrNA(r.Peer), r.Mode)
	if r.Version != "" {
		line += " " + r.Version
	}
	if r.EID != "" {
		line += "  EID " + text.Printable(r.EID)
	}
	if r.Reason != "" {
		line += "  because " + text.Printable(r.Reason) + r.ReasonCode.Suffix()
	}
	line += fmt.Sprintf("  in %s, out %s, %.3f s", text.Bytes(r.BytesIn), text.Bytes(r.BytesOut), r.Seconds)
	if r.Error != "" {
		line += "  " + text.Printable(r.Error)
	}
	return line
}

// Listening says where connections are accepted, if it is asked for.
func (p *Reporter) Listening(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.JSON && p.Verbose:
		text.JSONLine(p.W, ListenEvent{text.Schema, "listening", time.Now(), p.Verb, addr})
	case p.Verbose:
		fmt.Fprintf(p.W, "listening on %s\n", addr)
	}
}

// Warn prints why connections do not use SMC, and the like. It does so also without Verbose, since
// nothing else would.
func (p *Reporter) Warn(w Warning) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.JSON {
		text.JSONLine(p.W, WarningEvent{text.Schema, "warning", time.Now(), p.Verb, w.What, w.Why})
		return
	}
	fmt.Fprintf(p.W, "gosmc: %s; see 'gosmc info'\n", text.Printable(w.String()))
}
