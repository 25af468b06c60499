package stream

import (
	"sync/atomic"
	"testing"
	"time"
)

// A reader whose waits end at once, time after time, lets the writer go on for a moment; nobody else does.
func TestLinger(t *testing.T) {
	for _, tt := range []struct {
		name    string
		reads   bool
		writes  bool // in between
		looks   int  // until there is something
		lingers bool
	}{
		{"reader, at once", true, false, 1, true},
		{"reader, soon", true, false, promptLooks, true},
		{"reader, as for an answer", true, false, promptLooks + 1, false},
		{"reader that answers", true, true, 1, false},
		{"writer, at once", false, false, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var sleeps atomic.Uint32
			var w waiter
			looks := 0
			w.init(&sleeps, time.Minute, nil, func() bool { looks++; return looks >= tt.looks })
			var written atomic.Uint64
			if tt.reads {
				w.written = &written
			}
			w.spinner.credit = time.Minute
			spin := func() time.Duration {
				looks = 0
				if tt.writes {
					written.Add(1)
				}
				start := time.Now()
				if !w.spin(new(Stats)) {
					t.Fatal("the spin found nothing")
				}
				return time.Since(start)
			}
			for range 2 * promptWaits {
				spin()
			}
			took := time.Hour // the shortest of some: any may be interrupted
			for range 100 {
				took = min(took, spin())
			}
			if lingers := took >= lingerTime; lingers != tt.lingers {
				t.Errorf("took %v, lingers %v, want %v", took, lingers, tt.lingers)
			}
			if tt.lingers {
				looks = tt.looks - promptLooks - 1 // one that takes longer
				if !w.spin(new(Stats)) || w.prompt != promptWaits/2 {
					t.Errorf("after a longer wait %d prompt ones, want %d", w.prompt, promptWaits/2)
				}
			}
		})
	}
}
