package smcr

import "time"

// SetQuiet implements [transport.Binding]: it has the link of a connection tested when it was
// silent for some time.
func (c *binding) SetQuiet(d time.Duration) {
	g := c.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctl != nil && c.quiet != d {
		c.quiet = d
		g.doLocked(g.conns.updateTests)
	}
}
