package host

import (
	"sync"
	"time"
)

// A sweeper gives back the buffer pages of connections that have gone quiet. It runs only
// while some connection has written since its pages were last given back: a host with ten
// thousand idle connections sleeps.
type sweeper struct {
	host  *Host
	mu    sync.Mutex
	timer *time.Timer
	armed bool
	off   bool
}

// wake makes sure that the sweeper runs. It is called when a clean connection is written to.
func (s *sweeper) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed || s.off {
		return
	}
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(s.host.cfg.SweepEvery, s.sweep)
	} else {
		s.timer.Reset(s.host.cfg.SweepEvery)
	}
}

// reset gives back its timer, which a later one takes the place of.
func (s *sweeper) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer, s.armed = nil, false
}

// stop ends it for good.
func (s *sweeper) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (s *sweeper) sweep() {
	s.mu.Lock()
	s.armed = false // before looking: a write from now on arms it again
	s.mu.Unlock()
	if s.host.sweep() {
		s.wake()
	}
}

// sweep looks at every connection once, and reports whether there is more to come.
func (h *Host) sweep() (again bool) {
	h.mu.Lock()
	conns := make([]*Conn, 0, len(h.conns))
	for c := range h.conns {
		if c.data != nil {
			conns = append(conns, c)
		}
	}
	h.mu.Unlock()
	for _, c := range conns {
		again = c.sweep() || again
	}
	return again
}

// sweep publishes how far the connection has been read, gives pages back if it has been
// quiet since the last sweep, and reports whether some are left to be given back.
func (c *Conn) sweep() (dirty bool) {
	c.mu.Lock() // keeps the buffers where they are
	defer c.mu.Unlock()
	if !c.holds || !c.sends {
		return false
	}
	c.data.SayRead()
	idle, dirty := c.data.Idle()
	if !idle || !dirty {
		c.unreadSweeps = 0
		return dirty
	}
	if _, unread := c.data.Queues(); unread > 0 && c.unreadSweeps < maxUnreadSweeps {
		c.unreadSweeps++ // the peer may have read it all, and say so in its own next sweep
		return true
	}
	c.unreadSweeps = 0
	if err := c.data.ReturnPages(c.binding.ReturnPages); err != nil {
		c.host.cfg.Logger.Debug("pages not given back", "err", err)
	}
	_, dirty = c.data.Idle() // still, if the peer has not read everything
	return dirty
}
