package smcr

import (
	"time"

	"github.com/gosmc/smc/internal/llcflow"
)

// A controlTimer tells llcflow the time when llcflow wants to know it. The group's mu guards it.
type controlTimer struct {
	group *group
	timer *time.Timer // nil before it was needed
}

// set has llcflow told at a time. g.mu is held.
func (t *controlTimer) set(at time.Time) {
	wait := time.Until(at)
	if t.timer == nil {
		t.timer = time.AfterFunc(wait, t.expired)
	} else {
		t.timer.Reset(wait)
	}
}

// stop has llcflow told at no time. g.mu is held.
func (t *controlTimer) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// expired tells llcflow the time, and on which links anything has come.
func (t *controlTimer) expired() {
	g := t.group
	g.do(func(now time.Time, out []llcflow.Output) []llcflow.Output {
		if g.end.gone {
			return out
		}
		g.links.hear(now)
		return g.ctl.Advance(now, out)
	})
}
