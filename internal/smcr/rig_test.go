package smcr

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
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
	client, server *Fabric
	version        clc.Version   // the only one that the fabrics speak
	addrs          [2]netip.Addr // of TCP connections, the client's and the server's
	steps          chan func()   // steps of links, which goroutines of link groups tell
	cables         *smctest.Cables
	see            func(m clc.Message) // is told of each CLC message; nil: nobody is
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
	r := &fabricRig{
		t: t, version: clc.V2, addrs: [2]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}, steps: make(chan func(), 64),
	}
	port := smctest.FreePort(t, r.addrs[:]...)
	var cfg [2]rdma.Config
	for i := range cfg {
		cfg[i].Port = port
	}
	if change != nil {
		change(&cfg[0], &cfg[1])
	}
	here := func(f func()) { f() }
	r.client = r.newFabric(1, rnic.Config{Links: 2, RDMA: cfg[0], Namespace: here})
	r.server = r.newFabric(2, rnic.Config{Links: 2, RDMA: cfg[1], Namespace: here})
	return r
}

// newFabricCables makes fabrics that so many cables join, for as many links. They speak one version.
func newFabricCables(t testing.TB, count int, version clc.Version) *fabricRig {
	t.Helper()
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, count)
	r := &fabricRig{t: t, version: version, addrs: cables.Addr[0], steps: make(chan func(), 64), cables: cables}
	newFabric := func(end int) *Fabric {
		return r.newFabric(byte(1+end), rnic.Config{
			Links: count, Allowed: []netip.Prefix{netip.MustParsePrefix("10.99.0.0/16")}, Namespace: func(f func()) { cables.Visit(end, f) },
		})
	}
	r.client, r.server = newFabric(0), newFabric(1)
	return r
}

func (r *fabricRig) newFabric(number byte, cfg rnic.Config) *Fabric {
	cfg.Dir, cfg.NoSpin, cfg.Logger = r.t.TempDir(), true, slog.New(slog.DiscardHandler)
	cfg.Diagnose = func(err error) string { return err.Error() }
	var ids atomic.Uint32
	f := New(Config{
		RNICs: rnic.New(cfg), PeerID: wire.PeerID{0, number, 2}, HaveUEID: r.version == clc.V2, V1: r.version == clc.V1,
		MaxConns: 255, MaxLinks: cfg.Links, ReadBuffer: 1 << 17, MemoryBudget: 1 << 30, Spread: SpreadConnections,
		Namespace: cfg.Namespace, Logger: cfg.Logger, NewID: func() wire.LinkID { return wire.LinkID(ids.Add(1)) }, Owner: new(endsOwner),
	})
	r.t.Cleanup(func() { f.Close(true) })
	return f
}

// upLinks returns the group of an end, and its links that are up, once there are so many.
func (r *fabricRig) upLinks(of *fabricEnd, want int) (g *group, links []*groupLink) {
	r.t.Helper()
	g = of.binding.group
	smctest.Eventually(r.t, fabricPatience, "all links are up", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		links = nil
		for _, l := range g.links.all {
			if l.up {
				links = append(links, l)
			}
		}
		return len(links) == want
	})
	return g, links
}

// An endsOwner has no connections, and keeps the reasons for which groups and links have ended.
type endsOwner struct {
	mu   sync.Mutex
	ends []string
}

func (*endsOwner) GroupMade(transport.Association) {}

func (*endsOwner) GroupEnded(_ transport.Association, tell func(int)) func() {
	tell(0)
	return func() {}
}

func (o *endsOwner) FailedOver() {}

func (o *endsOwner) Ended(what, reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ends = append(o.ends, what+": "+reason)
}

func (*endsOwner) TraceLLC(*core.LinkGroup, netip.Addr, netip.Addr, []byte, bool) {}

