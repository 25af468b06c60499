package smcd

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

func TestMain(m *testing.M) { smctest.Main(m) }

// patience bounds every wait of the rig. It only passes when a test fails.
const patience = 20 * time.Second

// maxConns is how many connections a link group of the rig has at most.
const maxConns = 2

// A rig is SMC-D of a client and a server without their hosts: two devices with a peering between them, and handshakes whose
// messages go from one to the other in memory.
type rig struct {
	t              *testing.T
	client, server *side
}

// A side is SMC-D of one host.
type side struct {
	*Device
	groups *Groups
	peer   *ism.Peer // the other side
	ups    chan *ism.Peer
	gone   chan *ism.Peer
}

func (s *side) PeerUp(p *ism.Peer)     { s.ups <- p }
func (*side) Signal(*ism.Peer, []byte) {}
func (s *side) PeerGone(p *ism.Peer, _ error) {
	s.groups.PeerGone(p.GID())
	s.gone <- p
}

// testContext ends with the test, or after patience.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// newRig makes both sides. It ends with the test.
func newRig(t *testing.T) *rig {
	t.Helper()
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	r := &rig{t: t, client: newSide(t, dir, 100), server: newSide(t, dir, 200)}
	r.client.peer = r.peering(r.client, r.server)
	select {
	case r.server.peer = <-r.server.ups:
	case <-time.After(patience):
		t.Fatal("the server has no peering")
	}
	return r
}

// newSide makes a side whose link groups have numbers from first on.
func newSide(t *testing.T, dir string, first uint32) *side {
	t.Helper()
	var last atomic.Uint32
	last.Store(first - 1)
	s := &side{ups: make(chan *ism.Peer, 4), gone: make(chan *ism.Peer, 4)}
	s.groups = NewGroups(func() wire.LinkID { return wire.LinkID(last.Add(1)) }, maxConns)
	var err error
	if s.Device, err = Open(ism.Config{Dir: dir, Handler: s}, s.groups, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (r *rig) peering(from, to *side) *ism.Peer {
	r.t.Helper()
	p, err := from.Peer(testContext(r.t), to.GID())
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// An end is one end of a connection without TCP.
type end struct {
	r         *rig
	side      *side
	role      core.Role
	handshake core.Handshake
	path      *Path
	peer      *end
	binding   *binding
	member    transport.Membership
	data      atomic.Pointer[stream.Conn] // nil before the connection is established
	left      atomic.Bool
}

func (r *rig) newEnd(role core.Role, s *side) *end {
	r.t.Helper()
	eid, err := wire.ParseEID("GOSMC.TEST")
	if err != nil {
		r.t.Fatal(err)
	}
	e := &end{r: r, side: s, role: role, path: s.NewPath(s.peer, wire.EID{})}
	caps := core.Capabilities{
		Peer: netip.MustParseAddr("127.0.0.1"), OS: clc.OSLinux, HostName: role.String(), Release: clc.Release1, UEIDs: []wire.EID{eid},
	}
	e.path.Offer(&caps)
	e.handshake.Reset(role, &caps)
	return e
}

// connect makes a connection, and both its ends.
func (r *rig) connect() (c, s *end) {
	r.t.Helper()
	c, s = r.newEnd(core.RoleClient, r.client), r.newEnd(core.RoleServer, r.server)
	c.peer, s.peer = s, c
	now := time.Now()
	s.do(s.handshake.Start(now, nil))
	c.do(c.handshake.Start(now, nil))
	if c.data.Load() == nil || s.data.Load() == nil {
		r.t.Fatalf("the client's handshake is in %v, the server's in %v", c.handshake.State(), s.handshake.State())
	}
	return c, s
}

// do carries out the outputs of a handshake.
func (e *end) do(out []core.HandshakeOutput) {
	e.r.t.Helper()
	for _, out := range out {
		switch out := out.(type) {
		case core.SendCLC:
			e.peer.take(out.Message.Append(nil))
		case core.Prepare:
			b, resources, err := e.path.Prepare(testContext(e.r.t), e.request(out.Choice))
			if err != nil {
				e.r.t.Fatal(err)
			}
			e.binding = b.(*binding)
			e.do(e.handshake.Prepared(time.Now(), resources, nil))
		case core.Established:
			if err := e.binding.Attach(testContext(e.r.t), out.Result); err != nil {
				e.r.t.Fatal(err)
			}
			e.data.Store(stream.New(e.binding.Stream()))
			e.member = e.binding.Confirm(out.Result)
		case core.FallBack, core.EndTCP:
			e.r.t.Fatalf("the handshake ends in %+v", out)
		}
	}
}

func (e *end) request(choice core.Choice) transport.Request {
	return transport.Request{
		Role: e.role, Choice: choice, Buffer: 1 << 16, Wake: e.wake, Left: func() { e.left.Store(true) }, Lost: func() {},
	}
}

// take hands a message of the peer to the handshake.
func (e *end) take(b []byte) {
	e.r.t.Helper()
	m, err := clc.Parse(b)
	if p, ok := m.(clc.Proposal); ok {
		e.path.Examine(&p, &e.handshake, true)
	}
	e.do(e.handshake.HandleMessage(time.Now(), m, err, nil))
}

// wake tells the data path that something may have arrived.
func (e *end) wake() {
	if d := e.data.Load(); d != nil {
		d.Wake()
	}
}

// close gives back the resources of the connection. clean says that it has ended in order.
func (e *end) close(clean bool) {
	e.data.Load().Detach()
	e.binding.Detach(clean)
	e.binding.Release(clean)
	e.binding.Leave()
}

// exchange moves bytes from each end to the other.
func exchange(t *testing.T, c, s *end) {
	t.Helper()
	for _, ends := range [][2]*end{{c, s}, {s, c}} {
		sent := []byte("from " + ends[0].role.String())
		if _, err := ends[0].data.Load().Write(sent); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(sent))
		d := ends[1].data.Load()
		if err := d.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(d, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%q has arrived, %v; want %q", got, err, sent)
		}
	}
}

// choices are core's choices for a connection, the client's with a token and an element of the
// server's.
func (r *rig) choices(token wire.Token, size wire.SizeCode) (client, server core.Choice) {
	here := clc.ISMDevice{GID: r.client.GID(), CHID: wire.CHIDLoopback}
	there := clc.ISMDevice{GID: r.server.GID(), CHID: wire.CHIDLoopback}
	client = core.Choice{
		Mode: core.SMCD, Version: clc.V2, Local: here, Remote: there, FirstContact: true,
		D: &clc.ParamsD{GID: there.GID, CHID: there.CHID, Token: token, DMBESize: size, LinkID: 200},
	}
	server = core.Choice{Mode: core.SMCD, Version: clc.V2, Local: there, Remote: here}
	return client, server
}
