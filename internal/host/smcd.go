package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// An smcdWay reaches a peer through shared memory of this machine.
type smcdWay struct {
	fabric *fabric
	groups *smcdGroups
	peer   *ism.Peer
	spin   time.Duration // before a wait sleeps
}

// A peering is the end of all connections with a peer.
type peering struct{ *ism.Peer }

// Cause implements [end].
func (peering) Cause() core.ConnEventKind { return core.EventPeerDead }

func (w *smcdWay) mode() core.Mode { return core.SMCD }

func (w *smcdWay) offer(caps *core.Capabilities) {
	caps.ISM = append(caps.ISM, clc.ISMDevice{GID: w.fabric.device.GID(), CHID: wire.CHIDLoopback})
}

func (w *smcdWay) traits() wayTraits { return wayTraits{local: true} }

func (w *smcdWay) lives() bool { return w.peer.Err() == nil }

func (w *smcdWay) meet(_ *clc.Proposal, h *core.Handshake, _ bool) { h.SetReachable(w.peer.GID()) }

func (w *smcdWay) watcher() *tcpwatch.Watcher { return w.fabric.watcher }

func (w *smcdWay) filtered(time.Duration) {} // there are no links

func (w *smcdWay) prepare(ctx context.Context, t terms) (carrier, core.Resources, error) {
	// rule: TestClientLies: t.choice.Remote.GID != w.peer.GID() -> false
	if t.choice.Remote.GID != w.peer.GID() {
		return nil, core.Resources{}, errUnreachable
	}
	c := &smcdCarrier{peer: w.peer, groups: w.groups, spin: w.spin}
	r, err := c.prepare(ctx, t)
	if err != nil {
		c.detach(false)
		c.release(false)
		c.leave()
		return nil, r, err
	}
	return c, r, nil
}

// An smcdCarrier is the carrier of SMC-D: a DMB of ours, and a window into one of the peer's.
type smcdCarrier struct {
	noLinks
	peer   *ism.Peer
	spin   time.Duration
	groups *smcdGroups
	lg     *core.LinkGroup // nil before it is joined
	dmb    *ism.DMB        // nil once released
	window *ism.Window     // nil before attach and after detach
	last   *ism.Window     // the same, until release
}

func (c *smcdCarrier) prepare(ctx context.Context, t terms) (r core.Resources, err error) {
	// Our buffer comes first: it looks for room for the peer's, which is not to be there already.
	if c.dmb, err = c.peer.NewDMB(t.buffer, t.wake); err != nil {
		return r, err
	}
	if t.choice.D != nil { // we are the client
		if err := c.attachTo(ctx, t.choice.D); err != nil {
			return r, err
		}
		c.last = c.window
		c.last.OnRevoke(t.left)
	}
	// The group comes last, so that nobody waits for it.
	var first bool
	if c.lg, first, err = c.groups.join(t.role, t.choice); err != nil {
		return r, err
	}
	return core.Resources{FirstContact: first, D: &clc.ParamsD{
		Token:    c.dmb.Token(),
		DMBESize: wire.SizeCodeFor(t.buffer),
		LinkID:   c.lg.ID,
	}}, nil
}

func (c *smcdCarrier) attachTo(ctx context.Context, d *clc.ParamsD) (err error) {
	c.window, err = c.peer.Attach(ctx, d.Token, d.DMBESize.Bytes())
	if errors.Is(err, ism.ErrPeerGone) {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

func (c *smcdCarrier) attach(ctx context.Context, r core.Result) error {
	if c.window != nil {
		return nil
	}
	if err := c.attachTo(ctx, r.D); err != nil {
		return fmt.Errorf("attach the client's buffer: %w", err)
	}
	return nil
}

func (c *smcdCarrier) stream() stream.Config {
	cfg := stream.Config{
		In:           stream.ElementInbox(c.dmb.Mem()),
		ReaderSleeps: c.dmb.ReaderSleeps(), WriterSleeps: c.dmb.WriterSleeps(),
		Read:     c.dmb.Read(),
		Doorbell: c.peer,
		Spin:     c.spin, // an RNIC looks for packets itself
	}
	if c.window == nil {
		cfg.Out = stream.NoMemory()
		return cfg
	}
	cfg.Out = stream.NewMemory(c.window.Mem(), c.window.PeerReaderSleeps(), c.window.PeerWriterSleeps(), c.window.Ring)
	cfg.PeerRead = c.window.PeerRead()
	return cfg
}

func (c *smcdCarrier) appendHeader(b []byte, h cdc.Header, _ bool) []byte { return h.Append(b) }

func (c *smcdCarrier) detach(clean bool) {
	if c.window != nil {
		c.window.Release(clean)
		c.window = nil
	}
}

func (c *smcdCarrier) release(clean bool) {
	if c.last != nil {
		c.last.OnRevoke(nil)
		c.last = nil
	}
	if c.dmb != nil {
		c.dmb.Release(clean)
		c.dmb = nil
	}
}

func (c *smcdCarrier) returnPages(from, to int) error {
	if c.window == nil {
		return nil
	}
	return c.window.ReturnPages(from, to)
}

func (c *smcdCarrier) confirm(r core.Result) membership {
	first := c.groups.confirm(c.lg, r)
	return membership{c.lg.ID, first.Release, first.PeerHostName, first.PeerOS}
}

// outOfSync drops the group: its connections have memory of their own, and go on.
func (c *smcdCarrier) outOfSync() { c.groups.drop(c.lg) }

func (c *smcdCarrier) leave() {
	if c.lg != nil {
		c.groups.leave(c.lg)
	}
}

func (c *smcdCarrier) end() end { return peering{c.peer} }

func (c *smcdCarrier) traits() traits {
	return traits{headerLen: cdc.HeaderLen, peerPID: c.peer.Cred().PID}
}
