package smcr

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// A binding is a connection over SMC-R: an RMB of ours, an element of one of the peer's, and a link
// between. One goroutine at a time calls its methods, which guards all fields but the ones that say
// otherwise. A preparation makes it.
type binding struct {
	fabric   *Fabric
	lg       *core.LinkGroup
	group    *group           // lg at work
	first    bool             // our connection made the group
	remote   netip.Addr       // the other end of the TCP connection
	rmb      *ownRMB          // nil once released
	link     *link.Carrier    // nil before prepare
	owner    llcflow.Owner    // of the peer's element
	closing  atomic.Uint32    // the owner, from its last word until nothing is on its way
	detached bool             // nothing new is sent; guarded by the group's mu
	ring     ringMemory       // of the send ring
	element  *llcflow.Element // nil before it is known
	named    *groupLink       // by the handshake; nil before prepare
	awaits   bool             // said its last word, and is not released
	// how long its link may be silent, 0: as the host likes; guarded by the group's mu
	quiet time.Duration
	lost  func() // the peer has given the element to another connection
}

// takeElement makes the element of the peer's RMB that a message of a later contact names ours.
func (c *binding) takeElement(p *clc.ParamsR) error {
	var why clc.Diagnosis
	c.group.do(func(now time.Time, out []llcflow.Output) []llcflow.Output {
		c.owner = c.group.conns.add(c)
		var e llcflow.Element
		e, why, out = c.group.ctl.TakeElement(p, c.owner, out)
		if why == clc.DiagNone {
			c.element = &e
		}
		return out
	})
	if why != clc.DiagNone {
		return &transport.DeclinedError{Why: why}
	}
	return nil
}

// StartLink implements [transport.Binding].
func (c *binding) StartLink(r core.Result, tell func(core.LinkStep)) error {
	return c.group.start(c, r, tell)
}

// Attach implements [transport.Binding].
func (c *binding) Attach(_ context.Context, r core.Result) error {
	g := c.group
	if c.first {
		c.fabric.filtered.forget(c.remote) // rule: internal/host TestSMCRImpatient
	}
	if c.first {
		g.end.confirmed()
	} else if c.element == nil {
		if err := g.checkConfirm(r); err != nil {
			return err
		}
		if err := c.takeElement(r.R); err != nil {
			return err
		}
	}
	g.room.note()
	c.ring.shrink(int64(r.R.RMBESize.Bytes()))
	if c.first {
		g.mu.Lock()
		e := g.ctl.FirstElement()
		g.mu.Unlock()
		c.element = &e
	}
	err := c.attach(r)
	if err != nil && g.end.isOver() {
		return fmt.Errorf("%w: %w", transport.ErrGone, err)
	}
	return err
}

// attach has the connection write over one of the links. With the lock none of them goes down meanwhile.
func (c *binding) attach(r core.Result) error {
	g := c.group
	g.mu.Lock()
	defer g.mu.Unlock()
	// A peer that does not say "no eyecatcher" keeps to RFC 7609, which has one in all elements: it
	// expects it in ours too.
	eyecatcher := g.ctl.PeerEyecatcher()
	return g.links.begin(c, func(l *groupLink, el llcflow.Element) error {
		return c.link.Attach(l.net, link.PeerRMBE{
			AlertToken: r.R.AlertToken, RKey: el.RKey, Addr: el.VA, Index: 1, Size: r.R.RMBESize, Eyecatcher: eyecatcher,
		}, eyecatcher) // rule: internal/host TestSMCREyecatcher: }, eyecatcher) -> }, false)
	})
}

// Stream implements [transport.Binding].
func (c *binding) Stream() stream.Config { return c.link.Stream() }

// AppendHeader implements [transport.Binding].
func (c *binding) AppendHeader(b []byte, h cdc.Header, own bool) []byte {
	return c.link.Message(h, own).Append(b)
}

