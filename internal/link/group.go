package link

import (
	"crypto/rand"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// A Group is the state that the links of one link group share. Its methods may be called by several
// goroutines.
type Group struct {
	news     chan struct{}
	limitMTU atomic.Uint32 // a wire.MTU; 0: the device's

	overtaken overtaken // messages: see overtaken.go

	tokenMu sync.RWMutex
	tokens  map[wire.AlertToken]*Carrier

	// mu guards the following fields, and the regions of memories. It is taken with no other lock
	// of this package held but a Carrier's.
	mu       sync.Mutex
	closed   bool
	links    []*Link
	memories []*memory
	rings    []*memory             // of memories: send rings that nobody uses, oldest first
	attached map[*Carrier]struct{} // those that have a send ring
	slow     lookers               // connections that have moved: see silent.go
	quick    lookers               // those whose peers hold back
	events   []Event
}

// An EventKind is the kind of news in an [Event].
type EventKind uint8

// All kinds of events.
const (
	EventLLC    EventKind = iota + 1 // a message came that is not CDC
	EventSent                        // the message with Tag has reached the peer's device
	EventFailed                      // the link has failed, or its owner has called Fail
	EventLeft                        // no connection writes over the link any more: see [Link.Leave]
)

var eventNames = [...]string{EventLLC: "LLC", EventSent: "sent", EventFailed: "failed", EventLeft: "left"}

// String returns "LLC" and so on.
func (k EventKind) String() string { return eventNames[k] }

// An Event is news of a link, for the group's owner.
type Event struct {
	Kind    EventKind
	Link    *Link
	Message []byte // of EventLLC: not parsed, the receiver's own
	Tag     uint64 // of EventSent
	Err     error  // of EventFailed
}

// NewGroup makes a group without links.
func NewGroup() *Group {
	return &Group{
		news: make(chan struct{}, 1), tokens: make(map[wire.AlertToken]*Carrier), attached: make(map[*Carrier]struct{}),
		slow: lookers{pace: slowPace}, quick: lookers{pace: quickPace},
	}
}

// News returns a channel that has a value if something has happened since the last one was taken
// out of it. Take the value, then call [Group.Poll] until there is nothing.
func (g *Group) News() <-chan struct{} { return g.news }

// LimitMTU has links use packets of at most that path MTU, whatever their devices can send. It is
// called before the peer is told of any.
func (g *Group) LimitMTU(m wire.MTU) { g.limitMTU.Store(uint32(m)) }

// Poll returns the oldest event, and false if there is none. The events of one link are in order,
// EventFailed comes last, but for EventLeft, and is never left out.
func (g *Group) Poll() (Event, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.events) == 0 {
		return Event{}, false
	}
	e := g.events[0]
	g.events[0] = Event{}
	if g.events = g.events[1:]; len(g.events) == 0 {
		g.events = nil
	}
	if e.Kind == EventLLC {
		e.Link.unpolled--
	}
	return e, true
}

// tell adds an event. It reports false if that is one LLC message too many.
func (g *Group) tell(e Event) bool {
	g.mu.Lock()
	if e.Kind == EventLLC {
		if e.Link.unpolled >= maxLLCQueue {
			g.mu.Unlock()
			return false
		}
		e.Link.unpolled++
	}
	g.events = append(g.events, e)
	g.mu.Unlock()
	select {
	case g.news <- struct{}{}:
	default:
	}
	return true
}

// Close closes all links, and frees all but the RMBs that the owner has not freed yet. Carriers
// have to be released first, or are so by this: bytes that have arrived can still be read, nothing
// can be sent.
func (g *Group) Close() {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return
	}
	g.closed = true
	g.slow.stop()
	g.quick.stop()
	links := slices.Clone(g.links)
	g.mu.Unlock()
	for _, l := range links {
		l.Close()
	}
	g.mu.Lock()
	rings := g.rings
	g.rings = nil
	g.mu.Unlock()
	for _, ring := range rings {
		g.freeMemory(ring)
	}
	g.tokenMu.Lock()
	clear(g.tokens)
	g.tokenMu.Unlock()
}

