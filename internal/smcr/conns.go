package smcr

import (
	"sync"
	"time"

	"github.com/gosmc/smc/internal/llcflow"
)

// groupConns are the connections of a link group, each from when it is to have an element of the
// peer until nothing of it is on its way any more. The group's mu guards them, but for freed.
type groupConns struct {
	group *group
	all   map[llcflow.Owner]*binding
	last  llcflow.Owner // that was given to a connection
	freed freedOwners
}

// add names a connection to core. g.mu is held.
func (s *groupConns) add(c *binding) llcflow.Owner {
	s.forgetFreed()
	s.last++
	s.all[s.last] = c
	return s.last
}

// release ends the use of an element of the peer.
func (s *groupConns) release(o llcflow.Owner) {
	g := s.group
	g.mu.Lock()
	s.forget(o)
	g.mu.Unlock()
	g.room.check()
}

// forget is release with g.mu held, and leaves the table as it is.
func (s *groupConns) forget(o llcflow.Owner) {
	delete(s.all, o)
	if !s.group.end.gone {
		s.group.ctl.ReleaseElement(o)
	}
}

// forgetFreed ends the use of the elements of freed owners. g.mu is held.
func (s *groupConns) forgetFreed() {
	for _, o := range s.freed.take() {
		s.forget(o)
	}
}

// on counts the connections that write over a link. g.mu is held.
func (s *groupConns) on(l *groupLink) (n int) {
	for _, c := range s.all {
		if c.link != nil && !c.detached && c.link.Link() == l.net {
			n++
		}
	}
	return n
}

// elementLost tells a connection that the peer has given its element to another one. One that has
// closed has said all, or could not have been told apart from the next one with its element. g.mu
// is held.
func (s *groupConns) elementLost(out llcflow.ElementLost) {
	if c := s.all[out.Owner]; c != nil && !c.detached { // rule: internal/host TestSMCRChurn
		s.group.loop.afterwards(c.lost)
	}
}

// updateTests has links tested after the shortest time for which a connection, or else the host,
// lets them be silent. g.mu is held.
func (s *groupConns) updateTests(_ time.Time, out []llcflow.Output) []llcflow.Output {
	g := s.group
	if g.end.gone {
		return out
	}
	d := g.fabric.cfg.KeepAlive
	if d == 0 {
		d = llcflow.TestLinkInterval
	}
	for _, c := range s.all {
		if c.quiet > 0 && (d < 0 || c.quiet < d) { // rule: TestQuiet
			d = c.quiet
		}
	}
	return g.ctl.SetTestInterval(d, out)
}

// freedOwners are connections that have closed and have nothing more on its way. They are added
// with locks held that come after the group's, and wait until somebody has that one. Its own lock
// is the last one.
type freedOwners struct {
	mu   sync.Mutex
	list []llcflow.Owner
}

// add adds an owner; 0 is none.
func (f *freedOwners) add(o llcflow.Owner) {
	if o == 0 {
		return
	}
	f.mu.Lock()
	f.list = append(f.list, o)
	f.mu.Unlock()
}

func (f *freedOwners) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.list) > 0
}

// take returns all owners and forgets them.
func (f *freedOwners) take() []llcflow.Owner {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.list
	f.list = nil
	return list
}
