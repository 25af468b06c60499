package link

import (
	"os"
	"slices"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// An RMB is a remote memory buffer, which the peer of a group writes to. It has one element, whose
// index is 1, as with Linux net/smc. It is registered with every link of its group, each with a
// token of its own.
//
// The owner sees to it that it serves one [Carrier] at a time, and that it is cleared in between.
type RMB struct {
	group *Group
	code  wire.SizeCode
	mem   *memory

	touched int // bytes at the beginning that may not be zero, as the last Carrier knows
}

// An RMBToken has the values with which a peer writes to an RMB over one link: RFC 7609 p.14.
type RMBToken struct {
	RKey wire.RKey
	Addr uint64 // virtual address of the first byte, which says nothing of this process
}

// NewRMB makes an RMB of a size, with zeroes in it.
func (g *Group) NewRMB(code wire.SizeCode) (*RMB, error) {
	mem, err := g.newMemory(code.Bytes(), verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		return nil, err
	}
	return &RMB{group: g, code: code, mem: mem, touched: code.Bytes()}, nil
}

// Bytes returns the memory. It may be used until [RMB.Free].
func (r *RMB) Bytes() []byte { return r.mem.bytes }

// Size returns the size of the element.
func (r *RMB) Size() wire.SizeCode { return r.code }

// Token returns the token for a link, and false if the link is none of the group's, or closed, or
// the RMB is freed.
func (r *RMB) Token(l *Link) (RMBToken, bool) {
	r.group.mu.Lock()
	defer r.group.mu.Unlock()
	mr := r.mem.region(l)
	if mr == nil {
		return RMBToken{}, false
	}
	return RMBToken{RKey: mr.RKey(), Addr: mr.Addr()}, true
}

// Clear makes it zero for the next connection, and gives its pages back but for a few: "the RMBE
// must be cleared before it is reused". A Carrier that had it has to be released first.
func (r *RMB) Clear() {
	all := r.mem.bytes
	if r.touched <= keptBytes {
		clear(all[:r.touched])
	} else if r.mem.giveBack(0, roundUp(len(all), os.Getpagesize())) != nil {
		clear(all)
	}
	r.touched = len(all) // until the next Carrier has said how many
}

// Free ends it. A peer that still writes to it gets a NAK, which ends the link. No Carrier may have
// it. To be called once; also after [Group.Close].
func (r *RMB) Free() { r.group.freeMemory(r.mem) }

// setGuard has the WRITEs of peers obey g, over all present and future links. nil ends that.
func (r *RMB) setGuard(g *verbs.Guard) {
	r.group.mu.Lock()
	r.mem.setGuard(g)
	r.group.mu.Unlock()
}

// newMemory maps memory and registers it with all links.
func (g *Group) newMemory(size int, access verbs.Access) (*memory, error) {
	m, err := mapMemory(size, access)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		m.unmap(m.regions)
		return nil, ErrClosed
	}
	for _, l := range g.links {
		if err := m.register(l); err != nil {
			m.unmap(m.regions)
			return nil, err
		}
	}
	g.memories = append(g.memories, m)
	return m, nil
}

// freeMemory ends a memory of the group. Another goroutine may be asking for its region at a link
// meanwhile.
func (g *Group) freeMemory(m *memory) {
	g.mu.Lock()
	if i := slices.Index(g.memories, m); i >= 0 {
		g.memories = slices.Delete(g.memories, i, i+1)
	}
	regions := m.regions
	m.regions = nil // rule: TestTokenOfFreed: m.regions = nil -> _ = m
	g.mu.Unlock()
	m.unmap(regions)
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
