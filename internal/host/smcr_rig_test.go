package host

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A fabricRig is SMC-R of a client and a server without their hosts: two fabrics, and handshakes whose messages go from one to the
// other in memory.
type fabricRig struct {
	t              testing.TB
	client, server *smcrFabric
	steps          chan func() // steps of links, which goroutines of link groups tell
}

// fabricPatience bounds every wait of the rig. It only passes when a test fails.
const fabricPatience = 20 * time.Second

// fabricContext ends with the test, or after fabricPatience.
func fabricContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), fabricPatience)
	t.Cleanup(cancel)
	return ctx
}

// newFabricRig makes fabrics at 127.0.0.1 and 127.0.0.2, whose RNICs change may configure first. It ends with the test.
func newFabricRig(t testing.TB, change func(client, server *rdma.Config)) *fabricRig {
	t.Helper()
	smctest.CheckLeaks(t)
	port := smctest.FreePort(t, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"))
	var cfg [2]rdma.Config
	for i := range cfg {
		cfg[i].Port = port
	}
	if change != nil {
		change(&cfg[0], &cfg[1])
	}
	r := &fabricRig{t: t, steps: make(chan func(), 64)}
	r.client, r.server = r.newFabric(1, cfg[0]), r.newFabric(2, cfg[1])
	return r
}

func (r *fabricRig) newFabric(number byte, cfg rdma.Config) *smcrFabric {
	log := slog.New(slog.DiscardHandler)
	here := func(f func()) { f() }
	var ids atomic.Uint32
	f := newSMCRFabric(smcrConfig{
		RNICs: rnic.New(rnic.Config{
			Dir: r.t.TempDir(), Links: 2, RDMA: cfg, NoSpin: true, Namespace: here, Logger: log, Diagnose: func(err error) string { return err.Error() },
		}),
		PeerID: wire.PeerID{0, number, 2}, HaveUEID: true,
		MaxConns: 255, MaxLinks: 2, ReadBuffer: 1 << 17, MemoryBudget: 1 << 30, Spread: SpreadConnections,
		Namespace: here, Logger: log, NewID: func() wire.LinkID { return wire.LinkID(ids.Add(1)) }, Owner: noOwner{},
	})
	r.t.Cleanup(func() { f.close(true) })
	return f
}

// noOwner has no connections.
type noOwner struct{}

func (noOwner) GroupMade(transport.Association) {}

func (noOwner) GroupEnded(_ transport.Association, tell func(int)) func() {
	tell(0)
	return func() {}
}

func (noOwner) Ended(string, string) {}

func (noOwner) TraceLLC(*core.LinkGroup, netip.Addr, netip.Addr, []byte, bool) {}

// A fabricEnd is one end of a connection without TCP.
type fabricEnd struct {
	r         *fabricRig
	role      core.Role
	handshake core.Handshake
	path      *smcrPath
	peer      *fabricEnd
	binding   *smcrBinding
	data      atomic.Pointer[stream.Conn] // nil before the connection is established
}

// connect makes a connection, and both its ends.
func (r *fabricRig) connect() (c, s *fabricEnd) {
	r.t.Helper()
	c = r.newEnd(core.RoleClient, r.client, "127.0.0.1", "127.0.0.2")
	s = r.newEnd(core.RoleServer, r.server, "127.0.0.2", "127.0.0.1")
	c.peer, s.peer = s, c
	now := time.Now()
	s.do(s.handshake.Start(now, nil))
	c.do(c.handshake.Start(now, nil))
	late := time.After(fabricPatience)
	for c.data.Load() == nil || s.data.Load() == nil {
		select {
		case step := <-r.steps:
			step()
		case <-late:
			r.t.Fatalf("the client's handshake is in %v, the server's in %v", c.handshake.State(), s.handshake.State())
		}
	}
	return c, s
}

func (r *fabricRig) newEnd(role core.Role, f *smcrFabric, local, remote string) *fabricEnd {
	r.t.Helper()
	eid, err := wire.ParseEID("GOSMC.TEST")
	if err != nil {
		r.t.Fatal(err)
	}
	e := &fabricEnd{r: r, role: role, path: f.newPath(role, netip.MustParseAddr(local), netip.MustParseAddr(remote))}
	r.t.Cleanup(e.path.Close)
	caps := core.Capabilities{
		Peer: netip.MustParseAddr(remote), OS: clc.OSLinux, HostName: role.String(), Release: clc.Release1, UEIDs: []wire.EID{eid}, MaxConns: 255, MaxLinks: 2,
	}
	e.path.Offer(&caps)
	e.handshake.Reset(role, &caps)
	return e
}

// do carries out what a handshake asks for.
func (e *fabricEnd) do(out []core.Output) {
	e.r.t.Helper()
	for _, out := range out {
		switch out := out.(type) {
		case core.SendCLC:
			b := out.Message.Append(nil)
			e.r.steps <- func() { e.peer.take(b) }
		case core.Prepare:
			b, resources, err := e.path.Prepare(fabricContext(e.r.t), transport.Request{
				Role: e.role, Choice: out.Choice, Buffer: 1 << 16, Wake: e.wake, Left: func() {}, Lost: func() {},
			})
			if err != nil {
				e.r.t.Fatal(err)
			}
			e.binding = b.(*smcrBinding)
			e.do(e.handshake.Prepared(time.Now(), resources, nil))
		case core.StartLink:
			err := e.binding.StartLink(out.Result, func(s core.LinkStep) {
				e.r.steps <- func() { e.do(e.handshake.LinkStep(time.Now(), s, nil)) }
			})
			if err != nil {
				e.r.t.Fatal(err)
			}
		case core.Established:
			if err := e.binding.Attach(context.Background(), out.Result); err != nil {
				e.r.t.Fatal(err)
			}
			e.data.Store(stream.New(e.binding.Stream()))
			e.binding.Confirm(out.Result)
		case core.FallBack, core.EndTCP:
			e.r.t.Fatalf("the handshake ends in %+v", out)
		}
	}
}

// take hands a message of the peer to the handshake.
func (e *fabricEnd) take(b []byte) {
	e.r.t.Helper()
	m, err := clc.Parse(b)
	if p, ok := m.(clc.Proposal); ok {
		e.path.Examine(&p, &e.handshake, true)
	}
	e.do(e.handshake.HandleMessage(time.Now(), m, err, nil))
}

// wake tells the data path that something may have arrived.
func (e *fabricEnd) wake() {
	if d := e.data.Load(); d != nil {
		d.Wake()
	}
}

// close gives back what the connection has, as one does that is aborted.
func (e *fabricEnd) close() {
	e.data.Load().Detach()
	e.binding.Detach(false)
	e.binding.Release(false)
	e.binding.Leave()
}
