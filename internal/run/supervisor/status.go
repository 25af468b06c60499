package supervisor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// A record has the counts of a supervisor, and its trace. Programs connect to the supervisor of
// their server: it knows of both ends. Of connections that nobody has offered it knows the number.
type record struct {
	started time.Time
	trace   control.Trace[event]
	notes   notes
	tally   *tally // nil: nobody counts bytes

	mu      sync.Mutex
	moved   uint64
	tcp     map[clc.Diagnosis]uint64
	callers []int // programs that have offered connections, the newest last
	// refused has the offers of tcp to servers of ours that were refused at once: these connections
	// come without one. bare is how many have come from programs that have offered none.
	refused, bare uint64
}

// An event is one of the trace: an offer, and its outcome.
type event struct {
	kind          control.TraceKind
	name          string
	local, remote netip.AddrPort // the server's end, and the client's
	pid           int            // of the program that has asked; 0: not known
	reason        clc.Diagnosis  // of TCP
}

// Event implements [control.TraceRecord].
func (e event) Event() control.TraceEvent {
	t := control.TraceEvent{Kind: e.kind, Name: e.name, Local: e.local, Peer: e.remote}
	switch e.kind {
	case control.TraceFallback:
		if e.name == loopName {
			t.Mode, t.Text = "TCP", "though both programs were started by 'gosmc run'"
			break
		}
		r := clc.Lookup(e.reason, clc.OSUnspecified)
		t.Mode, t.Text = "TCP", fmt.Sprintf("%v: %s", r, r.Sentence)
	case control.TraceEstablished:
		t.Mode, t.Text = proto.ModeUnix, "a pair of Unix sockets"
	}
	if e.pid != 0 {
		t.Text = strings.TrimSpace(fmt.Sprintf("%s pid=%d", t.Text, e.pid))
	}
	return t
}

// offered notes an offer, and why it was refused unless the reason is none.
func (r *record) offered(m proto.Message, pid int, reason clc.Diagnosis) {
	r.trace.Add(&event{kind: control.TraceRendezvous, name: "Offer", local: m.Peer, remote: m.Local,
		pid: pid}, nil)
	r.mu.Lock()
	if pid > 0 && !slices.Contains(r.callers, pid) {
		r.callers = append(r.callers, pid)
		r.callers = r.callers[max(0, len(r.callers)-maxCallers):]
	}
	r.mu.Unlock()
	if reason != clc.DiagNone {
		r.stayed(m.Peer, m.Local, reason)
	}
}

// refusedHere counts an offer to a server of ours that was refused.
func (r *record) refusedHere() {
	r.mu.Lock()
	r.refused++
	r.mu.Unlock()
}

// bareClients returns how many connections have come from programs that have offered none, and that
// were not to: of all that were not offered, kept is how many their clients have left to TCP. The
// caller has the lock.
func (r *record) bareClients(unoffered map[uint16]uint64, kept uint64) uint64 {
	var n uint64
	for _, count := range unoffered {
		n += count
	}
	if others := kept + r.refused; n > others { // rule: TestBareClients: kept + r.refused -> uint64(0)
		r.bare = max(r.bare, n-others) // an offer is refused before its connection comes
	}
	return r.bare
}

// claimed notes that a connection was moved.
func (r *record) claimed(server, client netip.AddrPort, pid int) {
	r.mu.Lock()
	r.moved++
	r.mu.Unlock()
	r.trace.Add(&event{kind: control.TraceEstablished, local: server, remote: client, pid: pid}, nil)
}

// stayed notes that a connection is TCP, for the server at least.
func (r *record) stayed(server, client netip.AddrPort, reason clc.Diagnosis) {
	r.mu.Lock()
	if r.tcp == nil {
		r.tcp = make(map[clc.Diagnosis]uint64)
	}
	r.tcp[reason]++
	r.mu.Unlock()
	r.trace.Add(&event{kind: control.TraceFallback, local: server, remote: client, reason: reason}, nil)
}

// A view is a supervisor as its control socket shows it. It touches nothing that [supervisor.serve] does.
type view struct {
	*record
	socket string // its path
	config func() *control.StatusConfig
}

// Status implements [control.Host].
func (v view) Status() control.Status {
	st := control.Status{
		Started: v.started, Command: "gosmc run",
		Counters: control.StatusCounters{
			Connections: make(map[string]uint64), AsServer: make(map[string]uint64),
			Bytes: make(map[string]control.ByteCount),
		},
	}
	if v.config != nil {
		st.Config = v.config()
	}
	v.readNotes()
	if all, ends, counted := v.tally.read(); counted {
		st.Counters.Bytes[proto.ModeUnix], st.Tallies = all, ends
	}
	short := admission.KeptBy(v.socket)
	unoffered, _ := inspect.Bare(v.socket)
	v.mu.Lock()
	callers := slices.Clone(v.callers)
	st.Counters.Connections[proto.ModeUnix] = v.moved
	stayed := maps.Clone(v.tcp)
	if stayed == nil {
		stayed = make(map[clc.Diagnosis]uint64)
	}
	if short > 0 {
		stayed[clc.DiagShort] += short
	}
	if bare := v.bareClients(unoffered, short); bare > 0 {
		stayed[clc.DiagPeerNoSMC] += bare
	}
	for _, d := range slices.Sorted(maps.Keys(stayed)) {
		n, r := stayed[d], clc.Lookup(d, clc.OSUnspecified)
		st.Counters.Connections["TCP"] += n
		st.Counters.Fallbacks = append(st.Counters.Fallbacks, control.FallbackCount{
			Code: control.ReasonCode(d), Tag: r.Tag, Text: r.Sentence, Count: n, AsServer: n,
		})
	}
	maps.Copy(st.Counters.AsServer, st.Counters.Connections) // it is the supervisor of servers
	v.mu.Unlock()
	pids, _ := procs.Supervised(v.socket)
	for i, pid := range append(pids, callers...) {
		if command := procs.Command(pid); command != "" &&
			!slices.ContainsFunc(st.Programs, func(p control.StatusProgram) bool { return p.PID == pid }) {
			st.Programs = append(st.Programs,
				control.StatusProgram{PID: pid, Command: command, Caller: i >= len(pids)})
		}
	}
	return st
}

// Trace implements [control.Host].
func (v view) Trace() control.Tracer {
	v.readNotes()
	return &v.trace
}

// SampleCursors implements [control.Host]. There are none.
func (v view) SampleCursors(list []control.TraceEvent) ([]control.TraceEvent, int) { return list, 0 }
