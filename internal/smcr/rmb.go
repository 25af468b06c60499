package smcr

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// An ownRMB is one of our RMBs.
type ownRMB struct {
	rmb   *link.RMB
	id    llcflow.RMBID
	known bool // to the peer

	answered chan clc.Diagnosis // has the peer's answer to CONFIRM RKEY; DiagNone: it knows the RMB
}

// An rmbPool has a link group's RMBs: those in use, those that wait for another connection, and
// those that the peer may still write to, which are never used again. The group's mu guards it. No
// lock is held while it waits for the peer, or for memory.
type rmbPool struct {
	group  *group
	last   llcflow.RMBID
	all    map[llcflow.RMBID]*ownRMB // that the pool frees when the group ends: all but those in use
	every  map[llcflow.RMBID]*ownRMB // that is not freed
	free   map[wire.SizeCode][]*ownRMB
	asked  map[llcflow.RMBID]*ownRMB
	kept   int   // bytes in free
	count  int   // of RMBs that are not freed
	bytes  int64 // of these
	closed bool  // the group is ending
}

func (p *rmbPool) init(g *group) {
	p.group = g
	p.every = make(map[llcflow.RMBID]*ownRMB)
	p.all, p.free, p.asked = make(map[llcflow.RMBID]*ownRMB), make(map[wire.SizeCode][]*ownRMB), make(map[llcflow.RMBID]*ownRMB)
}

// take returns an RMB of the size, which the peer knows: one that was used before, or a new one. For
// a first contact the CLC messages announce it.
func (p *rmbPool) take(ctx context.Context, size wire.SizeCode) (*ownRMB, error) {
	g := p.group
	g.mu.Lock()
	if p.closed {
		g.mu.Unlock()
		return nil, errNoGroup
	}
	if g.ctl != nil && !g.ctl.Room() {
		size = p.nearest(size) // rule: internal/host TestSMCRReuse: p.nearest(size) -> size
	}
	if list := p.free[size]; len(list) > 0 {
		m := list[len(list)-1]
		p.free[size] = list[:len(list)-1]
		p.kept -= size.Bytes()
		delete(p.all, m.id)
		g.mu.Unlock()
		return m, nil
	}
	m, err := p.makeShedding(ctx, size)
	if err != nil || g.ctl == nil { // a first contact
		g.mu.Unlock()
		return m, err
	}
	p.asked[m.id] = m
	m.answered = make(chan clc.Diagnosis, 1)
	g.doLocked(func(now time.Time, out []llcflow.Output) []llcflow.Output {
		return g.ctl.ConfirmRMB(now, m.id, g.links.tokens(m), out)
	})
	g.mu.Unlock()
	var why clc.Diagnosis
	select {
	case why = <-m.answered:
	case <-ctx.Done():
		why = clc.DiagBufferRegistration
	}
	m.known = true // as far as anybody knows
	if why == clc.DiagNone {
		g.room.note()
		return m, nil
	}
	p.release(m, false)
	return nil, fmt.Errorf("%w: %w", errRMBs, &transport.DeclinedError{Why: why})
}

// makeShedding is make, which has idle link groups give way while there is no memory. g.mu is held,
// but not while it waits for them.
func (p *rmbPool) makeShedding(ctx context.Context, size wire.SizeCode) (*ownRMB, error) {
	g := p.group
	m, err := p.make(size)
	for errors.Is(err, errBudget) && !p.closed { // rule: internal/host TestSMCRShed: !p.closed -> false
		g.mu.Unlock()
		shed := g.fabric.shed(ctx)
		g.mu.Lock()
		if !shed {
			return nil, err
		}
		if m, err = p.make(size); err == nil && p.closed {
			p.freeNow(m)
			m, err = nil, errNoGroup
		}
	}
	return m, err
}

// tokens is where each RMB is on a link. g.mu is held.
func (p *rmbPool) tokens(l *groupLink) map[llcflow.RMBID]llc.RToken {
	tokens := make(map[llcflow.RMBID]llc.RToken, len(p.every))
	for id, m := range p.every {
		if t, ok := m.rmb.Token(l.net); ok {
			tokens[id] = llc.RToken{RKey: t.RKey, VA: t.Addr}
		}
	}
	return tokens
}

