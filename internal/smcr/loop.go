package smcr

import (
	"time"

	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/wire/llc"
)

// A groupLoop is the goroutine of a link group, from when its first contact begins until the links
// are gone. It hands LLC messages to llcflow, and tells connections of the events of the group. Other
// goroutines call llcflow too, with the group's mu held; they leave work that would need a lock of a
// connection to the goroutine.
type groupLoop struct {
	group   *group
	kick    chan struct{} // there is something in later
	stopped chan struct{} // closed when the goroutine has ended
	later   []func()      // for the goroutine; the group's mu guards it
}

func (p *groupLoop) init(g *group) {
	p.group, p.kick, p.stopped = g, make(chan struct{}, 1), make(chan struct{})
}

// afterwards has the goroutine do something. g.mu is held.
func (p *groupLoop) afterwards(f func()) {
	p.later = append(p.later, f)
	p.wake()
}

// wake has the goroutine look whether there is something to do. It does not block.
func (p *groupLoop) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// run is the goroutine.
func (p *groupLoop) run() {
	g := p.group
	defer close(p.stopped)
	for {
		select {
		case <-g.net.News():
		case <-p.kick:
		}
		for ev, ok := g.net.Poll(); ok; ev, ok = g.net.Poll() {
			p.linkEvent(ev)
		}
		g.mu.Lock()
		later, gone := p.later, g.end.gone
		p.later = nil
		g.mu.Unlock()
		for _, f := range later {
			f()
		}
		g.room.check()
		if gone {
			g.end.tearDown()
			return
		}
	}
}

// linkEvent hands news of a link to core.
func (p *groupLoop) linkEvent(ev link.Event) {
	g := p.group
	heard := false
	routes := g.opener.routesNamed(ev)
	g.do(func(now time.Time, out []llcflow.Output) []llcflow.Output {
		if g.end.gone {
			return out
		}
		l := g.links.of(ev.Link)
		if l == nil {
			return out // it was closed
		}
		switch ev.Kind {
		case link.EventLLC:
			heard = true
			l.trace(ev.Message, false)
			m, err := llc.Parse(ev.Message)
			if routes != nil {
				g.ctl.SetRoutes(routes)
			}
			return g.ctl.HandleMessage(now, l.num, m, err, out)
		case link.EventSent:
			return g.ctl.Sent(now, llcflow.Tag(ev.Tag), out)
		case link.EventFailed:
			return g.ctl.LinkFailed(now, l.num, ev.Err, out)
		case link.EventLeft:
			l.left = l.up
			return g.ctl.LinkLeft(now, l.num, out)
		}
		return out
	})
	if heard {
		g.peer.answered()
	}
}
