package smcr

import (
	"sync"

	"github.com/gosmc/smc/internal/core"
)

// newOwner names a connection to core. g.mu is held.
func (g *group) newOwner(c *binding) core.Owner {
	g.forgetFreed()
	g.lastOwner++
	g.owners[g.lastOwner] = c
	return g.lastOwner
}

// releaseElement ends the use of an element of the peer.
func (g *group) releaseElement(o core.Owner) {
	g.mu.Lock()
	g.forgetOwner(o)
	g.mu.Unlock()
	if g.full.Load() {
		g.noteRoom()
	}
}

// forgetOwner is releaseElement with g.mu held.
func (g *group) forgetOwner(o core.Owner) {
	delete(g.owners, o)
	if !g.gone {
		g.ctl.ReleaseElement(o)
	}
}

// freedOwners are connections that have closed and have nothing more on its way. They come with locks held that come after the group's,
// and wait until somebody has that.
type freedOwners struct {
	sync.Mutex
	list []core.Owner
}

func (f *freedOwners) add(o core.Owner) {
	if o == 0 {
		return
	}
	f.Lock()
	f.list = append(f.list, o)
	f.Unlock()
}

func (f *freedOwners) any() bool {
	f.Lock()
	defer f.Unlock()
	return len(f.list) > 0
}

// forgetFreed ends their use of elements. g.mu is held.
func (g *group) forgetFreed() {
	g.freed.Lock()
	list := g.freed.list
	g.freed.list = nil
	g.freed.Unlock()
	for _, o := range list {
		g.forgetOwner(o)
	}
}
