package stream

import (
	"sync"
	"sync/atomic"
	"time"
)

// A deadline sets stExpired in the state of its half when the time has come, so that the
// fast path needs no clock.
type deadline struct {
	mu    sync.Mutex
	at    time.Time // zero: none
	timer *time.Timer
	state *atomic.Uint32
	half  *waiter

	urgent *urgent // nil for the writing half
}

func (d *deadline) init(state *atomic.Uint32, half *waiter) {
	d.state, d.half = state, half
}

// set replaces the deadline; the zero time removes it.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = t
	if t.IsZero() {
		d.state.And(^uint32(stExpired))
		if d.timer != nil {
			d.timer.Stop()
		}
		return
	}
	if d.expireLocked() {
		return
	}
	d.state.And(^uint32(stExpired))
	if d.timer == nil {
		d.timer = time.AfterFunc(time.Until(t), d.fire)
	} else {
		d.timer.Reset(time.Until(t))
	}
}

// fire runs when a timer pops, perhaps one that was set for an earlier deadline.
func (d *deadline) fire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && !d.expireLocked() {
		d.timer.Reset(time.Until(d.at))
	}
}

// expireLocked marks the half expired if the deadline has passed.
func (d *deadline) expireLocked() bool {
	if time.Until(d.at) > 0 {
		return false
	}
	d.state.Or(stExpired)
	d.half.wake()
	if d.urgent != nil {
		d.urgent.signal()
	}
	return true
}
