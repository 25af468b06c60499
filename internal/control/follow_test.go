package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/llc"
)

// patience bounds waits for events that have to come.
const patience = 20 * time.Second

// A follower keeps the events that FollowTrace brings.
type follower struct {
	cancel context.CancelFunc
	end    chan error // gets the result

	mu   sync.Mutex
	list []TraceEvent
}

// follow follows a host until the test ends.
func follow(tb testing.TB, dir, name string, opts TraceOptions) *follower {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{cancel: cancel, end: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.end <- FollowTrace(ctx, dir, name, opts, func(e TraceEvent) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.list = append(f.list, e)
		})
	}()
	tb.Cleanup(func() { cancel(); <-done })
	return f
}

func (f *follower) events() []TraceEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list)
}

// serveTrace serves a control socket of a host that has nothing but a trace.
func serveTrace(t *testing.T, dir string) (*testTrace, *Server) {
	t.Helper()
	tr := new(testTrace)
	sample := func(list []TraceEvent) ([]TraceEvent, int) { return append(list, TraceEvent{Kind: TraceCursors}), 7 }
	s, err := Serve(dir, "a", testHost{status: testStatus, trace: tr, sample: sample})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return tr, s
}

// ask sends a line and returns the reader of the answer.
func ask(t *testing.T, c *net.UnixConn, request string) *bufio.Reader {
	t.Helper()
	if _, err := io.WriteString(c, request+"\n"); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(c)
}

// A reader that does not read loses events, which are counted; the host does not wait for it.
func TestTraceSlowReader(t *testing.T) {
	dir := t.TempDir()
	tr, _ := serveTrace(t, dir)
	const total = 3 * traceQueue
	r := ask(t, dial(t, dir, "a"), `{"version":1,"request":"trace"}`)
	if line, err := r.ReadString('\n'); err != nil || line != `{"version":1,"trace":{"history":0}}`+"\n" {
		t.Fatalf("first line = %q, %v", line, err)
	}
	for range total { // more than fits into the socket and the queue
		tr.Add(&testRecord{TraceEvent: TraceEvent{Kind: TraceCLC}}, make([]byte, 200))
	}
	next, lost := uint64(1), uint64(0)
	for next <= total {
		line, err := r.ReadBytes('\n')
		if err != nil {
			t.Fatalf("after event %d: %v", next-1, err)
		}
		e, end, err := ParseTraceLine(line)
		switch {
		case err != nil || end:
			t.Fatalf("line %q = %v, %v", line, end, err)
		case e.Kind == TraceLost:
			next += e.Count
			lost += e.Count
		case e.Seq != next:
			t.Fatalf("event %d comes after %d, and %d lost", e.Seq, next-1, lost)
		default:
			next++
		}
	}
	if lost == 0 {
		t.Errorf("of %d events none was lost, want a bounded queue", total)
	}
}

// A reader that does not read does not hold up the end of the host either.
func TestTraceStuckReader(t *testing.T) {
	dir := t.TempDir()
	tr, s := serveTrace(t, dir)
	ask(t, dial(t, dir, "a"), `{"version":1,"request":"trace"}`)
	smctest.Eventually(t, patience, "the listener is there", func() bool { return tr.Listeners() == 1 })
	for range 2 * traceQueue {
		tr.Add(&testRecord{TraceEvent: TraceEvent{Kind: TraceCLC}}, make([]byte, 200))
	}
	start := time.Now()
	s.Close()
	if took := time.Since(start); took > traceFarewell+2*time.Second {
		t.Errorf("Close took %v, want about %v", took, traceFarewell)
	}
	if n := tr.Listeners(); n != 0 {
		t.Errorf("%d listeners are left", n)
	}
}

