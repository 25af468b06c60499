package host

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/attempts"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/ring"
	"github.com/gosmc/smc/internal/run/client"
	"github.com/gosmc/smc/wire/clc"
)

// DialOptions say how to dial. The zero value is useful.
type DialOptions struct {
	Require    conn.Requirement
	LocalAddr  *net.TCPAddr // nil: any
	ReadBuffer int          // bytes; 0: the host's
	Net        net.Dialer   // Timeout, Deadline, KeepAlive and so on; not LocalAddr, Control, ControlContext
	Control    func(ctx context.Context, network, address string, c syscall.RawConn) error
}

// begin checks the arguments of Dial and Listen, and returns the size of the receive buffer.
func (h *Host) begin(network string, wanted int) (buffer int, err error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return 0, net.UnknownNetworkError(network)
	}
	buffer = h.cfg.ReadBuffer
	if wanted != 0 {
		if buffer, err = bufferSize(wanted); err != nil {
			return 0, err
		}
	}
	if h.isClosing() {
		return 0, errHostClosed
	}
	return buffer, nil
}

// Dial makes a TCP connection and moves it onto shared memory if both ends can.
func (h *Host) Dial(ctx context.Context, network, address string, opts DialOptions) (conn.Conn, error) {
	buffer, err := h.begin(network, opts.ReadBuffer)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	h.hold()
	defer h.letGo()
	h.openControl()
	policy := h.rules.policy()
	if dest, ok := attempts.Destination(network, address); ok && keptShort(h, policy, &opts, dest) {
		return dialShort(ctx, h, opts, network, address)
	}
	d := dialing{
		host: h, opts: &opts, policy: policy, call: h.meeting.NewCall(), run: client.NewCall(h.cfg.Dir),
	}
	return d.dial(ctx, network, address, buffer)
}

// keptShort reports whether connections to a server stay TCP by what was found out a moment ago for
// another one. Then nothing has to be asked, and the socket needs no look.
func keptShort(h *Host, policy *config.Policy, opts *DialOptions, dest netip.AddrPort) bool {
	dest = netip.AddrPortFrom(dest.Addr().Unmap(), dest.Port())
	return mayStayTCP(h, opts, dest) && !h.rules.refusesDial(policy, dest) && h.admission.Known(dest) // rule: TestAdmissionKnown: !h.rules.refusesDial(policy, dest) -> true
}

// mayStayTCP reports whether it matters how earlier connections to a server have ended. Where something
// else than TCP is required they are moved all the same, and to a peer that expects it.
func mayStayTCP(h *Host, opts *DialOptions, dest netip.AddrPort) bool {
	return !h.cfg.Disabled && opts.Require.Met(conn.ModeTCP) && !h.speaksCLC(dest.Addr(), dest.Port()) // rule: TestAdmission: opts.Require.Met(conn.ModeTCP) -> true
}

// dialShort makes a connection that stays TCP.
func dialShort(ctx context.Context, h *Host, opts DialOptions, network, address string) (conn.Conn, error) {
	nd := opts.Net
	nd.LocalAddr, nd.Control, nd.ControlContext = nil, nil, opts.Control
	if opts.LocalAddr != nil {
		nd.LocalAddr = opts.LocalAddr
	}
	keepAlive := conn.PutOff(nd.KeepAliveConfig, &nd.KeepAlive)
	c, err := nd.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p := h.newConn(c.(*net.TCPConn), true, opts.Net.KeepAliveConfig, keepAlive)
	return p.FallBack(opts.Require, conn.Fallback{Reason: h.lookup(clc.DiagShort)})
}

// Adopt makes a plain TCP connection of one that was made elsewhere. If it succeeds, tcp belongs to
// the result.
func (h *Host) Adopt(tcp *net.TCPConn) (conn.Conn, error) {
	if tcp.RemoteAddr() == nil {
		return nil, &net.OpError{Op: "file", Net: "tcp", Source: tcp.LocalAddr(),
			Err: os.NewSyscallError("getpeername", syscall.ENOTCONN)}
	}
	h.hold()
	defer h.letGo()
	h.openControl()
	reason := clc.Lookup(clc.DiagInherited, clc.OSUnspecified)
	c := conn.NewTCP(h.newConn(tcp, false, net.KeepAliveConfig{}, false), conn.Fallback{Reason: reason})
	if err := h.add(c); err != nil {
		return nil, &net.OpError{Op: "file", Net: "tcp", Source: tcp.LocalAddr(),
			Addr: tcp.RemoteAddr(), Err: err}
	}
	h.counters.FellBack(reason, false)
	return c, nil
}