// Detach implements [transport.Binding].
func (c *binding) Detach(clean bool) {
	if clean && !c.awaits {
		c.awaits = true
		c.group.peer.awaits(+1)
	}
	g := c.group
	if g != nil {
		g.mu.Lock()
		c.detached = true
		if c.quiet > 0 {
			c.quiet = 0 // a closed connection asks no more
			g.loop.afterwards(func() { g.do(g.conns.updateTests) })
		}
		g.mu.Unlock()
	}
	owner := c.owner
	c.owner = 0
	if clean && c.link != nil {
		c.closing.Store(uint32(owner)) // its last message may have to go over another link
		owner = 0
	}
	if c.link != nil {
		c.link.Detach()
		select {
		case <-c.link.Sent():
			owner = max(owner, llcflow.Owner(c.closing.Swap(0)))
		default:
		}
	}
	if owner != 0 {
		g.conns.release(owner)
	}
}

// Release implements [transport.Binding].
func (c *binding) Release(clean bool) {
	if c.awaits {
		c.awaits = false
		c.group.peer.awaits(-1)
	}
	if c.link != nil {
		c.link.Release()
	}
	if c.group == nil {
		return
	}
	if c.rmb != nil {
		c.group.rmbs.release(c.rmb, clean)
		c.rmb = nil
	}
	if c.first && !clean {
		c.group.end.abandon() // unless its first contact was confirmed
	}
}

// Confirm implements [transport.Binding].
func (c *binding) Confirm(r core.Result) transport.Membership {
	if r.FirstContact {
		c.fabric.confirm(c.group, r)
	}
	c.fabric.mu.Lock()
	defer c.fabric.mu.Unlock()
	return transport.MembershipOf(c.lg.ID, &c.lg.Result)
}

// OutOfSync implements [transport.Binding].
func (c *binding) OutOfSync() { c.fabric.doubt(c.lg) }

// Declined implements [transport.Binding].
func (c *binding) Declined() {
	if g, err := c.fabric.group(c.lg); err == nil {
		g.room.declined()
	}
}

// Leave implements [transport.Binding].
func (c *binding) Leave() { c.fabric.leave(c.lg) }

// ReturnPages implements [transport.Binding].
func (c *binding) ReturnPages(from, to int) error { return c.link.ReturnPages(from, to) }

// Association implements [transport.Binding].
func (c *binding) Association() transport.Association { return c.group }

// Flush implements [transport.Binding]: it waits for the acknowledgement of our Closed, behind all
// data. With TCP the kernel would see to it that a peer gets all that, though the process ends the
// next moment. RFC 7609 p.83, 3A; Linux net/smc waits 2 seconds as well, and not for longer, since
// its kernel goes on. We wait as long as something arrives.
func (c *binding) Flush() {
	select {
	case <-c.link.Sent():
		return
	default:
	}
	end := time.Now().Add(lastBytesTime)
	quiet := time.NewTimer(pendingCloseTime)
	defer quiet.Stop()
	for before := c.link.Arrived(); ; {
		select {
		case <-c.link.Sent():
			return
		case <-c.group.loop.stopped:
			return
		case now := <-quiet.C:
			arrived := c.link.Arrived()
			if arrived == before || now.After(end) {
				return
			}
			before = arrived
			quiet.Reset(pendingCloseTime)
		}
	}
}

// Suspect implements [transport.Binding].
func (c *binding) Suspect() { c.group.peer.suspect() }

// MayMiss implements [transport.Binding].
func (c *binding) MayMiss() bool { return c.link.Failed() }

// SetNoDelay implements [transport.Binding].
func (c *binding) SetNoDelay(on bool) { c.link.SetNoDelay(on) }

// LinkNumber implements [transport.Binding].
func (c *binding) LinkNumber() uint8 { return c.group.links.numberOf(c) }

// Traits implements [transport.Binding].
func (c *binding) Traits() transport.Traits {
	return transport.Traits{KeepAlive: true, Tests: true, Overtaken: true}
}
