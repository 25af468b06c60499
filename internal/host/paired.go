package host

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/paired"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smcd"
	"github.com/gosmc/smc/wire/clc"
)

// newPairing returns the host's part in connections with pairing tokens.
func (h *Host) newPairing() *paired.Point {
	return paired.New(paired.Config{
		Kernel: h.cfg.Pairing,
		Users:  h.cfg.introducedUsers(),
		Open: func() (*ism.Device, clc.Diagnosis, error) {
			f, reason, err := h.open()
			if err != nil {
				return nil, reason, err
			}
			return f.device.Device, clc.DiagNone, nil
		},
		Opened: func() *ism.Device {
			if f := h.openFabricOrNil(); f != nil && f.bubble == conn.InBubble() {
				return f.device.Device
			}
			return nil
		},
		Enlist: func(p *ism.Peer) bool { return h.addEnd(smcd.Peering{Peer: p}) },
		Reason: smcd.Reason,
		Trace:  h.tracePaired,
		Logger: h.cfg.Logger,
	})
}

// introducedUsers returns the users with whose programs this host shares memory if an agent introduces
// them: all, where nothing is said.
func (c *Config) introducedUsers() introduce.Users {
	anyUser, allowed, excepted := c.users.Lists()
	return introduce.NewUsers(c.users.Said(), anyUser, allowed, excepted) // rule: TestIntroducedUsers: c.users.Said() -> false
}

// tracePaired traces a message to or from a peer, as one of the rendezvous that means the same.
func (h *Host) tracePaired(p *ism.Peer, m *paired.Message, sent bool) {
	r := traceRecord{message: m.Kind.Rendezvous(), refusal: clc.Diagnosis(m.Reason), pid: p.Cred().PID}
	r.Kind, r.Numbers, r.Sent = control.TraceRendezvous, [2]uint64{m.ID, uint64(m.Name)}, sent
	r.Client = sent == (m.Kind == paired.Expect || m.Kind == paired.Cancel)
	h.trace.Add(&r, nil)
}

// wantsTokens reports whether sockets of the host can have pairing tokens.
func (h *Host) wantsTokens() bool { return !h.cfg.Disabled && h.pairing.CanAsk() }

// deviceDir returns the directory of the device's socket, and the error of a run directory that cannot
// be used. With an agent the device needs none.
func (h *Host) deviceDir() (string, error) {
	err := rundir.Prepare(h.cfg.Dir)
	if err == nil {
		return rundir.Own(h.cfg.Dir), nil
	}
	if h.wantsTokens() { // rule: TestNoDirectory
		return "", nil
	}
	return "", err
}

// askTokens asks for pairing tokens on a socket that is about to connect.
func (d *dialing) askTokens(raw syscall.RawConn, dest netip.AddrPort) {
	h := d.host
	dest = netip.AddrPortFrom(dest.Addr().Unmap().WithZone(""), dest.Port())
	if h.cfg.Disabled || !d.opts.Require.Met(conn.ModeOf(h.smcd.Mode())) ||
		!h.cfg.machine.MayHave(dest.Addr()) && !h.meeting.IsLocal(dest.Addr()) {
		return
	}
	if h.pairing.Ask(raw, dest) {
		d.paired.Store(true)
	}
}

// awaitPaired finds out how the peer of a connection with tokens is reached.
func (d *dialing) awaitPaired(ctx context.Context, tcp *net.TCPConn) (paired.Outcome, error) {
	if !d.paired.Load() || d.host.rules.refusesDial(d.policy, addrPort(tcp.RemoteAddr())) {
		return paired.Outcome{}, nil
	}
	return d.host.pairing.Await(ctx, tcp, d.opts.Require.Met(conn.ModeUnix)) // rule: TestPairsRequired: d.opts.Require.Met(conn.ModeUnix) -> true
}

// routePaired decides the kind of a new connection that has pairing tokens. The client may not have
// said anything yet, and is waited for then; other connections do not wait for it.
func routePaired(l *Listener, tcp *net.TCPConn, c *paired.Candidate, reason clc.Diagnosis) {
	h := l.host
	switch {
	case reason == clc.DiagNotAllowed:
	case !l.opts.Require.Met(conn.ModeOf(h.smcd.Mode())):
		reason = clc.DiagPolicy
	default:
		select {
		case l.busy <- struct{}{}:
			l.working.Add(1)
			go l.serve(tcp, func(
				ctx context.Context, p *conn.Pending, buffer int, require conn.Requirement,
			) (conn.Conn, error) {
				why := c.Await(ctx, require.Met(conn.ModeUnix)) // rule: TestPairsRequired: require.Met(conn.ModeUnix) -> true
				if why != clc.DiagNone {
					c.Refuse(why)
					return p.FallBack(require, conn.Fallback{Reason: clc.Lookup(why, clc.OSUnspecified)})
				}
				if end := c.End(); end != nil {
					return h.finishPair(p, end, 0) // the agent knows the client's supervisor alone
				}
				if !c.Accept() {
					tcp.Close() // the client has no use for it either
					return nil, ism.ErrPeerGone
				}
				return h.shakePeer(ctx, core.RoleServer, p, c.Peer(), buffer, require)
			})
			return
		default:
			reason = clc.DiagBusy
		}
	}
	c.Refuse(reason)
	why := conn.Fallback{Reason: clc.Lookup(reason, clc.OSUnspecified)}
	p, err := l.newConn(tcp).FallBack(l.opts.Require, why)
	if err != nil {
		l.settled()
		return
	}
	l.deliver(accepted{conn: p})
}
