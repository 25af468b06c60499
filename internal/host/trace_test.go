package host

import (
	"testing"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/wire/clc"
)

func TestTraceEventText(t *testing.T) {
	message := func(kind rendezvous.Kind, numbers ...uint64) traceRecord {
		r := traceRecord{Record: conn.Record{Kind: control.TraceRendezvous}, message: kind, pid: 7}
		copy(r.Numbers[:], numbers)
		return r
	}
	refused := message(rendezvous.Refused, 3)
	refused.refusal = clc.DiagNoListener
	for _, tt := range []struct {
		record     traceRecord
		name, text string
	}{
		{message(rendezvous.Expect, 3, 0xabc), "Expect", "attempt=3 peer-pid=7 socket=0xabc"},
		{message(rendezvous.Accepted, 3), "Accepted", "attempt=3 peer-pid=7"},
		{refused, "Refused", "attempt=3 peer-pid=7 " + clc.Lookup(clc.DiagNoListener, clc.OSUnspecified).String()},
		{message(rendezvous.Cancel, 3), "Cancel", "attempt=3 peer-pid=7"},
		{message(9), "type 9", "attempt=0 peer-pid=7"},
		{traceRecord{Record: conn.Record{Kind: control.TracePeerGone}, pid: 7, count: 2}, "", "process 7, 2 connections"},
		{traceRecord{Record: conn.Record{Kind: control.TraceFailed, Text: "why"}}, "", "why"},
	} {
		if e := tt.record.Event(); e.Name != tt.name || e.Text != tt.text {
			t.Errorf("event of %s = %q, %q, want %q, %q", tt.record.Kind, e.Name, e.Text, tt.name, tt.text)
		}
	}
}

// BenchmarkTraceAdd measures the cost of an event while nobody listens.
func BenchmarkTraceAdd(b *testing.B) {
	var tr control.Trace[traceRecord]
	message := make([]byte, 192)
	b.ReportAllocs()
	for b.Loop() {
		tr.Add(&traceRecord{Record: conn.Record{Kind: control.TraceCLC}}, message)
	}
}
