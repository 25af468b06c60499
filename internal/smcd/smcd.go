// Package smcd carries connections over SMC-D: through DMBs of an Emulated-ISM device that two
// processes of one machine share.
//
//	[Device]   the device of a host
//	[Path]     a handshake with the process behind a peering
//	[Groups]   the link groups of a host: little more than their numbers
//	[Peering]  ends all connections with a peer
package smcd

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

// A Path reaches a peer through shared memory of this machine.
type Path struct {
	device *Device
	peer   *ism.Peer
	seid   wire.EID
}

// A Peering is the end of all connections with a peer.
type Peering struct{ *ism.Peer }

// Cause implements [transport.Association].
func (Peering) Cause() core.ConnEventKind { return core.EventPeerDead }

// Mode implements [transport.Path].
func (w *Path) Mode() core.Mode { return core.SMCD }

// Offer implements [transport.Path].
func (w *Path) Offer(caps *core.Capabilities) {
	if caps.SEID.IsZero() {
		caps.SEID = w.seid
	}
	caps.ISM = append(caps.ISM, clc.ISMDevice{GID: w.device.GID(), CHID: wire.CHIDLoopback})
}

// Traits implements [transport.Path].
func (w *Path) Traits() transport.PathTraits { return transport.PathTraits{Local: true} }

// Alive implements [transport.Path].
func (w *Path) Alive() bool { return w.peer.Err() == nil }

// Examine implements [transport.Path].
func (w *Path) Examine(_ *clc.Proposal, h *core.Handshake, _ bool) { h.SetReachable(w.peer.GID()) }

// Watcher implements [transport.Path].
func (w *Path) Watcher() *tcpwatch.Watcher { return w.device.tcp }

// LinkMissing implements [transport.Path].
func (w *Path) LinkMissing(time.Duration) {} // there are no links

// Prepare implements [transport.Path].
func (w *Path) Prepare(ctx context.Context, q transport.Request) (transport.Binding, core.Resources, error) {
	// rule: internal/host TestClientLies: q.Choice.Remote.GID != w.peer.GID() -> false
	if q.Choice.Remote.GID != w.peer.GID() {
		return nil, core.Resources{}, transport.ErrUnreachable
	}
	c := &binding{peer: w.peer, groups: w.device.groups, spin: w.device.spin}
	r, err := c.prepare(ctx, q)
	if err != nil {
		c.Detach(false)
		c.Release(false)
		c.Leave()
		return nil, r, &transport.DeclinedError{Why: Reason(err), Err: err}
	}
	return c, r, nil
}

// A binding is a connection over SMC-D: a DMB of ours, and a window into one of the peer's.
type binding struct {
	transport.NoLinks
	peer   *ism.Peer
	spin   time.Duration
	groups *Groups
	lg     *core.LinkGroup // nil before it is joined
	dmb    *ism.DMB        // nil once released
	window *ism.Window     // nil before attach and after detach
	last   *ism.Window     // the same, until release
}

func (c *binding) prepare(ctx context.Context, q transport.Request) (r core.Resources, err error) {
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
	choice := q.Choice
	choice.Remote.GID = c.peer.Key() // an introduced process can say that it has another one's GID
	if c.lg, first, err = c.groups.join(q.Role, choice); err != nil {
		return r, err
	}
	return core.Resources{FirstContact: first, D: &clc.ParamsD{
		Token:    c.dmb.Token(),
		DMBESize: wire.SizeCodeFor(q.Buffer),
		LinkID:   c.lg.ID,
	}}, nil
}

func (c *binding) attachTo(ctx context.Context, d *clc.ParamsD) (err error) {
	c.window, err = c.peer.Attach(ctx, d.Token, d.DMBESize.Bytes())
	if errors.Is(err, ism.ErrPeerGone) {
		return fmt.Errorf("%w: %w", transport.ErrGone, err)
	}
	return err
}

// Attach implements [transport.Binding].
func (c *binding) Attach(ctx context.Context, r core.Result) error {
	if c.window != nil {
		return nil
	}
	if err := c.attachTo(ctx, r.D); err != nil {
		return fmt.Errorf("attach the client's buffer: %w", err)
	}
	return nil
}

// Stream implements [transport.Binding].
func (c *binding) Stream() stream.Config {
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
	cfg.Out = stream.NewMemory(c.window.Mem(), c.window.PeerReaderSleeps(), c.window.PeerWriterSleeps(),
		c.window.Ring)
	cfg.PeerRead = c.window.PeerRead()
	return cfg
}

// AppendHeader implements [transport.Binding].
func (c *binding) AppendHeader(b []byte, h cdc.Header, _ bool) []byte { return h.Append(b) }

// Detach implements [transport.Binding].
func (c *binding) Detach(clean bool) {
	if c.window != nil {
		c.window.Release(clean)
		c.window = nil
	}
}

// Release implements [transport.Binding].
func (c *binding) Release(clean bool) {
	if c.last != nil {
		c.last.OnRevoke(nil)
		c.last = nil
	}
	if c.dmb != nil {
		c.dmb.Release(clean)
		c.dmb = nil
	}
}

// ReturnPages implements [transport.Binding].
func (c *binding) ReturnPages(from, to int) error {
	if c.window == nil {
		return nil
	}
	return c.window.ReturnPages(from, to)
}

// Confirm implements [transport.Binding].
func (c *binding) Confirm(r core.Result) transport.Membership {
	first := c.groups.confirm(c.lg, r)
	return transport.MembershipOf(c.lg.ID, &first)
}

// OutOfSync drops the group: its connections have memory of their own, and go on.
func (c *binding) OutOfSync() { c.groups.drop(c.lg) }

// Leave implements [transport.Binding].
func (c *binding) Leave() {
	if c.lg != nil {
		c.groups.leave(c.lg)
	}
}

// Association implements [transport.Binding].
func (c *binding) Association() transport.Association { return Peering{c.peer} }

// Traits implements [transport.Binding].
func (c *binding) Traits() transport.Traits {
	_, introduced := c.peer.Secret()
	return transport.Traits{
		HeaderLen: cdc.HeaderLen, PeerPID: int32(c.peer.Cred().PID),
		// The network between two namespaces can be cut, by a filter or a removed interface, and the
		// connection is to end then, as it does over TCP.
		KeepAlive: introduced, // rule: internal/host TestPodsPath: introduced -> introduced && false
	}
}
