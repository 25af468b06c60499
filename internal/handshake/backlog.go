package handshake

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// A Backlog holds the handshakes of one listener with clients of other machines. Such a client
// expects CLC and needs an answer, so the listener cannot drop it silently. If there is no room for
// another client, a handshake ends: the oldest one of the peer with the most handshakes. So a peer
// that holds many places takes none from others. Their clients may have to wait for their turns
// (see turns.go). The zero value is empty.
type Backlog struct {
	mu   sync.Mutex
	list []*pending // oldest first
}

// A pending is one handshake under way.
type pending struct {
	peer   netip.Addr
	since  time.Time
	cancel context.CancelFunc
}

// Add adds a handshake with a peer. The handshake ends with the context that Add returns, which may
// end early. The caller calls remove when it is over.
func (b *Backlog) Add(ctx context.Context, peer netip.Addr) (_ context.Context, remove func()) {
	m := &pending{peer: peer, since: time.Now()}
	ctx, m.cancel = context.WithCancel(ctx)
	b.mu.Lock()
	b.list = append(b.list, m)
	b.mu.Unlock()
	return ctx, func() {
		m.cancel()
		b.mu.Lock()
		defer b.mu.Unlock()
		for i, x := range b.list {
			if x == m {
				b.list = append(b.list[:i], b.list[i+1:]...)
				return
			}
		}
	}
}

// Evict ends a handshake that has had its time.
func (b *Backlog) Evict(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := make(map[netip.Addr]int)
	for _, m := range b.list {
		of[m.peer]++
	}
	var victim *pending
	for _, m := range b.list {
		if now.Sub(m.since) >= evictAfter && (victim == nil || of[m.peer] > of[victim.peer]) { // rule: TestBacklog: of[m.peer] > of[victim.peer] -> false
			victim = m
		}
	}
	if victim != nil {
		victim.cancel()
	}
}
