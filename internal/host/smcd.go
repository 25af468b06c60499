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
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// An smcdPath reaches a peer through shared memory of this machine.
type smcdPath struct {
	fabric *fabric
	groups *smcdGroups
	peer   *ism.Peer
	spin   time.Duration // before a wait sleeps
}

// A peering is the end of all connections with a peer.
type peering struct{ *ism.Peer }

// Cause implements [transport.Association].
func (peering) Cause() core.ConnEventKind { return core.EventPeerDead }

func (w *smcdPath) Mode() core.Mode { return core.SMCD }

func (w *smcdPath) Offer(caps *core.Capabilities) {
	caps.ISM = append(caps.ISM, clc.ISMDevice{GID: w.fabric.device.GID(), CHID: wire.CHIDLoopback})
}

func (w *smcdPath) Traits() transport.PathTraits { return transport.PathTraits{Local: true} }

func (w *smcdPath) Alive() bool { return w.peer.Err() == nil }

func (w *smcdPath) Examine(_ *clc.Proposal, h *core.Handshake, _ bool) { h.SetReachable(w.peer.GID()) }

func (w *smcdPath) Watcher() *tcpwatch.Watcher { return w.fabric.watcher }

func (w *smcdPath) LinkMissing(time.Duration) {} // there are no links

func (w *smcdPath) Prepare(ctx context.Context, q transport.Request) (transport.Binding, core.Resources, error) {
	// rule: TestClientLies: q.Choice.Remote.GID != w.peer.GID() -> false
	if q.Choice.Remote.GID != w.peer.GID() {
		return nil, core.Resources{}, transport.ErrUnreachable
	}
	c := &smcdBinding{peer: w.peer, groups: w.groups, spin: w.spin}
	r, err := c.prepare(ctx, q)
	if err != nil {
		c.Detach(false)
		c.Release(false)
		c.Leave()
		return nil, r, err
	}
	return c, r, nil
}

// An smcdBinding is the binding of SMC-D: a DMB of ours, and a window into one of the peer's.
type smcdBinding struct {
	transport.NoLinks
	peer   *ism.Peer
	spin   time.Duration
	groups *smcdGroups
	lg     *core.LinkGroup // nil before it is joined
	dmb    *ism.DMB        // nil once released
	window *ism.Window     // nil before attach and after detach
	last   *ism.Window     // the same, until release
}

func (c *smcdBinding) prepare(ctx context.Context, q transport.Request) (r core.Resources, err error) {
	// Our buffer comes first: it looks for room for the peer's, which is not to be there already.
	if c.dmb, err = c.peer.NewDMB(q.Buffer, q.Wake); err != nil {
		return r, err
	}
	if q.Choice.D != nil { // we are the client
		if err := c.attachTo(ctx, q.Choice.D); err != nil {
			return r, err
		}
		c.last = c.window
		c.last.OnRevoke(q.Left)
	}
	// The group comes last, so that nobody waits for it.
	var first bool
	if c.lg, first, err = c.groups.join(q.Role, q.Choice); err != nil {
		return r, err
	}
	return core.Resources{FirstContact: first, D: &clc.ParamsD{
		Token:    c.dmb.Token(),
		DMBESize: wire.SizeCodeFor(q.Buffer),
		LinkID:   c.lg.ID,
	}}, nil
}

func (c *smcdBinding) attachTo(ctx context.Context, d *clc.ParamsD) (err error) {
	c.window, err = c.peer.Attach(ctx, d.Token, d.DMBESize.Bytes())
	if errors.Is(err, ism.ErrPeerGone) {
		return fmt.Errorf("%w: %w", transport.ErrGone, err)
	}
	return err
}

func (c *smcdBinding) Attach(ctx context.Context, r core.Result) error {
	if c.window != nil {
		return nil
	}
	if err := c.attachTo(ctx, r.D); err != nil {
		return fmt.Errorf("attach the client's buffer: %w", err)
	}
	return nil
}

func (c *smcdBinding) Stream() stream.Config {
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

func (c *smcdBinding) AppendHeader(b []byte, h cdc.Header, _ bool) []byte { return h.Append(b) }

func (c *smcdBinding) Detach(clean bool) {
	if c.window != nil {
		c.window.Release(clean)
		c.window = nil
	}
}

func (c *smcdBinding) Release(clean bool) {
	if c.last != nil {
		c.last.OnRevoke(nil)
		c.last = nil
	}
	if c.dmb != nil {
		c.dmb.Release(clean)
		c.dmb = nil
	}
}

func (c *smcdBinding) ReturnPages(from, to int) error {
	if c.window == nil {
		return nil
	}
	return c.window.ReturnPages(from, to)
}

func (c *smcdBinding) Confirm(r core.Result) transport.Membership {
	first := c.groups.confirm(c.lg, r)
	return transport.MembershipOf(c.lg.ID, &first)
}

// OutOfSync drops the group: its connections have memory of their own, and go on.
func (c *smcdBinding) OutOfSync() { c.groups.drop(c.lg) }

func (c *smcdBinding) Leave() {
	if c.lg != nil {
		c.groups.leave(c.lg)
	}
}

func (c *smcdBinding) Association() transport.Association { return peering{c.peer} }

func (c *smcdBinding) Traits() transport.Traits {
	return transport.Traits{HeaderLen: cdc.HeaderLen, PeerPID: c.peer.Cred().PID}
}
