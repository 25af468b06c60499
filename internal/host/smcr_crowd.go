package host

import (
	"context"
	"net"
	"sync"
	"time"
)

// A crowd is the handshakes with clients of other machines that a listener has under way. A client that expects CLC
// cannot be refused without a word, so when there is room for no more, the one that has been at it for longest has to go: a
// handshake takes milliseconds, and who holds the places for longer keeps others out.
type crowd struct {
	mu   sync.Mutex
	list []*crowdMember // oldest first
}

type crowdMember struct {
	since  time.Time
	cancel context.CancelFunc
}

// enter adds a handshake. It ends with ctx, which may end early; the caller calls leave.
func (c *crowd) enter(ctx context.Context) (_ context.Context, leave func()) {
	m := &crowdMember{since: time.Now()}
	ctx, m.cancel = context.WithCancel(ctx)
	c.mu.Lock()
	c.list = append(c.list, m)
	c.mu.Unlock()
	return ctx, func() {
		m.cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, x := range c.list {
			if x == m {
				c.list = append(c.list[:i], c.list[i+1:]...)
				return
			}
		}
	}
}

// evict ends the oldest handshake, if it has had its time.
func (c *crowd) evict() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) > 0 && time.Since(c.list[0].since) >= crowdTime {
		c.list[0].cancel()
	}
}

// serveCLC begins a handshake with a client of another machine that awaits our word. It waits for room.
func (l *Listener) serveCLC(tcp *net.TCPConn) {
	select {
	case l.busy <- struct{}{}:
	default:
		tick := time.NewTicker(crowdTick)
		defer tick.Stop()
		for room := false; !room; {
			l.crowd.evict()
			select {
			case l.busy <- struct{}{}:
				room = true
			case <-tick.C:
			case <-l.ctx.Done():
				tcp.Close()
				l.settled()
				return
			}
		}
	}
	l.working.Add(1)
	go l.serve(tcp, func(ctx context.Context, c *Conn, buffer int, require Requirement) error {
		ctx, leave := l.crowd.enter(ctx)
		defer leave()
		return l.host.acceptSMCR(ctx, c, buffer, require)
	})
}
