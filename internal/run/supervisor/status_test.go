package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// TestStatus has the control socket of a supervisor show the outcome of offers, and which program
// made them.
func TestStatus(t *testing.T) {
	s := newTestSupervisor(t)
	c := s.offer(t)
	c.connect()
	st, end := s.claimAs(t, c)
	if st != proto.StatusOK {
		t.Fatalf("Claim: status %d", st)
	}
	unix.Close(end)
	refused := s.offer(t)
	refused.listener.Close()
	foreign := proto.Message{Kind: proto.KindOffer, NetNS: s.Listeners.NetNS + 1, Local: refused.socket, Peer: refused.server}
	p := s.program(t)
	p.send(testMessage(foreign), c.end)
	if got, _ := p.reply(); got != proto.StatusNo {
		t.Errorf("an offer from elsewhere: status %d, want %d", got, proto.StatusNo)
	}
	dir := filepath.Dir(filepath.Dir(filepath.Dir(s.Path)))
	hosts, errs := control.Gather(t.Context(), dir)
	if len(hosts) != 1 || len(errs) != 0 {
		t.Fatalf("hosts %+v, errors %v; want one", hosts, errs)
	}
	h := hosts[0]
	if h.Counters.Connections[proto.ModeUnix] != 1 || h.Counters.Connections["TCP"] != 1 {
		t.Errorf("connections are %v, want one of each", h.Counters.Connections)
	}
	want := []control.FallbackCount{{Code: control.ReasonCode(clc.DiagNoListener), Tag: "NO_LISTENER", Text: clc.Lookup(clc.DiagNoListener, 0).Sentence, Count: 1, AsServer: 1}}
	if !slices.Equal(h.Counters.Fallbacks, want) {
		t.Errorf("fallbacks are %+v, want %+v", h.Counters.Fallbacks, want)
	}
	if !slices.ContainsFunc(h.Programs, func(p control.StatusProgram) bool { return p.PID == os.Getpid() && p.Command != "" && p.Caller }) {
		t.Errorf("programs are %+v, want this one, as a caller", h.Programs)
	}
	l, err := s.record.trace.Listen(100)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Leave()
	events, _ := l.Read(nil, 100)
	var kinds []control.TraceKind
	for _, e := range events {
		kinds = append(kinds, e.Kind)
		if e.Kind != control.TraceFallback && e.Local != c.server && e.Local != refused.server {
			t.Errorf("event %+v is of nobody's connection", e)
		}
	}
	if want := []control.TraceKind{control.TraceRendezvous, control.TraceEstablished, control.TraceRendezvous, control.TraceRendezvous, control.TraceFallback}; !slices.Equal(kinds, want) {
		t.Errorf("events are %v, want %v", kinds, want)
	}
}