// nearest returns the size of the free RMBs that are best for a buffer of a size, where there is no
// room for new ones: the smallest in which it fits, else the largest. It returns the size itself if
// there is none.
func (p *rmbPool) nearest(size wire.SizeCode) wire.SizeCode {
	for s := size; s <= wire.MaxSizeCode; s++ {
		if len(p.free[s]) > 0 {
			return s
		}
	}
	for s := int(size) - 1; s >= 0; s-- {
		if len(p.free[wire.SizeCode(s)]) > 0 {
			return wire.SizeCode(s)
		}
	}
	return size
}

// make makes a new RMB. g.mu is held.
func (p *rmbPool) make(size wire.SizeCode) (*ownRMB, error) {
	f := p.group.fabric
	n := int64(size.Bytes())
	if err := f.memory.take(&f.memory.rmbs, n); err != nil {
		return nil, err
	}
	rmb, err := p.group.net.NewRMB(size)
	if err != nil {
		f.memory.rmbs.Add(-n)
		return nil, err
	}
	p.last++
	p.count++
	p.bytes += n
	m := &ownRMB{rmb: rmb, id: p.last}
	p.every[m.id] = m
	return m, nil
}

// freeNow gives the memory of an RMB back. g.mu is held.
func (p *rmbPool) freeNow(m *ownRMB) {
	n := int64(m.rmb.Size().Bytes())
	p.group.fabric.memory.rmbs.Add(-n)
	p.count--
	p.bytes -= n
	delete(p.every, m.id)
	m.rmb.Free()
}

// release takes back an RMB that no connection has any more. clean says that the peer does not
// write to it. If it is not known to be so it is in quarantine until the group ends: the peer could
// not tell from a failed WRITE of one connection that the link is good for others.
func (p *rmbPool) release(m *ownRMB, clean bool) {
	g := p.group
	g.mu.Lock()
	p.releaseLocked(m, clean)
	g.mu.Unlock()
	g.room.check()
}

// releaseLocked is release with g.mu held.
func (p *rmbPool) releaseLocked(m *ownRMB, clean bool) {
	g := p.group
	size := m.rmb.Size()
	delete(p.asked, m.id) // nobody waits for the answer any more
	switch {
	case g.end.gone || g.ctl == nil && !m.known: // nobody can write to it any more, or knows it
		p.freeNow(m)
		return
	case p.closed:
		p.all[m.id] = m
	case clean && p.kept+size.Bytes() <= maxIdleRMBs:
		m.rmb.Clear()
		p.all[m.id] = m
		p.free[size] = append(p.free[size], m)
		p.kept += size.Bytes()
	default:
		p.all[m.id] = m
		if g.ctl != nil {
			g.doLocked(func(now time.Time, out []llcflow.Output) []llcflow.Output {
				return g.ctl.DeleteRMB(now, m.id, clean, out)
			})
		}
	}
}

// answer takes the peer's answer about an RMB. g.mu is held.
func (p *rmbPool) answer(id llcflow.RMBID, why clc.Diagnosis) {
	if m := p.asked[id]; m != nil {
		delete(p.asked, id)
		m.answered <- why
	}
}

// deleted frees an RMB that the peer has forgotten. g.mu is held.
func (p *rmbPool) deleted(id llcflow.RMBID) {
	if m := p.all[id]; m != nil {
		delete(p.all, id)
		p.freeNow(m)
	}
}

// end makes it give nothing out any more. g.mu is held.
func (p *rmbPool) end() {
	p.closed = true
	clear(p.free)
	p.refuseAsked()
}

// refuseAsked ends the waits for the peer's answer. g.mu is held.
func (p *rmbPool) refuseAsked() {
	for id := range p.asked {
		p.answer(id, clc.DiagNoActiveLink)
	}
}

// freeUnused frees all that no connection has, once the links are gone. g.mu is held.
func (p *rmbPool) freeUnused() {
	for id, m := range p.all {
		delete(p.all, id)
		p.freeNow(m)
	}
}