// Listeners are few, and do not take the place of clients that ask for the status.
func TestTraceManyListeners(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	tr, s := serveTrace(t, dir)
	defer s.Close()
	var all []*follower
	for range maxTraceListeners {
		all = append(all, follow(t, dir, "a", TraceOptions{}))
	}
	listeners := func(n int) func() bool {
		return func() bool { return tr.Listeners() == n }
	}
	smctest.Eventually(t, patience, "all listeners are there", listeners(maxTraceListeners))
	err := FollowTrace(t.Context(), dir, "a", TraceOptions{}, func(TraceEvent) {})
	if _, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), "host answered: 8 programs follow this host already") {
		t.Errorf("one listener more = %v, want a *Error that says so", err)
	}
	if list, errs := Gather(t.Context(), dir); len(list) != 1 || errs != nil {
		t.Errorf("Gather beside listeners = %v, %v, want one host", list, errs)
	}
	addNumbered(tr, 1, 10)
	for _, f := range all {
		smctest.Eventually(t, patience, "all events", func() bool { return len(f.events()) == 10 })
	}
	all[0].cancel()
	if err := <-all[0].end; !errors.Is(err, context.Canceled) {
		t.Errorf("FollowTrace = %v, want it cancelled", err)
	}
	smctest.Eventually(t, patience, "it has left", listeners(maxTraceListeners-1))
	f := follow(t, dir, "a", TraceOptions{History: 1})
	smctest.Eventually(t, patience, "another in its place", func() bool { return len(f.events()) == 1 })
	addNumbered(tr, 11, 11)
	s.Close()
	for _, f := range append(all[1:], f) {
		if err := <-f.end; err != ErrHostClosed {
			t.Errorf("FollowTrace when the host was closed = %v, want %v", err, ErrHostClosed)
		}
		if list := f.events(); string(list[len(list)-1].Bytes) != "11" {
			t.Error("the last event was not told")
		}
	}
}

// Cursors come as often as was asked for, and the number of connections left out of a sample is
// told.
func TestTraceSample(t *testing.T) {
	dir := t.TempDir()
	serveTrace(t, dir)
	f := follow(t, dir, "a", TraceOptions{Cursors: minTraceCursors})
	smctest.Eventually(t, patience, "two samples", func() bool { return len(f.events()) >= 4 })
	list := f.events()
	if list[0].Kind != TraceCursors || list[1].Kind != TraceOmitted || list[1].Count != 7 || list[2].Kind != TraceCursors {
		t.Errorf("samples = %+v", list[:4])
	}
}

func TestTraceRequests(t *testing.T) {
	dir := t.TempDir()
	_, s := serveTrace(t, dir)
	serve(t, dir, "b", testStatus) // has no trace
	for _, tt := range []struct{ name, request, want string }{
		{"a", `{"version":1,"request":"trace"}`, `{"version":1,"trace":{"history":0}}`},
		{"a", `{"version":1,"request":"trace","history":-5}`, `{"version":1,"trace":{"history":0}}`},
		{"a", `{"version":1,"request":"trace","cursors_ms":3600000,"later":{}}`, `{"version":1,"trace":{"history":0}}`},
		{"a", `{"version":1,"request":"trace","cursors_ms":9}`, `{"version":1,"error":"cursors every 9 ms: want 10ms to 1h0m0s, or 0 for none"}`},
		{"a", `{"version":1,"request":"trace","cursors_ms":-1}`, "want 10ms"},
		{"a", `{"version":1,"request":"trace","cursors_ms":3600001}`, "want 10ms"},
		{"a", `{"version":1,"request":"trace","cursors_ms":"1s"}`, "not a JSON object"},
		{"a", `{"version":1,"request":"trace","history":1.5}`, "not a JSON object"},
		{"a", `{"version":2,"request":"trace"}`, "version 2 is not spoken here"},
		{"b", `{"version":1,"request":"trace"}`, "unknown request"},
	} {
		r := ask(t, dial(t, dir, tt.name), tt.request)
		if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, tt.want) {
			t.Errorf("answer to %s = %q, %v, want %q", tt.request, line, err, tt.want)
		}
	}
	// A byte after the request ends the trace.
	c := dial(t, dir, "a")
	r := ask(t, c, `{"version":1,"request":"trace"}`+"\n"+`{"version":1,"request":"status"}`)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); err != io.EOF {
		t.Errorf("after a second request = %q, %v, want EOF", line, err)
	}
	s.Close()
}

