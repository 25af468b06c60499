package traceview

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// Both ends of a connection have one number; a new connection of the same addresses has a new one.
func TestView(t *testing.T) {
	client, server := netip.MustParseAddrPort("127.0.0.1:50000"), netip.MustParseAddrPort("127.0.0.1:80")
	at := func(isClient bool, conn uint64) *control.TraceEvent {
		e := &control.TraceEvent{Kind: control.TraceState, Conn: conn, Client: isClient, Local: server, Peer: client}
		if isClient {
			e.Local, e.Peer = client, server
		}
		return e
	}
	var v View
	for i, tt := range []struct {
		host   string
		event  *control.TraceEvent
		wantID int
	}{
		{"a", at(true, 1), 1},
		{"b", at(false, 1), 1},
		{"a", at(true, 1), 1},
		{"a", at(true, 2), 2}, // the port is used again
		{"b", at(false, 1), 1},
		{"b", at(false, 2), 2},
		{"c", at(false, 2), 3},
		{"a", &control.TraceEvent{Kind: control.TracePeerGone}, 0},
	} {
		e := v.Event(tt.host, tt.event)
		switch {
		case e.Conn == nil && tt.wantID != 0 || e.Conn != nil && e.Conn.ID != tt.wantID:
			t.Errorf("event %d has connection %+v, want %d", i, e.Conn, tt.wantID)
		case e.Conn != nil && (e.Conn.Client != client || e.Conn.Server != server):
			t.Errorf("event %d is of %v > %v, want %v > %v", i, e.Conn.Client, e.Conn.Server, client, server)
		}
	}
	message := *at(true, 2)
	message.Kind, message.Bytes = control.TraceCDC, cdc.Header{}.Append(nil)
	if e := v.Event("a", &message); e.Src != server || e.Dst != client || e.Dir != dissect.ServerToClient {
		t.Errorf("a message received is from %v to %v, %v", e.Src, e.Dst, e.Dir)
	}
	message.Sent = true
	if e := v.Event("a", &message); e.Src != client || e.Dst != server || e.Dir != dissect.ClientToServer {
		t.Errorf("a message sent is from %v to %v, %v", e.Src, e.Dst, e.Dir)
	}
}

// The memory of a view is bounded.
func TestViewBound(t *testing.T) {
	var v View
	for i := range 3 * maxViewConns {
		e := v.Event("h", &control.TraceEvent{
			Kind: control.TraceState, Conn: uint64(i + 1), Client: i%2 == 0,
			Local: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(i)), Peer: netip.MustParseAddrPort("127.0.0.1:80"),
		})
		if e.Conn == nil || e.Conn.ID != i+1 {
			t.Fatalf("event %d has connection %+v", i, e.Conn)
		}
	}
	if len(v.byHost) != maxViewConns || len(v.byAddr) != maxViewConns || len(v.order) != maxViewConns {
		t.Errorf("%d, %d and %d connections are remembered, want %d", len(v.byHost), len(v.byAddr), len(v.order), maxViewConns)
	}
}

