package conn

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

func TestRecordEvent(t *testing.T) {
	agreed := &Agreed{Version: "2.1", EID: "E", PeerPID: 7}
	for _, tt := range []struct {
		record     Record
		mode, text string
	}{
		{Record{Kind: control.TraceEstablished, Mode: ModeSMCD, Agreed: agreed, Numbers: [2]uint64{1, 2}}, "SMC-Dv2.1", "eid=E buffers=1,2 peer-pid=7"},
		{Record{Kind: control.TraceEstablished, Mode: ModeUnix, Agreed: &Agreed{PeerPID: 7}}, "Unix", "a pair of Unix sockets peer-pid=7"},
		{Record{Kind: control.TraceFallback, Reason: &clc.Reason{Tag: "T", Code: 1, Sentence: "it is so"}, ByPeer: true}, "TCP", "T (0x00000001): it is so, says the peer"},
		{Record{Kind: control.TraceState, From: 1, To: 8, Cause: 1, Abortive: true, Fail: 2}, "", "Active > PeerAbortWait on Close, abortive: aborted"},
		{Record{Kind: control.TraceClosed, Mode: ModeSMCD, Numbers: [2]uint64{1, 2}, Age: time.Second}, "SMC-D", "SMC-D in=1 out=2 after 1s"},
		{Record{Kind: control.TraceFailed, Text: "why"}, "", "why"},
	} {
		if e := tt.record.Event(); e.Mode != tt.mode || e.Text != tt.text {
			t.Errorf("event of %s = %q, %q, want %q, %q", tt.record.Kind, e.Mode, e.Text, tt.mode, tt.text)
		}
	}
}

// A hostile peer can write any cursors; the window is then unknown or none.
func TestWindow(t *testing.T) {
	for _, tt := range []struct {
		consumer, producer cdc.Cursor
		want               int
	}{
		{cdc.Cursor{}, cdc.Cursor{}, 100},
		{cdc.Cursor{}, cdc.Cursor{Count: 30}, 70},
		{cdc.Cursor{Count: 90}, cdc.Cursor{Wrap: 1, Count: 20}, 70},
		{cdc.Cursor{Count: 20}, cdc.Cursor{Wrap: 1, Count: 20}, 0},
		{cdc.Cursor{Wrap: 0xffff, Count: 99}, cdc.Cursor{}, 99},
		{cdc.Cursor{Count: 20}, cdc.Cursor{Count: 10}, 0},
		{cdc.Cursor{}, cdc.Cursor{Wrap: 7}, 0},
		{cdc.Cursor{Count: 100}, cdc.Cursor{}, -1},
		{cdc.Cursor{}, cdc.Cursor{Count: 1 << 31}, -1},
	} {
		if got := window(tt.consumer, tt.producer, 100); got != tt.want {
			t.Errorf("window(%v, %v) = %d, want %d", tt.consumer, tt.producer, got, tt.want)
		}
	}
}