// A host that does not play by the rules is an error.
func TestTraceHostileHost(t *testing.T) {
	const first = `{"version":1,"trace":{"history":0}}` + "\n"
	for _, tt := range []struct{ name, answer, want string }{
		{"hangs up", "", "unexpected EOF"},
		{"half a line", `{"version":1`, "unexpected EOF"},
		{"not JSON", "hello\n", "not understood"},
		{"neither", `{"version":1}` + "\n", "neither"},
		{"other version", `{"version":7,"trace":{}}` + "\n", "speaks version 7"},
		{"error", `{"version":1,"error":"no"}` + "\n", "host answered: no"},
		{"endless first line", strings.Repeat("x", 2*maxTraceLine), "buffer full"},
		{"event not JSON", first + "hello\n", "event is not understood"},
		{"event of a wrong type", first + `{"event":{"conn":-1}}` + "\n", "event is not understood"},
		{"address", first + `{"event":{"local":"nowhere"}}` + "\n", "event is not understood"},
		{"long message", first + `{"event":{"bytes":"` + strings.Repeat("AAAA", llc.MaxLen) + `"}}` + "\n", "message of 24576 bytes"},
		{"endless line", first + strings.Repeat("x", 2*maxTraceLine), "line exceeds"},
		{"cuts it off", first + `{"event":{}}` + "\n", ErrTraceCut.Error()},
		{"end", first + `{"end":true}` + "\n" + "more", ErrHostClosed.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(rundir.Path(dir, "ctl"), 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("unix", filepath.Join(rundir.Path(dir, "ctl"), "x"))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			served := make(chan struct{})
			go func() {
				defer close(served)
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				bufio.NewReader(c).ReadBytes('\n')
				io.WriteString(c, tt.answer)
			}()
			err = FollowTrace(t.Context(), dir, "x", TraceOptions{}, func(TraceEvent) {})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("FollowTrace = %v, want an error with %q", err, tt.want)
			}
			<-served
		})
	}
	err := FollowTrace(t.Context(), t.TempDir(), "x", TraceOptions{}, func(TraceEvent) {})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("FollowTrace of no host = %v, want ErrNotExist", err)
	}
}

// Nothing that a host of another user says gets to a terminal as it is.
func TestTracePlainText(t *testing.T) {
	line, err := json.Marshal(traceLine{Event: &TraceEvent{
		Kind: "k\x1b[2J", Name: "n\x07", Text: strings.Repeat("t\n", maxTraceText), Mode: "m\u202e",
		Local: netip.AddrPortFrom(netip.MustParseAddr("fe80::1%\x1b[2J"), 1),
	}})
	if err != nil {
		t.Fatal(err)
	}
	e, _, err := ParseTraceLine(line)
	if err != nil || e.Kind != "k?[2J" || e.Name != "n?" || e.Mode != "m?" || e.Text != strings.Repeat("t?", maxTraceText/2) || e.Local.String() != "[fe80::1]:1" {
		t.Errorf("ParseTraceLine = %+v, %v", e, err)
	}
}

// A process that is killed is told from a host that is closed.
func TestTraceKilledProcess(t *testing.T) {
	dir := t.TempDir()
	child := smctest.Start(t, "control-serve", dir)
	child.Hear("serving")
	f := follow(t, dir, "a", TraceOptions{Cursors: minTraceCursors})
	smctest.Eventually(t, patience, "a sample", func() bool { return len(f.events()) > 0 })
	child.Kill()
	if err := <-f.end; err != ErrProcessEnded {
		t.Errorf("FollowTrace of a process that was killed = %v, want %v", err, ErrProcessEnded)
	}
}

// A stopped process says nothing, and holds up no client that wants to end.
func TestTraceStoppedProcess(t *testing.T) {
	dir := t.TempDir()
	child := smctest.Start(t, "control-serve", dir)
	child.Hear("serving")
	f := follow(t, dir, "a", TraceOptions{Cursors: minTraceCursors})
	smctest.Eventually(t, patience, "a sample", func() bool { return len(f.events()) > 0 })
	stop(t, child)
	f.cancel()
	if err := <-f.end; !errors.Is(err, context.Canceled) {
		t.Errorf("FollowTrace of a stopped process, cancelled = %v", err)
	}
	child.Signal(syscall.SIGCONT)
}

// Other users are not answered.
func TestTraceForeignUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	serveTrace(t, dir)
	child := smctest.Start(t, "control-follow-nobody", dir)
	if got, want := child.Hear("result"), fmt.Sprint(os.ErrPermission); !strings.Contains(got, want) {
		t.Errorf("FollowTrace as another user = %s, want %s", got, want)
	}
}
