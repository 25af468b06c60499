package conn

import (
	"sync"
	"time"
)

// A Sweeper gives back the buffer pages of connections that have gone quiet. It runs only
// while some connection has written since its pages were last given back: a host with ten
// thousand idle connections sleeps.
type Sweeper struct {
	every time.Duration
	conns func() []Conn
	mu    sync.Mutex
	timer *time.Timer
	armed bool
	off   bool
}

// NewSweeper returns one that looks at the connections that conns returns, in intervals of every.
func NewSweeper(every time.Duration, conns func() []Conn) *Sweeper {
	return &Sweeper{every: every, conns: conns}
}

// Wake makes sure that the sweeper runs. It is called when a clean connection is written to.
func (s *Sweeper) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed || s.off {
		return
	}
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(s.every, s.sweep)
	} else {
		s.timer.Reset(s.every)
	}
}

// Reset gives back its timer, which a later one takes the place of.
func (s *Sweeper) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer, s.armed = nil, false
}

// Stop ends it for good.
func (s *Sweeper) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (s *Sweeper) sweep() {
	s.mu.Lock()
	s.armed = false // before looking: a write from now on arms it again
	s.mu.Unlock()
	again := false
	for _, c := range s.conns() {
		again = c.Sweep() || again
	}
	if again {
		s.Wake()
	}
}

// Sweep implements [Conn].
func (l *life) Sweep() (dirty bool) {
	l.mu.Lock() // keeps the buffers where they are
	defer l.mu.Unlock()
	if !l.holds || !l.sends {
		return false
	}
	l.data.SayRead()
	idle, dirty := l.data.Idle()
	if !idle || !dirty {
		l.unreadSweeps = 0
		return dirty
	}
	if _, unread := l.data.Queues(); unread > 0 && l.unreadSweeps < maxUnreadSweeps {
		l.unreadSweeps++ // the peer may have read it all, and say so in its own next sweep
		return true
	}
	l.unreadSweeps = 0
	if err := l.data.ReturnPages(l.binding.ReturnPages); err != nil {
		l.env.Logger.Debug("pages not given back", "err", err)
	}
	_, dirty = l.data.Idle() // still, if the peer has not read everything
	return dirty
}