// Events of any content come out in the form that package dissect renders.
func FuzzTraceEvent(f *testing.F) {
	header := cdc.Header{ConnFlags: cdc.Closed}.Append(nil)
	decline := clc.Decline{Version: clc.V2, Diagnosis: clc.DiagConfig}.Append(nil)
	for _, e := range []control.TraceEvent{
		{Kind: control.TraceCLC, Conn: 1, Sent: true, Bytes: decline},
		{Kind: control.TraceCLC, Conn: 1, Bytes: decline[:9]},
		{Kind: control.TraceCDC, Conn: 1, Client: true, Bytes: header},
		{Kind: control.TraceCursors, Conn: 1, Bytes: header, Moved: 1 << 63, Window: -5},
		{Kind: control.TraceRendezvous, Name: "Expect", Text: "attempt=1"},
		{Kind: control.TraceFallback, Conn: 2, Mode: "TCP", Text: "why"},
		{Kind: control.TraceLost, Count: 9}, {Kind: control.TraceOmitted, Count: 9}, {Kind: "of the future", Text: "x"},
	} {
		line, err := json.Marshal(map[string]any{"event": e})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	f.Add([]byte(`{"end":true}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, end, err := control.ParseTraceLine(line)
		if err != nil || end {
			return
		}
		var v View
		for range 2 {
			out := v.Event("h", &e)
			text := render.AppendLine(nil, out)
			text = render.AppendHex(render.AppendVerbose(append(text, '\n'), out), out)
			if i := bytes.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }); i >= 0 {
				t.Fatalf("%q has a control character", text)
			}
			if b := render.AppendJSON(nil, out); !json.Valid(b) {
				t.Fatalf("AppendJSON = %q, which is not JSON", b)
			}
		}
	})
}

// Messages are shown like messages of a capture, with their problems.
func TestViewMessages(t *testing.T) {
	var v View
	decline := clc.Decline{Version: clc.V2, Diagnosis: clc.DiagConfig, OS: clc.OSLinux}.Append(nil)
	for _, tt := range []struct {
		name  string
		event control.TraceEvent
		want  dissect.ProblemKind // 0: none
	}{
		{"no message", control.TraceEvent{Kind: control.TraceFallback, Conn: 1, Mode: "TCP", Text: "why"}, 0},
		{"Decline", control.TraceEvent{Kind: control.TraceCLC, Conn: 1, Bytes: decline}, dissect.Declined},
		{"HTTP", control.TraceEvent{Kind: control.TraceCLC, Conn: 1, Bytes: []byte("HTTP/1.1")}, dissect.Malformed},
		{"short header", control.TraceEvent{Kind: control.TraceCDC, Conn: 1, Bytes: []byte{1}}, dissect.Malformed},
	} {
		e := v.Event("h", &tt.event)
		if (tt.want != 0) != (len(e.Problems) == 1) || tt.want != 0 && e.Problems[0].Kind != tt.want {
			t.Errorf("problems of %s = %v, want %v", tt.name, e.Problems, tt.want)
		}
	}
}

// A sample says how much has moved since the one before it in the same direction.
func TestViewSamples(t *testing.T) {
	var v View
	header := cdc.Header{Producer: cdc.Cursor{Count: 1000}}.Append(nil)
	e := control.TraceEvent{Kind: control.TraceCursors, Conn: 1, Client: true, Sent: true, Bytes: header, Moved: 1000, Window: 500}
	other := control.TraceEvent{Kind: control.TraceCursors, Conn: 1, Client: true, Bytes: header, Moved: 7, Window: 9}
	message := cdc.Message{Seq: 3, AlertToken: 0x12, Producer: cdc.Cursor{Count: 16}}.Append(nil)
	smcr := control.TraceEvent{Kind: control.TraceCursors, Conn: 2, Client: true, Sent: true, Bytes: message, Moved: 16, Window: 5}
	again := e
	again.Moved, again.Window = 1300, 200
	for i, tt := range []struct {
		event    *control.TraceEvent
		produced int
		line     string
	}{
		{&e, -1, "CDC SMC-D prod=0000:000003e8 cons=0000:00000000 moved=1000 window=500"},
		{&other, -1, "moved=7 window=9"},
		{&again, 300, "moved=1300 produced=300 window=200"},
		{&again, 0, "moved=1300 window=200"},
		{&smcr, -1, "CDC seq=3 token=0x12 prod=0000:00000010 cons=0000:00000000 window=5 moved=16"},
	} {
		out := v.Event("h", tt.event)
		if p := out.Progress; p == nil || p.Window != tt.event.Window || p.Produced != tt.produced {
			t.Errorf("Progress of sample %d = %+v, want %d produced and a window of %d", i, p, tt.produced, tt.event.Window)
		}
		if line := string(render.AppendLine(nil, out)); !strings.HasSuffix(line, tt.line) {
			t.Errorf("line of sample %d = %q, want %q at its end", i, line, tt.line)
		}
	}
}
