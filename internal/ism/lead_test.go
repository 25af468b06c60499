package ism

import (
	"sync/atomic"
	"testing"
)

// A leading is a goroutine that is parked, and leads if it may until it is woken.
type leading struct {
	asked, woken atomic.Bool   // asked: it has led
	done         chan struct{} // closed when it does not, or not any more
}

func lead(b *bell) *leading {
	l := &leading{done: make(chan struct{})}
	b.parked.Add(1)
	go func() {
		defer close(l.done)
		b.leadUntil(func() bool { l.asked.Store(true); return l.woken.Load() })
	}()
	return l
}

// wake ends it.
func (l *leading) wake(t *testing.T, b *bell) {
	t.Helper()
	l.woken.Store(true)
	b.parked.Add(-1)
	b.interrupt()
	await(t, "end of the wait", l.done)
}

// A goroutine that waits alone leads. Where several wait the bell goroutine does, until none has
// had company for a while.
func TestLeadOfACrowd(t *testing.T) {
	b, r := newLocalBell(t)
	rung := make(chan struct{}, 1)
	b.setUser(7, &DMB{ring: func() { rung <- struct{}{} }})
	ring := func(what string) {
		t.Helper()
		r.ring(7)
		await(t, what, rung)
	}
	// leader has one lead. The bell goroutine gives up the lead when nobody is parked, and may take it again before the
	// one that is parked next comes.
	leader := func() *leading {
		t.Helper()
		for {
			b.shared.Store(true)
			b.interrupt()
			eventually(t, "the bell goroutine to give up the lead", func() bool { return !b.lead.Load() })
			l := lead(b)
			eventually(t, "leading or not", func() bool {
				select {
				case <-l.done:
					return true
				default:
					return l.asked.Load()
				}
			})
			if l.asked.Load() {
				return l
			}
			l.wake(t, b)
		}
	}
	follower := func(what string) *leading {
		t.Helper()
		l := lead(b)
		await(t, what+" to be told that the bell goroutine leads", l.done)
		if l.asked.Load() {
			t.Fatalf("%s has led, want the bell goroutine to", what)
		}
		return l
	}

	alone := leader()
	ring("ring with a leader")
	second := follower("a second one")
	ring("ring with two parked")
	alone.wake(t, b)
	ring("ring after the leader has left")
	second.wake(t, b)
	for range 3 { // else it would give up the lead after the first
		ring("ring with nobody parked after a crowd")
	}

	// Company was there a moment ago: a goroutine that comes now does not take the lead, not even
	// alone.
	follower("alone after a crowd").wake(t, b)
	ring("ring for the bell goroutine")

	b.crowded.Add(-int64(2 * crowdTime)) // time goes by
	alone = leader()
	ring("ring with a leader again")
	alone.wake(t, b)
}