// Carry moves a TCP connection that was made elsewhere onto SMC, with a peer that speaks CLC. With a
// reason it stays TCP. Whatever becomes of it, tcp belongs to the host.
func (h *Host) Carry(
	ctx context.Context, tcp *net.TCPConn, role core.Role, why clc.Diagnosis,
) (conn.Conn, error) {
	h.hold()
	defer h.letGo()
	h.openControl()
	p := h.newConn(tcp, role == core.RoleClient, net.KeepAliveConfig{}, false)
	if why != clc.DiagNone {
		return p.FallBack(conn.AnyMode, conn.Fallback{Reason: h.lookup(why)})
	}
	return h.shakeNetworks(ctx, role, p, h.cfg.ReadBuffer, conn.AnyMode)
}

// dialing is one Dial.
type dialing struct {
	host   *Host
	opts   *DialOptions
	policy *config.Policy // when it began
	call   *rendezvous.Call
	run    *client.Call // with programs of 'gosmc run'

	asked  atomic.Bool // for TCP option 254, on a socket
	paired atomic.Bool // for pairing tokens, on a socket

	mu       sync.Mutex
	admitted []admitted
}

func (d *dialing) dial(ctx context.Context, network, address string, buffer int) (conn.Conn, error) {
	nd := d.opts.Net
	nd.LocalAddr, nd.Control = nil, nil
	if d.opts.LocalAddr != nil {
		nd.LocalAddr = d.opts.LocalAddr
	}
	nd.ControlContext = d.control
	keepAlive := conn.PutOff(nd.KeepAliveConfig, &nd.KeepAlive)
	c, err := nd.DialContext(ctx, network, address)
	if err != nil {
		d.call.HangUp()
		d.run.HangUp()
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	meet, reason, err := d.call.Await(ctx, tcp)
	if err != nil {
		d.run.HangUp()
		tcp.Close()
		return nil, dialError(network, tcp, err)
	}
	peer, _ := meet.(*ism.Peer) // nil for none
	p := d.host.newConn(tcp, true, d.opts.Net.KeepAliveConfig, keepAlive)
	ad := d.admittedTo(addrPort(tcp.RemoteAddr()))
	if ad.ticket.Counts() {
		p.SetVerdict(ad.ticket)
	}
	if peer != nil {
		d.run.HangUp() // for other sockets
	} else if end, why := d.run.Connected(tcp); end != nil {
		return d.host.finishPair(p, ring.New(end, -1, true), 0)
	} else if why != clc.DiagNone {
		reason = why
	}
	onMachine := false
	if peer == nil {
		met, err := d.awaitPaired(ctx, tcp)
		switch {
		case err != nil:
			tcp.Close()
			return nil, dialError(network, tcp, err)
		case met.End != nil:
			if ad.ticket.Counts() {
				p.SetVerdict(ad.ticket.Far()) // rule: TestPairsShort
			}
			return d.host.finishPair(p, met.End, 0) // the agent knows the server's supervisor alone
		case met.Why != clc.DiagNone &&
			(met.Paired || reason == clc.DiagNotLocal || reason == clc.DiagNoListener):
			reason = met.Why
		}
		peer, onMachine = met.Peer, met.Paired
	}
	speaksCLC := false
	if peer == nil {
		remote := addrPort(tcp.RemoteAddr())
		if d.host.rules.refusesDial(d.policy, remote) {
			reason = clc.DiagNotAllowed
		} else if !onMachine { // rule: TestPairedNoRDMA: !onMachine -> onMachine || !onMachine
			speaksCLC = d.host.speaksCLC(remote.Addr(), remote.Port())
		}
		if d.asked.Load() && !onMachine { // on this socket or on another: if both have it CLC has to follow
			both, why := d.host.readOption(tcp)
			speaksCLC = speaksCLC || both
			if reason == clc.DiagNotLocal && why != clc.DiagNone {
				reason = why
			}
		}
		if ad.short {
			reason = clc.DiagShort
		}
	}
	if speaksCLC {
		return d.host.shakeNetworks(ctx, core.RoleClient, p, buffer, d.opts.Require)
	}
	if peer != nil && !d.opts.Require.Met(conn.ModeOf(d.host.smcd.Mode())) {
		peer, reason = nil, clc.DiagPolicy
	}
	if peer == nil {
		return p.FallBack(d.opts.Require, conn.Fallback{Reason: d.host.lookup(reason)})
	}
	return d.host.shakePeer(ctx, core.RoleClient, p, peer, buffer, d.opts.Require)
}

// control is called by package net on each socket before it connects.
func (d *dialing) control(ctx context.Context, network, address string, raw syscall.RawConn) error {
	if d.opts.Control != nil {
		if err := d.opts.Control(ctx, network, address, raw); err != nil {
			return err
		}
	}
	dest, ok := attempts.Destination(network, address)
	if ok && d.host.rules.refusesDial(d.policy, dest) { // rule: TestPolicyDial
		return nil
	}
	if ok && !d.admit(raw, dest) { // rule: TestAdmission
		return nil
	}
	if d.host.askOption(raw) {
		d.asked.Store(true)
	}
	if ok { // else it is a matter of TCP alone
		reason := d.call.Ask(ctx, raw, dest)
		if reason == clc.DiagNoListener || reason == clc.DiagStale { // of ours
			d.offer(ctx, raw, dest)
		}
		if reason != clc.DiagNone {
			d.askTokens(raw, dest)
		}
	}
	return nil
}

// An admitted is a socket of a dial that may be moved, or is left to TCP because earlier
// connections to the server were too short.
type admitted struct {
	dest   netip.AddrPort
	ticket admission.Ticket
	short  bool
}

// admit reports whether a socket may be moved.
func (d *dialing) admit(raw syscall.RawConn, dest netip.AddrPort) bool {
	dest = netip.AddrPortFrom(dest.Addr().Unmap(), dest.Port())
	if !mayStayTCP(d.host, d.opts, dest) {
		return true
	}
	var ticket admission.Ticket
	moved := false
	if !d.host.admission.Known(dest) {
		ticket, moved = d.host.admission.Ask(dest, netnsOf(raw))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.admitted = append(d.admitted, admitted{dest, ticket, !moved})
	return moved
}

// admittedTo returns the decision about the socket to a server.
func (d *dialing) admittedTo(server netip.AddrPort) admitted {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.admitted {
		if a.dest == server {
			return a
		}
	}
	return admitted{}
}

// netnsOf is the cookie of the network namespace of a socket, 0 if the kernel has none.
func netnsOf(raw syscall.RawConn) (cookie uint64) {
	raw.Control(func(fd uintptr) {
		cookie, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	})
	return cookie
}

// offer offers a pair to a program of 'gosmc run', if one listens at a destination.
func (d *dialing) offer(ctx context.Context, raw syscall.RawConn, dest netip.AddrPort) {
	dest = netip.AddrPortFrom(dest.Addr().Unmap(), dest.Port())
	if !d.opts.Require.Met(conn.ModeUnix) || d.host.speaksCLC(dest.Addr(), dest.Port()) {
		return
	}
	var local netip.AddrPort
	if d.opts.LocalAddr != nil {
		ip, _ := netip.AddrFromSlice(d.opts.LocalAddr.IP)
		if !ip.IsValid() {
			ip = netip.IPv6Unspecified() // package net's nil
		}
		local = netip.AddrPortFrom(ip.Unmap(), uint16(d.opts.LocalAddr.Port))
	}
	d.run.Offer(ctx, raw, dest, local)
}

func dialError(network string, tcp *net.TCPConn, err error) error {
	return &net.OpError{Op: "dial", Net: network, Source: tcp.LocalAddr(), Addr: tcp.RemoteAddr(), Err: err}
}

// newConn returns a connection that is not yet anything. Its dialer or listener has config and keepAlive.
func (h *Host) newConn(tcp *net.TCPConn, client bool, config net.KeepAliveConfig,
	keepAlive conn.LateKeepAlive) *conn.Pending {
	return conn.New(&h.connEnv, conn.Params{
		ID: h.connIDs.Add(1), TCP: tcp, Local: addrPort(tcp.LocalAddr()), Remote: addrPort(tcp.RemoteAddr()),
		Client: client, KeepAlive: config, LateKeepAlive: keepAlive,
	})
}
