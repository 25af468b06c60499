package host

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/cdc"
)

const bothUrgent = cdc.UrgentPending | cdc.UrgentPresent

// TestTraceUrgent checks that urgent data is in the trace of both ends, with its flags and the cursor behind its last byte.
func TestTraceUrgent(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	s, c := followHost(t, server, control.TraceOptions{}), followHost(t, client, control.TraceOptions{})
	cc := mustDial(t, client, l.Addr())
	sc := mustAccept(t, l)
	defer cc.Close()
	defer sc.Close()
	if _, err := cc.WriteUrgent([]byte("abU")); err != nil {
		t.Fatal(err)
	}
	if err := sc.WaitUrgent(); err != nil {
		t.Fatal(err)
	}
	want := cdc.Header{Producer: cdc.Cursor{Count: 3}, ProducerFlags: bothUrgent}
	for sent, f := range map[bool]*follower{true: c, false: s} {
		smctest.Eventually(t, patience, "the header", func() bool {
			for _, e := range f.events() {
				if e.Kind == control.TraceCDC {
					if h, err := cdc.ParseHeader(e.Bytes); err != nil || h != want || e.Sent != sent {
						t.Fatalf("event %+v with %v, %v, want %v", e, h, err, want)
					}
					return true
				}
			}
			return false
		})
	}
	sc.SetReadDeadline(time.Now())
	before := len(s.events())
	if err := sc.WaitUrgent(); err == nil {
		t.Error("it is told twice")
	}
	if v, err := cc.WriteUrgent(nil); v != 0 || err != nil {
		t.Errorf("WriteUrgent of nothing = %d, %v", v, err)
	}
	if got := len(s.events()); got != before {
		t.Errorf("%d events of what did not happen", got-before)
	}
}
