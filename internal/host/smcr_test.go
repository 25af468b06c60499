package host

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

var (
	loop1 = netip.MustParseAddr("127.0.0.1")
	loop2 = netip.MustParseAddr("127.0.0.2")
	loop3 = netip.MustParseAddr("127.0.0.3")
)

// An smcrRig is two hosts with an RNIC each. They know of nothing but SMC-R between them.
type smcrRig struct {
	t              testing.TB
	client, server *Host
	l              *Listener
	local          netip.Addr   // of the client
	in             func(func()) // calls a function where the client is
}

// newSMCRRig makes hosts at 127.0.0.1 and 127.0.0.2, which change may configure first.
func newSMCRRig(t testing.TB, change func(client, server *Config)) *smcrRig {
	t.Helper()
	smctest.CheckLeaks(t)
	return makeSMCRRig(t, change)
}

// makeSMCRRig is newSMCRRig without a check for leaks, for tests that run at the same time.
func makeSMCRRig(t testing.TB, change func(client, server *Config)) *smcrRig {
	t.Helper()
	port := smctest.FreePort(t, loop1, loop2, loop3)
	var cfg [2]Config
	for i := range cfg {
		cfg[i] = Config{UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"127.0.0.0/8"}, RDMA: rdma.Config{Port: port}}
	}
	if change != nil {
		change(&cfg[0], &cfg[1])
	}
	r := &smcrRig{t: t, client: newTestHost(t, cfg[0]), server: newTestHost(t, cfg[1]), local: loop1, in: func(f func()) { f() }}
	r.l = mustListen(t, r.server, loop2.String()+":0")
	return r
}

func (r *smcrRig) dial(o DialOptions) (c conn.Conn, err error) {
	o.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.local, 0))
	r.in(func() { c, err = r.client.Dial(boundedContext(r.t), "tcp", r.l.Addr().String(), o) })
	if err == nil {
		c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

// connect makes a connection, and both its ends.
func (r *smcrRig) connect() (c, s conn.Conn) {
	r.t.Helper()
	c, err := r.dial(DialOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	s = mustAccept(r.t, r.l)
	return c, s
}

// checkSMCR makes sure that a connection is one of SMC-R.
func checkSMCR(t testing.TB, conns ...conn.Conn) {
	t.Helper()
	for _, c := range conns {
		if c.Mode() != conn.ModeSMCR {
			t.Fatalf("mode %v, reason %v; want SMC-R", c.Mode(), c.Reason())
		}
	}
}

func TestSMCR(t *testing.T) {
	r := newSMCRRig(t, nil)
	c, s := r.connect()
	checkSMCR(t, c, s)
	checkExchange(t, c, s)
	for i, x := range []conn.Conn{c, s} {
		if got := keepAliveOf(t, x); got != 15 {
			t.Errorf("TCP's keepalive after %d s, want 15, as package net has it", got)
		}
		n := []*Host{r.client, r.server}[i].rnicOf([]netip.Addr{loop1, loop2}[i])
		if users := n.Users(); users != 2 { // the group and its link
			t.Errorf("the device has %d users beside the link group, want none", users-2)
		}
	}
	c.Close()
	s.Close()
	checkGone(t, r.client, r.server)
	for _, h := range []*Host{r.client, r.server} {
		smctest.Eventually(t, patience, "an RMB is free", func() bool { return groupsOf(h)[0].IdleRMBs == 1 })
	}
}

// groupsOf returns the link groups of SMC-R of a host that connections may join.
func groupsOf(h *Host) []control.StatusGroup { return h.networks[0].Status(nil) }

// memoryOf is the memory of all SMC-R buffers of a host, and rmbsOf the memory of its RMBs.
func memoryOf(h *Host) int64 {
	all, _ := h.networks[0].Memory()
	return all
}

func rmbsOf(h *Host) int64 {
	_, rmbs := h.networks[0].Memory()
	return rmbs
}

// tcpOf is the TCP socket of a connection over SMC or TCP.
func tcpOf(c conn.Conn) *net.TCPConn { return c.Socket().(*net.TCPConn) }

// peerMessage is the last message from the peer of a connection over SMC-R; the zero value if the
// buffers are gone.
func peerMessage(t testing.TB, c conn.Conn) (m cdc.Message) {
	t.Helper()
	for _, e := range c.AppendCursors(nil) {
		if !e.Sent {
			var err error
			if m, err = cdc.ParseMessage(e.Bytes); err != nil {
				t.Fatal(err)
			}
		}
	}
	return m
}

// A wrappedNetwork has bindings that wrap made of its own.
type wrappedNetwork struct {
	transport.Network
	wrap func(transport.Binding) transport.Binding
}

func (n *wrappedNetwork) NewPath(role core.Role, local, remote netip.Addr) transport.NetworkPath {
	return &wrappedPath{n.Network.NewPath(role, local, remote), n.wrap}
}

type wrappedPath struct {
	transport.NetworkPath
	wrap func(transport.Binding) transport.Binding
}

func (p *wrappedPath) Prepare(ctx context.Context, q transport.Request) (transport.Binding, core.Resources, error) {
	b, r, err := p.NetworkPath.Prepare(ctx, q)
	if err == nil {
		b = p.wrap(b)
	}
	return b, r, err
}

// wrapBindings has connections of a host over SMC-R use bindings that wrap has wrapped.
func wrapBindings(h *Host, wrap func(transport.Binding) transport.Binding) {
	h.networks[0] = &wrappedNetwork{h.networks[0], wrap}
}

// isOver reports whether the link group of a connection has ended for its connections.
func isOver(c conn.Conn) bool {
	select {
	case <-c.Association().Done():
		return true
	default:
		return false
	}
}

// failLinks has the links of a host on one address fail, as when the interface there takes no packets of their size any more. The peer is not
// told.
func failLinks(h *Host, addr netip.Addr) {
	h.rnicOf(addr).HandleEvent(&rdma.Event{Kind: rdma.EventMTUChanged, MTU: wire.MTU256})
}

// burst makes many connections at once, in one link group. It reports false if a machine that was busy with other things had no time
// for that: each CONFIRM RKEY waits for those before it, and nobody waits for ever.
func (r *smcrRig) burst(count int) (conns, accepted []conn.Conn, all bool) {
	r.t.Helper()
	conns = make([]conn.Conn, count)
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() { conns[i], _ = r.dial(DialOptions{ReadBuffer: 64 << 10, Require: conn.RequireSMCR}) })
	}
	wg.Wait()
	conns = slices.DeleteFunc(conns, func(c conn.Conn) bool { return c == nil })
	if all = len(conns) == count && len(groupsOf(r.server)) == 1; all {
		for range conns {
			accepted = append(accepted, mustAccept(r.t, r.l))
		}
	}
	return conns, accepted, all
}

