package stream

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A countingBell is a doorbell at which a number of others are parked.
type countingBell struct{ parked atomic.Int32 }

func (b *countingBell) Parked() *atomic.Int32  { return &b.parked }
func (b *countingBell) Lead(until func() bool) {}
func (b *countingBell) Interrupt()             {}

// A waiter whose peer has others to serve does not take a processor from them.
func TestNoSpinInACrowd(t *testing.T) {
	for _, tt := range []struct {
		parked int32
		want   bool // it spins
	}{{0, true}, {1, true}, {2, false}, {63, false}} {
		var stats Stats
		var sleeps atomic.Uint32
		bell := new(countingBell)
		bell.parked.Store(tt.parked)
		var w waiter
		w.init(&sleeps, 50*time.Microsecond, bell, func() bool { return true })
		w.spinner.credit = spinCredit
		if got := w.spin(&stats); got != tt.want {
			t.Errorf("with %d others parked, spin() = %t, want %t", tt.parked, got, tt.want)
		}
		if got := stats.Spins.Load() == 1; got != tt.want {
			t.Errorf("with %d others parked it spun: %t, want %t", tt.parked, got, tt.want)
		}
	}
}

// In a bubble, where time stands still while anybody runs, a waiter does not wait for its time to be up.
func TestSpinInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const enough = 1_000_000
		looks := 0
		var stats Stats
		var sleeps atomic.Uint32
		var w waiter
		w.init(&sleeps, 50*time.Microsecond, nil, func() bool {
			looks++
			return looks == enough
		})
		w.spinner.credit = spinCredit
		if w.spin(&stats) || looks == enough {
			t.Errorf("a waiter looked %d times while the clock stood still", looks)
		}
	})
}
