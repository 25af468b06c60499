package host

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
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

// A fakePath is SMC-R without links: the test says what becomes of them. Its connections move nothing.
type fakePath struct {
	gid    wire.GID
	w      *tcpwatch.Watcher
	linked chan func(core.LinkStep) // has what tells the handshake of its link, once that begins
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

func (w *fakePath) Traits() transport.PathTraits { return transport.PathTraits{Stranger: true} }
func (w *fakePath) LinkMissing(time.Duration)    {}
func (w *fakePath) Alive() bool                  { return true }
func (w *fakePath) Mode() core.Mode              { return core.SMCR }
func (w *fakePath) Examine(_ *clc.Proposal, h *core.Handshake, _ bool) {
	h.SetRNIC(nil, fakeCaps(w.gid).RoCEv2, 0)
}
func (w *fakePath) Watcher() *tcpwatch.Watcher { return w.w }
func (w *fakePath) Offer(c *core.Capabilities) { *c = fakeCaps(w.gid) }

func (w *fakePath) Prepare(_ context.Context, t transport.Request) (transport.Binding, core.Resources, error) {
	return &fakeBinding{way: w}, fakeResources(w.gid, true), nil
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
	way *fakePath
}

func (c *fakeBinding) StartLink(_ core.Result, tell func(core.LinkStep)) error {
	c.way.linked <- tell
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
	if c.way.released != nil {
		c.way.released()
	}
}
func (c *fakeBinding) ReturnPages(from, to int) error     { return nil }
func (c *fakeBinding) Association() transport.Association { return c }
func (c *fakeBinding) Done() <-chan struct{}              { return c.way.done }

// A linkRig is a handshake of ours for SMC-R, whose link the test has in its hands, with a peer that does what the
// test says.
type linkRig struct {
	t    *testing.T
	way  *fakePath
	conn conn.Conn // once the handshake is over
	err  chan error
	peer *core.Handshake
	tcp  *net.TCPConn // the peer's
}

// newLinkRig brings the handshake to where the first link is to be confirmed.
func newLinkRig(t *testing.T, role core.Role) *linkRig {
	t.Helper()
	h := newTestHost(t, Config{})
	ours, theirs := tcpPair(t)
	r := &linkRig{t: t, way: newFakePath(t), err: make(chan error, 1), tcp: theirs}
	peerRole := core.RoleServer
	if role == core.RoleServer {
		peerRole = core.RoleClient
	}
	caps := fakeCaps(wire.GIDFromAddr(netip.MustParseAddr("192.0.2.2")))
	caps.PeerID[7] = 9
	r.peer = core.NewHandshake(peerRole, caps)
	p := h.newConn(ours, role == core.RoleClient, net.KeepAliveConfig{}, false)
	go func() {
		c, err := h.shakeOn(boundedContext(t), role, p, []transport.Path{r.way}, 1<<16, conn.AnyMode)
		r.conn = c
		r.err <- err
	}()
	r.do(r.peer.Start(time.Now(), nil))
	for r.peer.State() < core.HandshakeLinkTurn {
		m := r.read()
		r.do(r.peer.HandleMessage(time.Now(), m, nil, nil))
	}
	return r
}

// do carries out what the peer's handshake asks for.
func (r *linkRig) do(out []core.Output) {
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
	var reader clcReader
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

// tell waits for the link to begin, and says what becomes of it.
func (r *linkRig) tell(list ...core.LinkStep) {
	r.t.Helper()
	select {
	case tell := <-r.way.linked:
		for _, n := range list {
			tell(n)
		}
		r.way.linked <- tell
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
	r.t.Cleanup(func() { abandon(r.conn) })
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
	l := plainListener(t, "127.0.0.1:0")
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

// TestLinkEndsBeforeDecline has our side decline when its link has failed: the link is given up before the Decline is sent, so that
// the peer does not find it good after it has read that.
func TestLinkEndsBeforeDecline(t *testing.T) {
	smctest.CheckLeaks(t)
	r := newLinkRig(t, core.RoleServer)
	ended := make(chan error, 1)
	r.way.released = func() {
		r.tcp.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // where it came before this sees it
		_, err := r.tcp.Read(make([]byte, 1))
		ended <- err
	}
	r.tell(linkFailed(clc.DiagLink))
	if err := <-ended; !isTimeout(err) {
		t.Errorf("when the link is given up the peer reads %v, want nothing yet", err)
	}
	if m, ok := r.read().(clc.Decline); !ok {
		t.Errorf("the peer reads %v, want a Decline", m)
	}
	r.checkMode(conn.ModeTCP, clc.DiagLink, false)
}

var fallBackDecline = clc.Decline{Version: clc.V2, PeerID: wire.PeerID{9}, Diagnosis: clc.DiagTimeoutConfirmLink, OS: clc.OSLinux}

// TestLinkNews lets a handshake learn of its link while it waits for a message of CLC, and of a message while
// the link is under way.
func TestLinkNews(t *testing.T) {
	smctest.CheckLeaks(t)
	requested, up := core.LinkStep{Kind: core.StepRequested}, core.LinkStep{Kind: core.StepUp}
	replied, confirmed := core.LinkStep{Kind: core.StepReplied}, core.LinkStep{Kind: core.StepConfirmed}
	for _, role := range []core.Role{core.RoleClient, core.RoleServer} {
		t.Run(role.String()+", link up", func(t *testing.T) {
			r := newLinkRig(t, role)
			r.tell(requested)
			r.tell(replied) // a server's handshake has no use for it
			r.tell(confirmed)
			r.tell(up)
			told := time.Now()
			r.checkMode(conn.ModeSMCR, 0, false)
			if took := time.Since(told); took > core.LinkTurnTimeout { // then core would have given up
				t.Errorf("the news took %v", took)
			}
			r.conn.Close()
		})
		t.Run(role.String()+", Decline in pieces", func(t *testing.T) {
			r := newLinkRig(t, role)
			b := fallBackDecline.Append(nil)
			for i := range b[1:] {
				r.write(b[i : i+1])
				r.tell(core.LinkStep{}) // interrupts
			}
			r.write(append(b[len(b)-1:len(b):len(b)], "and the application"...))
			r.checkMode(conn.ModeTCP, clc.DiagTimeoutConfirmLink, true)
			got := make([]byte, len("and the application"))
			if _, err := io.ReadFull(r.conn, got); err != nil || string(got) != "and the application" {
				t.Errorf("read %q, %v after the Decline", got, err)
			}
			checkExchange(t, r.conn, r.tcp)
		})
		for _, crossing := range []string{"no Decline", "Decline before", "Decline after", "half before"} {
			t.Run(role.String()+", link fails, "+crossing, func(t *testing.T) {
				r := newLinkRig(t, role)
				b := fallBackDecline.Append(nil)
				switch crossing {
				case "half before":
					r.write(b[:20])
					b = b[20:]
				case "no Decline":
					b = nil
				}
				if role == core.RoleClient {
					r.tell(requested)
				}
				r.tell(linkFailed(clc.DiagMemory))
				if m := r.read(); m.Type() != clc.TypeDecline {
					t.Fatalf("the peer got %v, want a Decline", m)
				}
				if crossing == "Decline before" {
					r.write(b)
					b = nil
				}
				r.checkMode(conn.ModeTCP, clc.DiagMemory, false)
				r.tell(up) // too late: the deadlines are the application's
				r.write(b)
				checkExchange(t, r.tcp, r.conn)
			})
		}
	}
	t.Run("server, link fails after CONFIRM LINK", func(t *testing.T) {
		r := newLinkRig(t, core.RoleServer)
		r.tell(requested)
		r.tell(linkFailed(clc.DiagMemory))
		if err := <-r.err; err == nil || !strings.Contains(err.Error(), "link failed after CONFIRM LINK") {
			t.Errorf("the handshake ended with %v", err)
		}
	})
}

// TestLinkNewsEOF has a peer that closes before we know that the connection is established: its FIN overtakes what comes
// over the link.
func TestLinkNewsEOF(t *testing.T) {
	smctest.CheckLeaks(t)
	nothing := core.LinkStep{}
	for _, role := range []core.Role{core.RoleClient, core.RoleServer} {
		t.Run(role.String(), func(t *testing.T) {
			r := newLinkRig(t, role)
			r.tcp.CloseWrite()
			for _, kind := range []core.LinkStepKind{0, core.StepRequested, 0, core.StepReplied, core.StepConfirmed, core.StepUp} {
				r.tell(core.LinkStep{Kind: kind})
			}
			r.checkMode(conn.ModeSMCR, 0, false)
		})
		t.Run(role.String()+", reset", func(t *testing.T) {
			r := newLinkRig(t, role)
			r.tcp.SetLinger(0)
			r.tcp.Close()
			if err := <-r.err; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the handshake ended with %v, want a reset", err)
			}
		})
	}
	t.Run("client, link ends", func(t *testing.T) { // the peer's process has, before it has said anything over the link
		r := newLinkRig(t, core.RoleClient)
		r.tcp.CloseWrite()
		close(r.way.done)
		if err := <-r.err; !errors.Is(err, io.EOF) {
			t.Errorf("the handshake ended with %v, want EOF", err)
		}
	})
	t.Run("server, link fails", func(t *testing.T) {
		r := newLinkRig(t, core.RoleServer)
		r.tcp.CloseWrite()
		r.tell(nothing, linkFailed(clc.DiagMemory))
		r.checkMode(conn.ModeTCP, clc.DiagMemory, false)
	})
}
