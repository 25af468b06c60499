package paired

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/gosmc/smc/internal/ism"
)

// known remembers which processes have accepted connections to an address. The addresses of a service
// may lead to several.
type known struct {
	mu    sync.Mutex
	dests map[netip.AddrPort][]*ism.Peer
}

// at returns the processes at an address. full means that there may be more.
func (k *known) at(dest netip.AddrPort) (peers []*ism.Peer, full bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.dests[dest] {
		if p.Err() == nil {
			peers = append(peers, p)
		}
	}
	return peers, len(peers) >= maxKnown
}

// add remembers that a process has accepted a connection. The one that was longest there makes room.
func (k *known) add(dest netip.AddrPort, p *ism.Peer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := k.dests[dest]
	if slices.Contains(list, p) {
		return
	}
	if k.dests == nil || len(list) == 0 && len(k.dests) >= maxDests {
		k.dests = make(map[netip.AddrPort][]*ism.Peer)
	}
	if len(list) == maxKnown {
		list = list[1:]
	}
	k.dests[dest] = append(slices.Clip(list), p)
}

// drop forgets that a process accepts connections to an address.
func (k *known) drop(dest netip.AddrPort, p *ism.Peer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropLocked(dest, p)
}

func (k *known) dropLocked(dest netip.AddrPort, p *ism.Peer) {
	list := slices.DeleteFunc(slices.Clone(k.dests[dest]), func(q *ism.Peer) bool { return p == q })
	if len(list) == 0 {
		delete(k.dests, dest)
	} else {
		k.dests[dest] = list
	}
}

// forget forgets a process.
func (k *known) forget(p *ism.Peer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for dest, list := range k.dests {
		if slices.Contains(list, p) {
			k.dropLocked(dest, p)
		}
	}
}

func isCongested(err error) bool { return errors.Is(err, ism.ErrCongested) }
