package smcr

import (
	"net/netip"
	"sync"
	"time"
)

// filteredPeers remembers the peers to which RDMA did not get through, so that not each connection
// with them waits for a link that does not come, and programs that dial with little patience have
// TCP. It is for both roles, as either end may live for one connection only. The zero value is
// ready.
type filteredPeers struct {
	mu   sync.Mutex
	list map[netip.Addr]filteredPeer
}

type filteredPeer struct {
	until time.Time
	pause time.Duration // before until
}

// note takes that no link to a peer came about in some time, though TCP worked. Each time in a row
// it is remembered for longer.
func (f *filteredPeers) note(peer netip.Addr, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.list[peer]
	switch {
	case ok && now.Before(p.until):
		return // of connections that began together
	case !ok && len(f.list) >= maxFilteredPeers:
		for addr, p := range f.list {
			if !now.Before(p.until) {
				delete(f.list, addr)
			}
		}
		if len(f.list) >= maxFilteredPeers {
			return
		}
	}
	if p.pause = min(2*p.pause, maxFilteredPause); p.pause == 0 {
		p.pause = minFilteredPause
	}
	p.until = now.Add(p.pause)
	if f.list == nil {
		f.list = make(map[netip.Addr]filteredPeer)
	}
	f.list[peer] = p
}

// is reports whether a link to a peer is not worth a try now.
func (f *filteredPeers) is(peer netip.Addr, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Before(f.list[peer].until)
}

// forget takes that a link has come about.
func (f *filteredPeers) forget(peer netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.list, peer)
}
