package host

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/clc"
)

// addNumbered adds events whose messages are the numbers from first to last.
func addNumbered(tr *tracer, first, last int) {
	for i := first; i <= last; i++ {
		tr.add(&traceRecord{kind: TraceCLC}, fmt.Append(nil, i))
	}
}

// checkNumbered reads everything, and checks that it is the events from first to last.
func checkNumbered(t *testing.T, l *traceListener, wantLost uint64, first, last int) {
	t.Helper()
	var got []TraceEvent
	var lost uint64
	for {
		var n uint64
		before := len(got)
		got, n = l.read(got, 7)
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

// A listener gets what is remembered, as much of it as it asks for, and then all that comes.
func TestTracerHistory(t *testing.T) {
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
			var tr tracer
			addNumbered(&tr, 1, tt.before)
			l, err := tr.listen(tt.history)
			if err != nil {
				t.Fatal(err)
			}
			if got := l.pending(); got != tt.count {
				t.Errorf("pending() = %d, want %d", got, tt.count)
			}
			checkNumbered(t, l, 0, tt.wantFirst, tt.before)
			addNumbered(&tr, tt.before+1, tt.before+20)
			checkNumbered(t, l, 0, tt.before+1, tt.before+20)
			l.leave()
			if len(tr.listeners) != 0 || len(tr.ring) > traceHistory {
				t.Errorf("after leave: %d listeners and room for %d events", len(tr.listeners), len(tr.ring))
			}
			again, err := tr.listen(10)
			if err != nil {
				t.Fatal(err)
			}
			checkNumbered(t, again, 0, tt.before+11, tt.before+20)
		})
	}
}

// Who reads too late is told how much it has lost, to the event.
func TestTracerLost(t *testing.T) {
	var tr tracer
	addNumbered(&tr, 1, 100)
	l, err := tr.listen(40) // from 61 on
	if err != nil {
		t.Fatal(err)
	}
	other, err := tr.listen(0) // keeps up
	if err != nil {
		t.Fatal(err)
	}
	addNumbered(&tr, 101, 60+traceQueue)
	checkNumbered(t, other, 0, 101, 60+traceQueue)
	addNumbered(&tr, 61+traceQueue, 60+traceQueue+5)
	checkNumbered(t, l, 5, 66, 65+traceQueue)
	checkNumbered(t, other, 0, 61+traceQueue, 65+traceQueue)
	select {
	case <-l.more:
	default:
		t.Error("a listener was not told that there is more")
	}
}

func TestTracerListeners(t *testing.T) {
	var tr tracer
	var all []*traceListener
	for range maxTraceListeners {
		l, err := tr.listen(0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	if _, err := tr.listen(0); err != errTraceListeners {
		t.Errorf("one listener more = %v, want %v", err, errTraceListeners)
	}
	all[3].leave()
	if _, err := tr.listen(0); err != nil {
		t.Errorf("a listener in place of another = %v", err)
	}
}

// What is kept has memory of its own, of bounded size, which is used again.
func TestTracerMemory(t *testing.T) {
	var tr tracer
	message := []byte("first")
	tr.add(&traceRecord{kind: TraceCLC}, message)
	copy(message, "other")
	tr.add(&traceRecord{kind: TraceCLC}, bytes.Repeat([]byte("x"), 2*clc.MaxLen))
	l, err := tr.listen(2)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := l.read(nil, 2)
	if string(got[0].Bytes) != "first" || len(got[1].Bytes) != clc.MaxLen {
		t.Errorf("read = %q and %d bytes, want first and %d", got[0].Bytes, len(got[1].Bytes), clc.MaxLen)
	}
	l.leave()
	message = make([]byte, 200)
	r := traceRecord{kind: TraceState}
	for range traceHistory {
		tr.add(&r, message)
	}
	if n := testing.AllocsPerRun(1000, func() { tr.add(&r, message) }); n != 0 {
		t.Errorf("add allocates %v times, want 0", n)
	}
}

func TestTraceEventText(t *testing.T) {
	established := traceRecord{kind: TraceEstablished, mode: ModeSMCD, version: "2.1", agreed: Agreed{EID: "E", PeerPID: 7}, buffers: [2]int{1, 2}}
	for _, tt := range []struct {
		record     traceRecord
		name, text string
	}{
		{traceRecord{kind: TraceRendezvous, pid: 7, message: rendezvous{kind: rvExpect, id: 3, socket: 0xabc}}, "Expect", "attempt=3 peer-pid=7 socket=0xabc"},
		{traceRecord{kind: TraceRendezvous, pid: 7, message: rendezvous{kind: rvAccepted, id: 3}}, "Accepted", "attempt=3 peer-pid=7"},
		{traceRecord{kind: TraceRendezvous, pid: 7, message: rendezvous{kind: rvRefused, id: 3, reason: uint32(clc.DiagNoListener)}}, "Refused",
			"attempt=3 peer-pid=7 " + clc.Lookup(clc.DiagNoListener, clc.OSUnspecified).String()},
		{traceRecord{kind: TraceRendezvous, pid: 7, message: rendezvous{kind: rvCancel, id: 3}}, "Cancel", "attempt=3 peer-pid=7"},
		{traceRecord{kind: TraceRendezvous, message: rendezvous{kind: 9}}, "type 9", "attempt=0 peer-pid=0"},
		{established, "", "eid=E buffers=1,2 peer-pid=7"},
		{traceRecord{kind: TraceFallback, reason: clc.Reason{Tag: "T", Code: 1, Sentence: "it is so"}, byPeer: true}, "", "T (0x00000001): it is so, says the peer"},
		{traceRecord{kind: TraceState, from: 1, to: 8, cause: 1, abortive: true, fail: 2}, "", "Active > PeerAbortWait on Close, abortive: aborted"},
		{traceRecord{kind: TraceClosed, mode: ModeSMCD, in: 1, out: 2, age: time.Second}, "", "SMC-D in=1 out=2 after 1s"},
		{traceRecord{kind: TracePeerGone, pid: 7, count: 2}, "", "process 7, 2 connections"},
		{traceRecord{kind: TraceFailed, text: "why"}, "", "why"},
		{traceRecord{kind: TraceFailed, text: string(make([]byte, 2*maxTraceText))}, "", string(make([]byte, maxTraceText))},
	} {
		wantMode := map[TraceKind]string{TraceEstablished: "SMC-Dv2.1", TraceFallback: "TCP", TraceClosed: "SMC-D"}[tt.record.kind]
		if e := tt.record.event(); e.Mode != wantMode {
			t.Errorf("mode of %s = %q, want %q", tt.record.kind, e.Mode, wantMode)
		}
		if e := tt.record.event(); e.Name != tt.name || e.Text != tt.text {
			t.Errorf("event of %s = %q, %q, want %q, %q", tt.record.kind, e.Name, e.Text, tt.name, tt.text)
		}
	}
}

// BenchmarkTracerAdd is what an event costs while nobody listens.
func BenchmarkTracerAdd(b *testing.B) {
	var tr tracer
	message := make([]byte, 192)
	b.ReportAllocs()
	for b.Loop() {
		tr.add(&traceRecord{kind: TraceCLC}, message)
	}
}
