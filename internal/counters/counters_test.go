package counters

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/control"
)

// TestHandshakeTimes checks the count that a handshake is in.
func TestHandshakeTimes(t *testing.T) {
	var h handshakeTimes
	for _, d := range []time.Duration{-1, 0, 100 * time.Microsecond, 100*time.Microsecond + 1, time.Minute} {
		h.add(d)
	}
	got := h.status()
	want := control.HandshakeTimes{Nanoseconds: uint64(time.Minute + 200*time.Microsecond + 1)}
	want.Counts[0], want.Counts[1], want.Counts[len(want.Counts)-1] = 3, 1, 1
	if got != want {
		t.Errorf("handshake times %+v, want %+v", got, want)
	}
}
