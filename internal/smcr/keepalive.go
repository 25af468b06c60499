package smcr

import (
	"time"

	"github.com/gosmc/smc/internal/core"
)

// SetQuiet implements [transport.Binding]: it has the link of a connection tested when it was silent for some time.
func (c *binding) SetQuiet(d time.Duration) {
	g := c.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctl != nil && c.quiet != d {
		c.quiet = d
		g.doLocked(g.updateTests)
	}
}

// updateTests has links asked as soon as any of the connections wants. g.mu is held.
func (g *group) updateTests(_ time.Time, out []core.Output) []core.Output {
	if g.gone {
		return out
	}
	d := g.fabric.cfg.KeepAlive
	if d == 0 {
		d = core.TestLinkInterval
	}
	for _, c := range g.owners {
		if c.quiet > 0 && (d < 0 || c.quiet < d) { // rule: TestQuiet
			d = c.quiet
		}
	}
	return g.ctl.SetTestInterval(d, out)
}