// checkEnd makes sure that a fabric has told its owner of one end.
func checkEnd(t testing.TB, f *Fabric, want string) {
	t.Helper()
	o := f.cfg.Owner.(*endsOwner)
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ends) != 1 || !strings.HasPrefix(o.ends[0], want) {
		t.Errorf("ends are told for %q, want one for %q", o.ends, want)
	}
}

// A fabricEnd is one end of a connection without TCP.
type fabricEnd struct {
	r         *fabricRig
	role      core.Role
	handshake core.Handshake
	path      transport.NetworkPath
	peer      *fabricEnd
	binding   *binding
	data      atomic.Pointer[stream.Conn] // nil before the connection is established
}

// connect makes a connection, and both its ends.
func (r *fabricRig) connect() (c, s *fabricEnd) {
	r.t.Helper()
	c = r.newEnd(core.RoleClient, r.client, r.addrs[0], r.addrs[1])
	s = r.newEnd(core.RoleServer, r.server, r.addrs[1], r.addrs[0])
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

func (r *fabricRig) newEnd(role core.Role, f *Fabric, local, remote netip.Addr) *fabricEnd {
	r.t.Helper()
	eid, err := wire.ParseEID("GOSMC.TEST")
	if err != nil {
		r.t.Fatal(err)
	}
	e := &fabricEnd{r: r, role: role, path: f.NewPath(role, local, remote)}
	r.t.Cleanup(e.path.Close)
	ueids := []wire.EID{eid}
	if r.version == clc.V1 {
		ueids = nil
	}
	caps := core.Capabilities{
		Peer: remote, OS: clc.OSLinux, HostName: role.String(), Release: clc.Release1, UEIDs: ueids, MaxConns: 255, MaxLinks: uint8(f.cfg.MaxLinks),
	}
	e.path.Offer(&caps)
	e.handshake.Reset(role, &caps)
	return e
}

// do carries out the outputs of a handshake.
func (e *fabricEnd) do(out []core.HandshakeOutput) {
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
			e.binding = b.(*binding)
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
	if e.r.see != nil {
		e.r.see(m)
	}
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

// close gives back the resources of the connection, as an aborted connection does.
func (e *fabricEnd) close() {
	e.data.Load().Detach()
	e.binding.Detach(false)
	e.binding.Release(false)
	e.binding.Leave()
}

// exchange moves bytes from each end to the other.
func exchange(t testing.TB, c, s *fabricEnd) {
	t.Helper()
	for _, ends := range [][2]*fabricEnd{{c, s}, {s, c}} {
		sent := []byte("from " + ends[0].role.String())
		if _, err := ends[0].data.Load().Write(sent); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(sent))
		d := ends[1].data.Load()
		if err := d.SetReadDeadline(time.Now().Add(fabricPatience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(d, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%q has arrived, %v; want %q", got, err, sent)
		}
	}
}

// transfer moves size bytes from each end to the other, both ways at once.
func transfer(t testing.TB, c, s *fabricEnd, size int) {
	t.Helper()
	var all sync.WaitGroup
	for _, ends := range [][2]*fabricEnd{{c, s}, {s, c}} {
		from, to := ends[0].data.Load(), ends[1].data.Load()
		all.Go(func() {
			buf := make([]byte, 100<<10)
			for at := 0; at < size; at += len(buf) {
				buf = buf[:min(len(buf), size-at)]
				smctest.Pattern(buf, uint64(at))
				if _, err := from.Write(buf); err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			if err := to.SetReadDeadline(time.Now().Add(fabricPatience)); err != nil {
				t.Error(err)
			}
			buf := make([]byte, 64<<10)
			for at := 0; at < size; {
				n, err := to.Read(buf[:min(len(buf), size-at)])
				if err == nil {
					err = smctest.CheckPattern(buf[:n], uint64(at))
				}
				if at += n; err != nil {
					t.Errorf("after %d bytes: %v", at, err)
					return
				}
			}
		})
	}
	all.Wait()
}
