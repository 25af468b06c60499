package host

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/wire/clc"
)

func TestTraceEventText(t *testing.T) {
	established := traceRecord{kind: control.TraceEstablished, mode: ModeSMCD, agreed: &Agreed{Version: "2.1", EID: "E", PeerPID: 7}, numbers: [2]uint64{1, 2}}
	for _, tt := range []struct {
		record     traceRecord
		name, text string
	}{
		{traceRecord{kind: control.TraceRendezvous, pid: 7, message: rendezvous.Expect, numbers: [2]uint64{3, 0xabc}}, "Expect", "attempt=3 peer-pid=7 socket=0xabc"},
		{traceRecord{kind: control.TraceRendezvous, pid: 7, message: rendezvous.Accepted, numbers: [2]uint64{3}}, "Accepted", "attempt=3 peer-pid=7"},
		{traceRecord{kind: control.TraceRendezvous, pid: 7, message: rendezvous.Refused, numbers: [2]uint64{3}, refusal: clc.DiagNoListener}, "Refused",
			"attempt=3 peer-pid=7 " + clc.Lookup(clc.DiagNoListener, clc.OSUnspecified).String()},
		{traceRecord{kind: control.TraceRendezvous, pid: 7, message: rendezvous.Cancel, numbers: [2]uint64{3}}, "Cancel", "attempt=3 peer-pid=7"},
		{traceRecord{kind: control.TraceRendezvous, message: 9}, "type 9", "attempt=0 peer-pid=0"},
		{established, "", "eid=E buffers=1,2 peer-pid=7"},
		{traceRecord{kind: control.TraceFallback, reason: &clc.Reason{Tag: "T", Code: 1, Sentence: "it is so"}, byPeer: true}, "", "T (0x00000001): it is so, says the peer"},
		{traceRecord{kind: control.TraceState, from: 1, to: 8, cause: 1, abortive: true, fail: 2}, "", "Active > PeerAbortWait on Close, abortive: aborted"},
		{traceRecord{kind: control.TraceClosed, mode: ModeSMCD, numbers: [2]uint64{1, 2}, age: time.Second}, "", "SMC-D in=1 out=2 after 1s"},
		{traceRecord{kind: control.TracePeerGone, pid: 7, count: 2}, "", "process 7, 2 connections"},
		{traceRecord{kind: control.TraceFailed, text: "why"}, "", "why"},
	} {
		wantMode := map[control.TraceKind]string{control.TraceEstablished: "SMC-Dv2.1", control.TraceFallback: "TCP", control.TraceClosed: "SMC-D"}[tt.record.kind]
		if e := tt.record.Event(); e.Mode != wantMode {
			t.Errorf("mode of %s = %q, want %q", tt.record.kind, e.Mode, wantMode)
		}
		if e := tt.record.Event(); e.Name != tt.name || e.Text != tt.text {
			t.Errorf("event of %s = %q, %q, want %q, %q", tt.record.kind, e.Name, e.Text, tt.name, tt.text)
		}
	}
}

// BenchmarkTraceAdd is what an event costs while nobody listens.
func BenchmarkTraceAdd(b *testing.B) {
	var tr control.Trace[traceRecord]
	message := make([]byte, 192)
	b.ReportAllocs()
	for b.Loop() {
		tr.Add(&traceRecord{kind: control.TraceCLC}, message)
	}
}
