package host

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
)

// A crowd is the handshakes with clients of other machines that a listener has under way. A client that expects CLC needs an answer, so it cannot
// be dropped silently. If there is no room for another client, a handshake ends: the oldest one of the peer that has the most. So a peer that
// holds many places takes none from others, whose clients may have to wait for their turns (see turns.go).
type crowd struct {
	mu   sync.Mutex
	list []*crowdMember // oldest first
}

type crowdMember struct {
	peer   netip.Addr
	since  time.Time
	cancel context.CancelFunc
}

// enter adds a handshake with a peer. It ends with ctx, which may end early; the caller calls leave.
func (c *crowd) enter(ctx context.Context, peer netip.Addr) (_ context.Context, leave func()) {
	m := &crowdMember{peer: peer, since: time.Now()}
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

// evict ends a handshake that has had its time.
func (c *crowd) evict(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := make(map[netip.Addr]int)
	for _, m := range c.list {
		of[m.peer]++
	}
	var victim *crowdMember
	for _, m := range c.list {
		if now.Sub(m.since) >= crowdTime && (victim == nil || of[m.peer] > of[victim.peer]) { // rule: TestCrowd: of[m.peer] > of[victim.peer] -> false
			victim = m
		}
	}
	if victim != nil {
		victim.cancel()
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
			l.crowd.evict(time.Now())
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
	go l.serve(tcp, func(ctx context.Context, c *conn.Pending, buffer int, require conn.Requirement) (conn.Conn, error) {
		ctx, leave := l.crowd.enter(ctx, addrOf(c.RemoteAddr()).Unmap())
		defer leave()
		return l.host.shakeNetworks(ctx, core.RoleServer, c, buffer, require)
	})
}
