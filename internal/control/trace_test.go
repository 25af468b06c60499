package control

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire/llc"
)

// A testRecord has the size of a host's records.
type testRecord struct {
	TraceEvent
	_ [256]byte
}

func (r testRecord) Event() TraceEvent { return r.TraceEvent }

type testTrace = Trace[testRecord]

// addNumbered adds events. Their messages are the numbers from first to last.
func addNumbered(tr *testTrace, first, last int) {
	for i := first; i <= last; i++ {
		tr.Add(&testRecord{TraceEvent: TraceEvent{Kind: TraceCLC}}, fmt.Append(nil, i))
	}
}

// checkNumbered reads everything, and checks that it is the events from first to last.
func checkNumbered(t *testing.T, l TraceListener, wantLost uint64, first, last int) {
	t.Helper()
	var got []TraceEvent
	var lost uint64
	for {
		var n uint64
		before := len(got)
		got, n = l.Read(got, 7)
		lost += n
		if len(got) == before {
			break
		}
	}
	if lost != wantLost || len(got) != last-first+1 {
		t.Fatalf("read = %d events, %d lost, want %d and %d", len(got), lost, last-first+1, wantLost)
	}
	for i, e := range got {
		if want := first + i; e.Seq != uint64(want) || string(e.Bytes) != fmt.Sprint(want) || e.Time.IsZero() {
			t.Fatalf("event %d = number %d, %q at %v, want number and message %d", i, e.Seq, e.Bytes, e.Time, want)
		}
	}
}

// A listener gets remembered events, as many as it asks for, and then all that come.
func TestTraceHistory(t *testing.T) {
	for _, tt := range []struct {
		before, history  int
		wantFirst, count int
	}{
		{0, 10, 1, 0},
		{5, 0, 6, 0},
		{5, -1, 6, 0},
		{5, 3, 3, 3},
		{5, 100, 1, 5},
		{traceHistory, 1 << 30, 1, traceHistory},
		{traceHistory + 1, 1 << 30, 2, traceHistory},
		{5*traceHistory + 7, traceHistory, 4*traceHistory + 8, traceHistory},
	} {
		t.Run(fmt.Sprintf("%d of %d", tt.history, tt.before), func(t *testing.T) {
			var tr testTrace
			addNumbered(&tr, 1, tt.before)
			l, err := tr.Listen(tt.history)
			if err != nil {
				t.Fatal(err)
			}
			if got := l.Pending(); got != tt.count {
				t.Errorf("Pending() = %d, want %d", got, tt.count)
			}
			checkNumbered(t, l, 0, tt.wantFirst, tt.before)
			addNumbered(&tr, tt.before+1, tt.before+20)
			checkNumbered(t, l, 0, tt.before+1, tt.before+20)
			l.Leave()
			if len(tr.listeners) != 0 || len(tr.ring) > traceHistory {
				t.Errorf("after leave: %d listeners and room for %d events", len(tr.listeners), len(tr.ring))
			}
			again, err := tr.Listen(10)
			if err != nil {
				t.Fatal(err)
			}
			checkNumbered(t, again, 0, tt.before+11, tt.before+20)
		})
	}
}

// A listener that reads too late is told how much it has lost, to the event.
func TestTraceLost(t *testing.T) {
	var tr testTrace
	addNumbered(&tr, 1, 100)
	l, err := tr.Listen(40) // from 61 on
	if err != nil {
		t.Fatal(err)
	}
	other, err := tr.Listen(0) // keeps up
	if err != nil {
		t.Fatal(err)
	}
	addNumbered(&tr, 101, 60+traceQueue)
	checkNumbered(t, other, 0, 101, 60+traceQueue)
	addNumbered(&tr, 61+traceQueue, 60+traceQueue+5)
	checkNumbered(t, l, 5, 66, 65+traceQueue)
	checkNumbered(t, other, 0, 61+traceQueue, 65+traceQueue)
	select {
	case <-l.More():
	default:
		t.Error("a listener was not told that there is more")
	}
}

func TestTraceListeners(t *testing.T) {
	var tr testTrace
	var all []TraceListener
	for range maxTraceListeners {
		l, err := tr.Listen(0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	if _, err := tr.Listen(0); err != errTraceListeners {
		t.Errorf("one listener more = %v, want %v", err, errTraceListeners)
	}
	all[3].Leave()
	if _, err := tr.Listen(0); err != nil {
		t.Errorf("a listener in place of another = %v", err)
	}
}

// A message that is kept has memory of its own, of bounded size, which is used again.
func TestTraceMemory(t *testing.T) {
	var tr testTrace
	message := []byte("first")
	tr.Add(&testRecord{TraceEvent: TraceEvent{Kind: TraceCLC}}, message)
	copy(message, "other")
	tr.Add(&testRecord{TraceEvent: TraceEvent{Kind: TraceCLC}}, bytes.Repeat([]byte("x"), 2*llc.MaxLen))
	l, err := tr.Listen(2)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := l.Read(nil, 2)
	if string(got[0].Bytes) != "first" || len(got[1].Bytes) != llc.MaxLen {
		t.Errorf("read = %q and %d bytes, want first and %d", got[0].Bytes, len(got[1].Bytes), llc.MaxLen)
	}
	l.Leave()
	message = make([]byte, 200)
	r := testRecord{TraceEvent: TraceEvent{Kind: TraceState}}
	for range traceHistory {
		tr.Add(&r, message)
	}
	if n := testing.AllocsPerRun(1000, func() { tr.Add(&r, message) }); n != 0 {
		t.Errorf("Add allocates %v times, want 0", n)
	}
}

// The text of an event has a bound.
func TestTraceText(t *testing.T) {
	var tr testTrace
	tr.Add(&testRecord{TraceEvent: TraceEvent{Kind: TraceFailed, Text: strings.Repeat("x", 2*maxTraceText)}}, nil)
	l, err := tr.Listen(1)
	if err != nil {
		t.Fatal(err)
	}
	if list, _ := l.Read(nil, 1); len(list) != 1 || len(list[0].Text) != maxTraceText {
		t.Errorf("Read = %d events, want one with a text of %d bytes", len(list), maxTraceText)
	}
}