// TestSMCRGroup makes many connections at once, which make one link group, and uses it again.
func TestSMCRGroup(t *testing.T) {
	const count, attempts = 50, 5
	var r *smcrRig
	var conns, accepted []conn.Conn
	for i, all := 1, false; !all; i++ {
		r = newSMCRRig(t, nil)
		if conns, accepted, all = r.burst(count); !all && i == attempts {
			t.Fatalf("%d of %d dials got SMC-R, in %d link groups, in the last of %d attempts", len(conns), count, len(groupsOf(r.server)), attempts)
		}
	}
	was := [2]transport.Association{conns[0].Association(), accepted[0].Association()}
	for i, c := range conns {
		if _, err := c.Write([]byte{byte(i)}); err != nil {
			t.Error(err)
		}
	}
	checkSMCR(t, accepted...)
	seen := make(map[byte]bool)
	for _, s := range accepted {
		var b [1]byte
		if _, err := s.Read(b[:]); err != nil {
			t.Error(err)
		}
		seen[b[0]] = true
	}
	if len(seen) != count {
		t.Errorf("%d connections were told apart, want %d", len(seen), count)
	}
	if a, b := groupsOf(r.client), groupsOf(r.server); len(a) != 1 || len(b) != 1 {
		t.Errorf("%d and %d link groups, want one", len(a), len(b))
	}
	for i := range conns {
		conns[i].Close()
		accepted[i].Close()
	}
	c, s := r.connect()
	checkSMCR(t, c, s)
	checkExchange(t, c, s)
	if a, b := groupsOf(r.client), groupsOf(r.server); len(a) != 1 || len(b) != 1 || was[0] != c.Association() || was[1] != s.Association() {
		t.Errorf("%d and %d link groups, want the one there was", len(a), len(b))
	}
	c.Close()
	s.Close()
}