// addToken gives c a token that nobody can guess and no other connection of the group has: RFC 7609 p.10.
func (g *Group) addToken(c *Carrier) error {
	g.tokenMu.Lock()
	defer g.tokenMu.Unlock()
	if len(g.tokens) >= maxTokens {
		return ErrTooMany
	}
	for c.token == 0 || g.tokens[c.token] != nil {
		var b [4]byte
		rand.Read(b[:]) // never fails
		c.token = wire.AlertToken(binary.BigEndian.Uint32(b[:]))
	}
	g.tokens[c.token] = c
	return nil
}

// carrier returns the one with a token, nil if there is none.
func (g *Group) carrier(t wire.AlertToken) *Carrier {
	g.tokenMu.RLock()
	c := g.tokens[t]
	g.tokenMu.RUnlock()
	return c
}

func (g *Group) dropToken(c *Carrier) {
	g.tokenMu.Lock()
	if g.tokens[c.token] == c {
		delete(g.tokens, c.token)
	}
	g.tokenMu.Unlock()
}

// carriers returns all that have a token.
func (g *Group) carriers() []*Carrier {
	g.tokenMu.RLock()
	defer g.tokenMu.RUnlock()
	all := make([]*Carrier, 0, len(g.tokens))
	for _, c := range g.tokens {
		all = append(all, c)
	}
	return all
}

// attach and forget keep which carriers have a send ring.
func (g *Group) attach(c *Carrier) {
	g.mu.Lock()
	g.attached[c] = struct{}{}
	g.mu.Unlock()
}

func (g *Group) forget(c *Carrier) {
	g.mu.Lock()
	delete(g.attached, c)
	g.mu.Unlock()
}

// survives reports whether there is a link to which connections of a failed one can move.
func (g *Group) survives(failed *Link) bool {
	g.mu.Lock()
	links, closed := slices.Clone(g.links), g.closed
	g.mu.Unlock()
	return !closed && slices.ContainsFunc(links, func(l *Link) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l != failed && l.ready && !l.gone
	})
}

// giveUp ends the pending sends of carriers when the last link has failed.
func (g *Group) giveUp() {
	g.mu.Lock()
	all := slices.Collect(maps.Keys(g.attached))
	g.mu.Unlock()
	for _, c := range all {
		c.mu.Lock()
		c.drained()
		c.mu.Unlock()
	}
}

// getRing returns a send ring of a size, from the idle ones if it can.
func (g *Group) getRing(size int) (*memory, error) {
	g.mu.Lock()
	for i, ring := range slices.Backward(g.rings) {
		if len(ring.bytes) == size {
			g.rings = slices.Delete(g.rings, i, i+1)
			g.mu.Unlock()
			return ring, nil
		}
	}
	g.mu.Unlock()
	return g.newMemory(size, verbs.Access(0))
}

// putRing takes back a send ring that no work names any more.
func (g *Group) putRing(ring *memory) {
	g.mu.Lock()
	var surplus []*memory
	if g.closed {
		surplus = append(surplus, ring)
	} else {
		g.rings = append(g.rings, ring)
		total := 0
		for i, r := range slices.Backward(g.rings) {
			if total += min(len(r.bytes), keptBytes); total > maxIdleRings {
				surplus = slices.Clone(g.rings[:i+1])
				g.rings = slices.Delete(g.rings, 0, i+1)
				break
			}
		}
	}
	g.mu.Unlock()
	for _, r := range surplus {
		g.freeMemory(r)
	}
}

// region returns a memory's region at a link.
func (g *Group) region(m *memory, l *Link) verbs.MR {
	g.mu.Lock()
	defer g.mu.Unlock()
	return m.region(l)
}

// placed returns how many bytes the peer has placed in a memory, and false if nobody knows.
func (g *Group) placed(m *memory) (n uint64, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return m.placed()
}
