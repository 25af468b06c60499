package handshake

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

func TestMain(m *testing.M) { smctest.Main(m) }

// patience is how long tests wait for an event that comes at once unless something is wrong.
const patience = time.Minute

// A testOwner takes every connection and every handshake, and counts nothing.
type testOwner struct{}

func (testOwner) Message([]byte, bool)      {}
func (testOwner) Established(time.Duration) {}
func (testOwner) Failed(string)             {}
func (testOwner) Add(conn.Conn) error       { return nil }
func (testOwner) Forget(conn.Conn)          {}
func (testOwner) Closed(conn.Conn)          {}
func (testOwner) FellBack(clc.Reason, bool) {}
func (testOwner) BeginTrace() *conn.Record  { return new(conn.Record) }
func (testOwner) EndTrace([]byte)           {}

func newTestDriver() *Driver {
	return New(Config{Release: clc.Release1, UEIDs: []wire.EID{fakeEID}, MaxLinks: 2, MaxConns: 255, Owner: testOwner{}, Logger: slog.New(slog.DiscardHandler)})
}

func addrPort(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

// A fakePath is SMC-R without links: the test decides the fate of its links. Its connections move
// nothing.
type fakePath struct {
	gid    wire.GID
	w      *tcpwatch.Watcher
	turns  bool                     // its connections take turns
	linked chan func(core.LinkStep) // takes the callback for steps of its link, once that begins
	done   chan struct{}            // closed when its link group has ended

	released func() // called when the binding is; nil: nothing
}

func newFakePath(t *testing.T) *fakePath {
	w, err := tcpwatch.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return &fakePath{gid: wire.GIDFromAddr(netip.MustParseAddr("192.0.2.1")), w: w, linked: make(chan func(core.LinkStep), 1), done: make(chan struct{})}
}

func (w *fakePath) Traits() transport.PathTraits {
	return transport.PathTraits{Stranger: true, Turns: w.turns}
}
func (w *fakePath) LinkMissing(time.Duration) {}
func (w *fakePath) Alive() bool               { return true }
func (w *fakePath) Mode() core.Mode           { return core.SMCR }
func (w *fakePath) Examine(_ *clc.Proposal, h *core.Handshake, admitted bool) {
	if !admitted {
		h.SetRNIC(nil, nil, clc.DiagBusy)
		return
	}
	h.SetRNIC(nil, fakeCaps(w.gid).RoCEv2, 0)
}
func (w *fakePath) Watcher() *tcpwatch.Watcher { return w.w }
func (w *fakePath) Offer(c *core.Capabilities) { *c = fakeCaps(w.gid) }

func (w *fakePath) Prepare(_ context.Context, t transport.Request) (transport.Binding, core.Resources, error) {
	return &fakeBinding{path: w}, fakeResources(w.gid, true), nil
}

func fakeCaps(gid wire.GID) core.Capabilities {
	return core.Capabilities{
		PeerID: wire.PeerID{1, 2, 3}, OS: clc.OSLinux, Release: clc.Release1, UEIDs: []wire.EID{fakeEID},
		RoCEv2: &core.RNIC{GID: gid, MAC: wire.MAC{2, 1}}, MaxConns: 16, MaxLinks: 2,
	}
}

func fakeResources(gid wire.GID, first bool) core.Resources {
	return core.Resources{FirstContact: first, ClientGIDs: []wire.GID{gid}, R: &clc.ParamsR{
		GID: gid, MAC: wire.MAC{2, 1}, QPN: 0x11, RKey: 0x501, RMBEIndex: 1, AlertToken: 7, RMBESize: 1, MTU: wire.MTU1024, RMBAddr: 1 << 40, PSN: 5,
	}}
}

var fakeEID = func() wire.EID {
	e, err := wire.ParseEID("GOSMC.TEST")
	if err != nil {
		panic(err)
	}
	return e
}()

type fakeBinding struct {
	transport.NoLinks
	path *fakePath
}

func (c *fakeBinding) StartLink(_ core.Result, tell func(core.LinkStep)) error {
	c.path.linked <- tell
	return nil
}
func (c *fakeBinding) Attach(context.Context, core.Result) error { return nil }
func (c *fakeBinding) Confirm(core.Result) transport.Membership  { return transport.Membership{} }
func (c *fakeBinding) OutOfSync()                                {}
func (c *fakeBinding) Leave()                                    {}
func (c *fakeBinding) Stream() stream.Config {
	return stream.Config{In: stream.MessageInbox(make([]byte, 4<<10)), Out: stream.NoMemory()}
}
func (c *fakeBinding) Traits() transport.Traits {
	return transport.Traits{HeaderLen: cdc.HeaderLen, KeepAlive: true, Overtaken: true}
}
func (c *fakeBinding) Cause() core.ConnEventKind { return core.EventPeerDead }
func (c *fakeBinding) AppendHeader(b []byte, h cdc.Header, _ bool) []byte {
	return h.Append(b)
}
func (c *fakeBinding) Detach(bool) {}
func (c *fakeBinding) Release(bool) {
	if c.path.released != nil {
		c.path.released()
	}
}
func (c *fakeBinding) ReturnPages(from, to int) error     { return nil }
func (c *fakeBinding) Association() transport.Association { return c }
func (c *fakeBinding) Done() <-chan struct{}              { return c.path.done }

// A linkRig is a handshake of ours for SMC-R, with a peer that follows the test. The test controls
// the link.
type linkRig struct {
	t    *testing.T
	path *fakePath
	ours *conn.Pending
	conn conn.Conn // once the handshake is over
	err  chan error
	peer *core.Handshake
	tcp  *net.TCPConn // the peer's
}

// startRig begins a handshake of which the peer has said nothing yet.
func startRig(t *testing.T, d *Driver, path *fakePath, role core.Role) *linkRig {
	t.Helper()
	ours, theirs := tcpPair(t)
	r := &linkRig{t: t, path: path, err: make(chan error, 1), tcp: theirs}
	peerRole := core.RoleServer
	if role == core.RoleServer {
		peerRole = core.RoleClient
	}
	caps := fakeCaps(wire.GIDFromAddr(netip.MustParseAddr("192.0.2.2")))
	caps.PeerID[7] = 9
	r.peer = core.NewHandshake(peerRole, caps)
	r.ours = conn.New(&conn.Env{
		Owner: testOwner{}, Logger: slog.New(slog.DiscardHandler), Stats: new(stream.Stats), Dirty: func() {},
		ResetPatience: conn.ResetPatience, WordTime: conn.WordTime,
	}, conn.Params{
		ID: 1, TCP: ours, Local: addrPort(ours.LocalAddr()), Remote: addrPort(ours.RemoteAddr()), Client: role == core.RoleClient,
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	go func() {
		c, err := d.Run(ctx, Request{Role: role, Conn: r.ours, Paths: []transport.Path{path}, Buffer: 1 << 16})
		r.conn = c
		r.err <- err
	}()
	return r
}

// newLinkRig brings the handshake to where the first link is to be confirmed.
func newLinkRig(t *testing.T, role core.Role) *linkRig {
	t.Helper()
	r := startRig(t, newTestDriver(), newFakePath(t), role)
	r.do(r.peer.Start(time.Now(), nil))
	for r.peer.State() < core.HandshakeLinkTurn {
		m := r.read()
		r.do(r.peer.HandleMessage(time.Now(), m, nil, nil))
	}
	return r
}

// do carries out the outputs of the peer's handshake.
func (r *linkRig) do(out []core.HandshakeOutput) {
	r.t.Helper()
	for len(out) > 0 {
		o := out[0]
		out = out[1:]
		switch o := o.(type) {
		case core.SendCLC:
			r.write(o.Message.Append(nil))
		case core.Prepare:
			out = r.peer.Prepared(time.Now(), fakeResources(wire.GIDFromAddr(netip.MustParseAddr("192.0.2.2")), true), out)
		case core.FallBack, core.EndTCP:
			r.t.Fatalf("the peer's handshake ended in %+v", o)
		}
	}
}

func (r *linkRig) read() clc.Message {
	r.t.Helper()
	r.tcp.SetReadDeadline(time.Now().Add(patience))
	var reader messageReader
	b, err := reader.read(r.tcp)
	if err != nil {
		r.t.Fatalf("the peer reads: %v", err)
	}
	m, err := clc.Parse(b)
	if err != nil {
		r.t.Fatalf("the peer reads %x: %v", b, err)
	}
	return m
}

func (r *linkRig) write(b []byte) {
	r.t.Helper()
	if _, err := r.tcp.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

// tell waits for the link to begin, and reports its steps to the handshake.
func (r *linkRig) tell(list ...core.LinkStep) {
	r.t.Helper()
	select {
	case tell := <-r.path.linked:
		for _, n := range list {
			tell(n)
		}
		r.path.linked <- tell
	case <-time.After(patience):
		r.t.Fatal("the link was never begun")
	}
}

// checkMode waits for the end of our handshake.
func (r *linkRig) checkMode(mode conn.Mode, reason clc.Diagnosis, byPeer bool) {
	r.t.Helper()
	if err := <-r.err; err != nil {
		r.t.Fatalf("the handshake ended with %v, want %v", err, mode)
	}
	r.t.Cleanup(func() {
		r.conn.Abort()
		r.conn.Close()
	})
	if r.conn.Mode() != mode || r.conn.Reason().Code != reason || r.conn.ByPeer() != byPeer {
		r.t.Errorf("mode %v, reason %v, by peer %v; want %v, %v, %v", r.conn.Mode(), r.conn.Reason(), r.conn.ByPeer(), mode, reason, byPeer)
	}
	if mode == conn.ModeTCP {
		r.conn.SetDeadline(time.Now().Add(patience))
		r.tcp.SetDeadline(time.Now().Add(patience))
	}
}

func linkFailed(why clc.Diagnosis) core.LinkStep {
	return core.LinkStep{Kind: core.StepFailed, Why: why}
}

func tcpPair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s
}

// checkExchange has both ends write, and read the bytes that the other end has written.
func checkExchange(t *testing.T, a, b net.Conn) {
	t.Helper()
	for _, ends := range [][2]net.Conn{{a, b}, {b, a}} {
		sent := []byte("application bytes, \xe2\xd4\xc3\xd9 and more")
		if _, err := ends[0].Write(sent); err != nil {
			t.Errorf("Write: %v", err)
			return
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(ends[1], got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("Read = %q, %v; want %q", got, err, sent)
			return
		}
	}
}
